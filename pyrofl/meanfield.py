"""Mean-field Normals: (loc, scale) and natural parameters, KL, and the rules that pool clients' posteriors.

Posteriors are `{site: (loc, scale)}`; pooled ones carry a leading client axis, (C, ...). Scales are standard
deviations, never variances or unconstrained numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .guides import inverse_scale, positive_scale
from .random import is_mapped
from .tree import Tree

__all__ = [
    "POOLING",
    "divergence",
    "em_step",
    "gaussian_kl",
    "inverse_scale",
    "moments",
    "natural",
    "pool",
    "positive_scale",
    "shortened",
    "spare",
    "tied",
]

Posterior = dict[str, tuple[Tensor, Tensor]]  # site -> (loc, scale)

POOLING = ("scale", "unconstrained", "variance", "mixture", "product")


Vector = Tensor | float  # one number for each weight, or one for all


def gaussian_kl(loc: Tensor, scale: Tensor, m: Vector, s: Vector) -> Tensor:
    """KL(N(loc, scale^2) || N(m, s^2)) summed over the last axis, in nats."""
    D = loc.shape[-1]
    if isinstance(s, float):
        d = loc - m if m else loc
        return (_square(d) + _square(scale)) * (0.5 / (s * s)) - torch.log(scale).sum(-1) + D * (math.log(s) - 0.5)
    ratio = scale / s
    return 0.5 * (_square(ratio) + _square((loc - m) / s) - D) - torch.log(ratio).sum(-1)


def divergence(q: Posterior, p: Posterior) -> Tensor:
    """KL(q || p) over all sites, () in nats."""
    flat = lambda v: v.reshape(-1)
    return torch.stack([gaussian_kl(*map(flat, q[s]), *map(flat, p[s])) for s in q]).sum()


def _square(v: Tensor) -> Tensor:
    """Sum of squares over the last axis: one pass over a vector."""
    return torch.dot(v, v) if v.dim() == 1 else v.square().sum(-1)


def draw_and_kl(both: Tensor, noise: Tensor, m: Vector, s: Vector) -> tuple[Tensor, Tensor]:
    """(w, KL): one reparametrised draw of all D weights, and the KL of their mean-field Normal from N(m, s^2), in nats.

    `both` is all locations, then all rho, (..., 2 D); leading axes are clients: (..., D) and (...) come back.
    w = loc + scale * noise with scale = softplus(rho) + 1e-8. Inside `vmap` or `torch.func.grad` every operation is
    traced; elsewhere the gradients are written out, in a third of the passes over memory.
    """
    try:
        return _DrawAndKL.apply(both, noise, m, s)
    except RuntimeError:  # functorch transforms take no such function
        loc, rho = both.chunk(2, -1)
        scale = positive_scale(rho)
        return torch.addcmul(loc, scale, noise), gaussian_kl(loc, scale, m, s)


class _DrawAndKL(torch.autograd.Function):
    """dKL/dloc = (loc - m) / s^2 and dKL/dscale = scale / s^2 - 1 / scale, added to what comes back through w."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, noise: Tensor, m: Vector, s: Vector) -> tuple[Tensor, Tensor]:
        loc, rho = both.chunk(2, -1)
        scale = positive_scale(rho)
        ctx.prior = (m, s) if isinstance(s, float) else None
        ctx.save_for_backward(both, noise, scale, *(() if ctx.prior else (m, s)))
        return torch.addcmul(loc, scale, noise), gaussian_kl(loc, scale, m, s)

    @staticmethod
    def backward(ctx: Any, dw: Tensor, dkl: Tensor) -> tuple[Tensor | None, ...]:
        both, noise, scale, *prior = ctx.saved_tensors
        m, s = ctx.prior or prior
        loc, rho = both.chunk(2, -1)
        dkl = dkl.unsqueeze(-1)  # (..., 1) beside (..., D)
        strength = dkl / (s * s)
        gap = loc if ctx.prior and not m else loc - m
        gradient = torch.empty_like(both)
        dloc, drho = gradient.chunk(2, -1)
        torch.addcmul(dw, gap, strength, out=dloc)
        # dw noise + dkl (scale / s^2 - 1 / scale), times dscale / drho
        torch.mul(dw, noise, out=drho)
        drho.addcmul_(scale, strength).addcdiv_(-dkl, scale).mul_(torch.sigmoid(rho))
        dm = ds = None
        if ctx.needs_input_grad[2]:
            dm = (-gap * strength).sum_to_size(m.shape)
        if ctx.needs_input_grad[3]:
            ds = ((dkl - (scale.square() + gap.square()) * strength) / s).sum_to_size(s.shape)
        return gradient, None, dm, ds


