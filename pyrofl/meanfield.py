"""Mean-field Normals: (loc, scale) and natural parameters, KL, and the rules that pool clients' posteriors.

Posteriors are `{site: (loc, scale)}`; pooled ones carry a leading client axis, (C, ...). Scales are standard deviations,
never variances or unconstrained numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .guides import inverse_scale, positive_scale
from .tree import Tree

__all__ = ["POOLING", "gaussian_kl", "inverse_scale", "moments", "natural", "pool", "positive_scale"]

Posterior = dict[str, tuple[Tensor, Tensor]]  # site -> (loc, scale)

POOLING = ("scale", "unconstrained", "variance", "mixture", "product")


def gaussian_kl(loc: Tensor, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    """KL(N(loc, scale^2) || N(prior_loc, prior_scale^2)) summed over all entries, in nats."""
    ratio = scale / prior_scale
    z = (loc - prior_loc) / prior_scale
    return 0.5 * (ratio * ratio + z * z - 1).sum() - torch.log(ratio).sum()


def natural(q: Posterior) -> Tree:
    """Natural parameters in float64: `site/h` = loc / scale^2 and `site/J` = 1 / scale^2 (the precision)."""
    out: Tree = {}
    for site, (loc, scale) in q.items():
        J = scale.double().square().reciprocal()
        out[f"{site}/h"], out[f"{site}/J"] = loc.double() * J, J
    return out


def moments(eta: Tree, dtype: torch.dtype = torch.float64) -> Posterior:
    """(loc, scale) from natural parameters; a precision that is not positive has none and raises."""
    out: Posterior = {}
    for name in eta:
        if name.endswith("/h"):
            site = name.removesuffix("/h")
            h, J = eta[name].double(), eta[f"{site}/J"].double()
            if not bool((J > 0).all()):
                raise ValueError(
                    f"{site}: a precision is not positive (smallest {J.min():.3g}); damp or skip this factor"
                )
            out[site] = ((h / J).to(dtype), J.rsqrt().to(dtype))
    return out


def pool(q: Posterior, weights: Tensor, rule: str = "scale", *, prior: Posterior | None = None) -> Posterior:
    """One Normal from C clients' Normals; leaves (C, ...) -> (...), `weights` (C,) normalised here.

    - `scale`: mean of loc and mean of scale.
    - `unconstrained`: mean of loc and of rho, scale = softplus(rho): biased low, a geometric-like mean.
    - `variance`: mean of loc and of scale^2 (Rahman, Nguyen, 2026, "variance averaging").
    - `mixture`: the mixture's mean and variance, which holds the spread between clients too.
    - `product`: natural parameters add and the prior is counted once: J = prior.J + sum_k (J_k - prior.J). Needs `prior`;
      weights decide only who takes part (> 0), since every likelihood counts once.

    Computed in float64, so that scales of 1e-20 stay finite.
    """
    if rule not in POOLING:
        raise ValueError(f"unknown pooling rule {rule!r}; known are {', '.join(POOLING)}")
    if rule == "product":
        return _product(q, weights, prior)
    w = (weights / weights.sum()).double()
    out: Posterior = {}
    for site, (loc, scale) in q.items():
        m, s = loc.double(), scale.double()
        average = lambda v: torch.tensordot(w, v, 1)
        M = average(m)
        if rule == "scale":
            S = average(s)
        elif rule == "unconstrained":
            S = positive_scale(average(inverse_scale(s)))
        elif rule == "variance":
            S = average(s.square()).sqrt()
        else:
            S = average(s.square() + (m - M).square()).sqrt()
        out[site] = (M.to(loc.dtype), S.to(scale.dtype))
    return out


def _product(q: Posterior, weights: Tensor, prior: Posterior | None) -> Posterior:
    if prior is None:
        raise ValueError(
            "pooling = 'product' counts the prior once, so it needs Gaussian priors; use another rule or prior"
        )
    part = weights > 0
    out: Posterior = {}
    for site, (loc, scale) in q.items():
        eta, eta0 = natural({site: (loc[part], scale[part])}), natural({site: prior[site]})
        pooled = {k: v0 + (eta[k] - v0).sum(0) for k, v0 in eta0.items()}
        ((m, s),) = moments(pooled).values()
        out[site] = (m.to(loc.dtype), s.to(scale.dtype))
    return out
