"""The fast path of `Program.loss`: one draw of all weights, closed-form KL, no tracing.

It serves lifted networks (`Bayesian`) whose priors have no latent hyper-parameters, under a mean-field Normal or a
Delta guide, and gives the numbers of the traced ELBO from the same noise (a test holds it to that).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDelta
from torch import Tensor
from torch.distributions import kl_divergence
from torch.func import functional_call

from .bayesian import Bayesian, forward_pass
from .data import Batch
from .guides import Normal
from .handlers import standard_noise
from .likelihoods import parameters
from .meanfield import gaussian_kl, positive_scale
from .tree import Tree

if TYPE_CHECKING:
    from .program import Program


class FastPath:
    """ELBO and predictions of one lifted network, by `functional_call` of the plain network."""

    def __init__(self, program: Program):
        model = program.model
        assert isinstance(model, Bayesian)
        self.net, self.likelihood = model.plain[0], model.likelihood
        self.mean_field = isinstance(program.guide, Normal)
        self.closed = program.closed
        self.sites = [w.site for w in model.weights]
        self.shapes = [w.value.shape for w in model.weights]
        self.sizes = [w.value.numel() for w in model.weights]
        self.loc_names = [program.loc_name(s) for s in self.sites]
        self.scale_names = [program.scale_name(s) for s in self.sites] if self.mean_field else []
        with torch.no_grad():
            self.priors = [model.prior(w) for w in model.weights]
        self.gaussian = self._gaussian(self.priors)
        head = "model.net."
        self.fixed = {k: k.removeprefix(head) for k in program.theta0 if k.startswith(head)}
        self.noise_parameters = {
            k: k.removeprefix("model.likelihood.") for k in program.theta0 if k.startswith("model.likelihood.")
        }

    @staticmethod
    def of(program: Program) -> FastPath | None:
        """The fast path of a program, or None where only tracing will do."""
        model, guide = program.model, program.guide
        fits = (
            isinstance(model, Bayesian)
            and isinstance(guide, Normal | AutoDelta)
            and set(guide.prototype_trace.stochastic_nodes) <= {w.site for w in model.weights}
        )
        return FastPath(program) if fits else None

    def _gaussian(self, priors: list[dist.Distribution]) -> tuple[Tensor, Tensor] | None:
        """(loc, scale) of all priors, flat or scalar, where every prior is a Normal."""
        bases = [p.base_dist if isinstance(p, dist.Independent) else p for p in priors]
        if not all(isinstance(b, dist.Normal) for b in bases):
            return None
        loc, scale = (
            torch.cat([getattr(b, what).expand(s).reshape(-1) for b, s in zip(bases, self.shapes)])
            for what in ("loc", "scale")
        )
        if (loc == loc[0]).all() and (scale == scale[0]).all():
            return loc[0].clone(), scale[0].clone()
        return loc, scale

    def elbo(self, theta: Tree, batch: Batch, key: Tensor, prior: Tree | None) -> tuple[Tensor, Tensor]:
        """(sum of -log-likelihood over the live rows, KL), in nats."""
        loc = torch.cat([theta[k].reshape(-1) for k in self.loc_names])  # (D,)
        if self.mean_field:
            scale = positive_scale(torch.cat([theta[k].reshape(-1) for k in self.scale_names]))
            w = loc + scale * standard_noise(key, loc)
        else:
            scale, w = None, loc
        fn = self._run(theta, w, batch.x, key, rows=batch.distinct)
        loglik = fn.log_prob(batch.y)  # (B,)
        nll = -torch.where(batch.live, loglik, 0.0).sum()
        return nll, self._kl(loc, scale, w, prior or {})

    def predict(self, theta: Tree, x: Tensor, key: Tensor | None, *, dropout: bool) -> Tensor:
        w = torch.cat([theta[k].reshape(-1) for k in self.loc_names])
        if self.mean_field and key is not None:
            scale = positive_scale(torch.cat([theta[k].reshape(-1) for k in self.scale_names]))
            w = w + scale * standard_noise(key, w)
        return parameters(self._run(theta, w, x, key if dropout else None))

    def _run(
        self, theta: Tree, w: Tensor, x: Tensor, key: Tensor | None, *, rows: Tensor | None = None
    ) -> dist.Distribution:
        pieces = torch.split(w, self.sizes)
        tensors = {s.removeprefix("net."): v.view(n) for s, v, n in zip(self.sites, pieces, self.shapes)}
        tensors.update({short: theta[k] for k, short in self.fixed.items()})
        with forward_pass(key, rows):
            out = functional_call(self.net, tensors, (x,))
        noise = {short: theta[k] for k, short in self.noise_parameters.items()}
        return functional_call(self.likelihood, noise, (out,)) if noise else self.likelihood(out)

    def _kl(self, loc: Tensor, scale: Tensor | None, w: Tensor, phi: Tree) -> Tensor:
        """KL(q || p) over all weights; for a point mass, -log p(w)."""
        if self.gaussian is not None and (self.closed or scale is None):
            m, s = self._override(phi) if phi else self.gaussian
            if scale is not None:
                return gaussian_kl(loc, scale, m, s)
            z = (w - m) / s
            return (0.5 * (z * z + math.log(2 * math.pi)) + torch.log(s).expand_as(w)).sum()
        return self._kl_by_site(loc, scale, w, phi)

    def _override(self, phi: Tree) -> tuple[Tensor, Tensor]:
        assert self.gaussian is not None
        m, s = (g.expand(sum(self.sizes)) for g in self.gaussian)
        if len(phi) == 2 * len(self.sites):
            return tuple(torch.cat([phi[f"{n}/{p}"].reshape(-1) for n in self.sites]) for p in ("loc", "scale"))  # type: ignore[return-value]
        ms = [
            [phi.get(f"{n}/{p}", old).reshape(-1) for n, old in zip(self.sites, torch.split(g, self.sizes))]
            for p, g in (("loc", m), ("scale", s))
        ]
        return torch.cat(ms[0]), torch.cat(ms[1])

    def _kl_by_site(self, loc: Tensor, scale: Tensor | None, w: Tensor, phi: Tree) -> Tensor:
        total = []
        scales = torch.split(scale, self.sizes) if scale is not None else [None] * len(self.sizes)
        for site, shape, p, m, s, v in zip(
            self.sites,
            self.shapes,
            self.priors,
            torch.split(loc, self.sizes),
            scales,
            torch.split(w, self.sizes),
        ):
            if f"{site}/loc" in phi:
                p = dist.Normal(phi[f"{site}/loc"], phi[f"{site}/scale"], validate_args=False).to_event(len(shape))
            q = (
                None
                if s is None
                else dist.Normal(m.view(shape), s.view(shape), validate_args=False).to_event(len(shape))
            )
            total.append(divergence(q, p, v.view(shape), closed=self.closed))
        return torch.stack(total).sum()


def divergence(q: dist.Distribution | None, p: dist.Distribution, value: Tensor, *, closed: bool) -> Tensor:
    """KL(q || p), in closed form where torch has one and it is asked for, else log q - log p at the draw `value`.

    `q=None` is a point mass at `value`, with -log p(value).
    """
    if q is not None and closed:
        try:
            return kl_divergence(q, p).sum()
        except NotImplementedError:
            pass  # no closed form for this pair: the draw below is unbiased for it
    entropy = 0.0 if q is None else q.log_prob(value).sum()
    return entropy - p.log_prob(value).sum()