def natural(q: Posterior) -> Tree:
    """Natural parameters in float64: `site/h` = loc / scale^2 and `site/J` = 1 / scale^2 (the precision)."""
    out: Tree = {}
    for site, (loc, scale) in q.items():
        J = scale.double().square().reciprocal()
        out[f"{site}/h"], out[f"{site}/J"] = loc.double() * J, J
    return out


def moments(eta: Tree, dtype: torch.dtype = torch.float64) -> Posterior:
    """(loc, scale) from natural parameters; a precision that is not positive has none and raises.

    Inside `vmap` nothing can be raised: there the result is not finite.
    """
    out: Posterior = {}
    for name in eta:
        if name.endswith("/h"):
            site = name.removesuffix("/h")
            h, J = eta[name].double(), eta[f"{site}/J"].double()
            if not is_mapped(J.sum()) and not bool((J > 0).all()):
                raise ValueError(
                    f"{site}: a precision is not positive (smallest {J.min():.3g}); damp or skip this factor"
                )
            out[site] = ((h / J).to(dtype), J.rsqrt().to(dtype))
    return out


def shortened(step: Tree, lowest: Tree) -> Tree:
    """A step in natural parameters, with each coordinate scaled down until its precision is at least `lowest`.

    `lowest` holds `site/J` <= 0: how much precision may be taken away. Both parameters of a coordinate are scaled
    alike, so that it stays the same factor to a smaller power.
    """
    out: Tree = {}
    for name, least in lowest.items():
        site, J = name.removesuffix("/J"), step[name]
        power = torch.where(least > J, least / torch.where(least > J, J, -1.0), 1.0)
        out[f"{site}/h"], out[name] = power * step[f"{site}/h"], power * J
    return out


def em_step(mu: Tree, v: Tree, first: Tree, second: Tree, *, rate: float, floor: float) -> tuple[Tree, Tree]:
    """(mu, v) of a population N(mu, diag v) after a step of stochastic approximation EM; v is at least `floor`.

    Its two moments move by `rate` of the way to those of the draws z, of which `first` and `second` are the means of
    z - mu and (z - mu)^2.
    """
    move = {k: rate * d for k, d in first.items()}
    moved = {k: (1 - rate) * v[k] + rate * second[k] - move[k].square() for k in v}
    return {k: m + move[k] for k, m in mu.items()}, {k: t.clamp_min(floor) for k, t in moved.items()}


def tied(variance: Tree, how: str) -> Tree:
    """One variance a coordinate as it is, one a "tensor", or one for all ("isotropic"): means over coordinates."""
    if how == "coordinate":
        return variance
    if how == "tensor":
        return {s: v.mean() for s, v in variance.items()}
    one = torch.cat([v.reshape(-1) for v in variance.values()]).mean()
    return {s: one.clone() for s in variance}


def spare(q: Tree, prior: Tree, least: float) -> Tree:
    """`site/J` <= 0, as `shortened` takes it: what of its precision q may lose to keep `least` of the prior's."""
    return {k: -(q[k] - least * v).clamp_min(0) for k, v in prior.items() if k.endswith("/J")}


def pool(q: Posterior, weights: Tensor, rule: str = "scale", *, prior: Posterior | None = None) -> Posterior:
    """One Normal from C clients' Normals; leaves (C, ...) -> (...), `weights` (C,) normalised here.

    - `scale`: mean of loc and mean of scale.
    - `unconstrained`: mean of loc and of rho, scale = softplus(rho): biased low, a geometric-like mean.
    - `variance`: mean of loc and of scale^2 (Rahman, Nguyen, 2026, "variance averaging").
    - `mixture`: the mixture's mean and variance, which holds the spread between clients too.
    - `product`: natural parameters add and the prior is counted once: J = prior.J + sum_k (J_k - prior.J). Needs
      `prior`; weights decide only who takes part (> 0), since every likelihood counts once.

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
