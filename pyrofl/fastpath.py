"""The fast path of `Program.loss`: one draw of all weights, closed-form KL, no tracing.

It serves lifted networks (`Bayesian`) whose priors are on all real numbers and have no latent hyper-parameters, under a
mean-field Normal or a Delta guide, and gives the numbers of the traced ELBO from the same noise (a test holds it to
that).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDelta
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.func import vmap

from .bayesian import Bayesian, forward_pass
from .data import Batch
from .guides import Normal
from .handlers import is_real, standard_noise
from .likelihoods import Likelihood, parameters
from .meanfield import draw_and_kl, positive_scale
from .tree import Ravel, Tree, blocks

if TYPE_CHECKING:
    from .program import Program


class FastPath:
    """ELBO and predictions of one lifted network, by `functional_call` of the plain network."""

    def __init__(self, program: Program):
        model = program.model
        assert isinstance(model, Bayesian)
        self.likelihood = model.likelihood
        self.mean_field = isinstance(program.guide, Normal)
        self.closed = program.closed
        self.size = sum(w.value.numel() for w in model.weights)  # D
        self.sites = [w.site for w in model.weights]
        self.shapes = [w.value.shape for w in model.weights]
        self.sizes = [w.value.numel() for w in model.weights]
        self.loc_names = [program.loc_name(s) for s in self.sites]
        self.scale_names = [program.scale_name(s) for s in self.sites] if self.mean_field else []
        with torch.no_grad():
            self.priors = [model.prior(w) for w in model.weights]
        self.gaussian = self._gaussian(self.priors)
        self.flat = all(isinstance(p, dist.ImproperUniform) for p in self.priors)
        head = "model.net."
        self.fixed = [k for k in program.theta0 if k.startswith(head)]
        names = [s.removeprefix("net.") for s in self.sites] + [k.removeprefix(head) for k in self.fixed]
        self.net = _Swapped(model.plain[0], names)
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
            and all(is_real(guide.prototype_trace.nodes[w.site]["fn"].support) for w in model.weights)
        )
        return FastPath(program) if fits else None

    def _gaussian(self, priors: list[dist.Distribution]) -> tuple[Tensor | float, Tensor | float] | None:
        """(loc, scale) of all priors where every prior is a Normal: flat vectors, or numbers where all are alike."""
        bases = [p.base_dist if isinstance(p, dist.Independent) else p for p in priors]
        if not all(isinstance(b, dist.Normal) for b in bases):
            return None
        loc, scale = (
            torch.cat([getattr(b, what).expand(s).reshape(-1) for b, s in zip(bases, self.shapes)])
            for what in ("loc", "scale")
        )
        if (loc == loc[0]).all() and (scale == scale[0]).all():
            return float(loc[0]), float(scale[0])
        return loc, scale

    def elbo(self, theta: Tree, batch: Batch, key: Tensor, prior: Tree | None) -> tuple[Tensor, Tensor]:
        """(mean of -log-likelihood over the rows that count, KL), in nats."""
        phi = prior or {}
        if self.mean_field:
            (both,) = blocks(theta, (*self.loc_names, *self.scale_names))  # (2 D,)
            loc, rho = both.chunk(2)
            noise = standard_noise(key, loc)
            if self.gaussian is not None and self.closed:
                m, s = self._override(phi) if phi else self.gaussian
                w, kl = draw_and_kl(both, noise, m, s)
            else:
                scale = positive_scale(rho)
                w = loc + scale * noise
                kl = self._kl(loc, scale, w, phi)
        else:
            (w,) = blocks(theta, self.loc_names)
            kl = self._kl(w, None, w, phi)
        likelihood, out = self._run(theta, w, batch.x, key, rows=batch.distinct)
        return -torch.dot(batch.weight, likelihood.log_prob(out, batch.y)), kl

    def fits(self, ravel: Ravel) -> bool:
        """Whether vectors laid out by `ravel` hold all locations, then all scales, so that both are slices."""
        return ravel.cut(torch.empty(sum(ravel.sizes), device="meta"), (*self.loc_names, *self.scale_names)) is not None

    def together(
        self, ravel: Ravel, flat: Tensor, held: Tree, batch: Batch, keys: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`elbo` of C clients stacked: flat (C, P), noise (C, D) -> two (C,). Only the network runs under `vmap`."""
        cut = ravel.cut(flat, (*self.loc_names, *self.scale_names))
        assert cut is not None, "call `fits` first"
        (both,) = cut
        if noise is None:
            w, kl = both, vmap(lambda v: self._kl(v, None, v, {}))(both)
        elif self.gaussian is not None and self.closed:
            w, kl = draw_and_kl(both, noise, *self.gaussian)
        else:
            loc, rho = both.chunk(2, -1)
            scale = positive_scale(rho)
            w = torch.addcmul(loc, scale, noise)
            kl = vmap(lambda a, b, c: self._kl(a, b, c, {}))(loc, scale, w)
        names = (*self.fixed, *self.noise_parameters)
        points = {k: ravel.pick(flat, k) if k in ravel.names else held[k] for k in names}

        def rows(w: Tensor, points: Tree, batch: Batch, key: Tensor) -> Tensor:
            likelihood, out = self._run(points, w, batch.x, key, rows=batch.distinct)
            return -torch.dot(batch.weight, likelihood.log_prob(out, batch.y))

        return vmap(rows)(w, points, batch, keys), kl

    def predict(
        self, theta: Tree, x: Tensor, key: Tensor | None, *, dropout: bool, rows: Tensor | None = None
    ) -> Tensor:
        (w,) = blocks(theta, self.loc_names)
        if self.mean_field and key is not None:
            (rho,) = blocks(theta, self.scale_names)
            w = torch.addcmul(w, positive_scale(rho), standard_noise(key, w))
        likelihood, out = self._run(theta, w, x, key if dropout else None, rows=rows)
        return parameters(likelihood(out))

    def _run(
        self, theta: Tree, w: Tensor, x: Tensor, key: Tensor | None, *, rows: Tensor | None = None
    ) -> tuple[Likelihood, Tensor]:
        """The likelihood, with its own parameters from the tree, and the network's output (B, K)."""
        pieces = torch.split(w, self.sizes)
        tensors = [v.view(n) for v, n in zip(pieces, self.shapes)] + [theta[k] for k in self.fixed]
        with forward_pass(key, rows):
            out = self.net(tensors, x)
        return self.likelihood.holding({short: theta[k] for k, short in self.noise_parameters.items()}), out

    def _kl(self, loc: Tensor, scale: Tensor | None, w: Tensor, phi: Tree) -> Tensor:
        """KL(q || p) over all weights; for a point mass, -log p(w)."""
        if self.flat and not phi:
            return w.new_zeros(())
        if self.gaussian is not None and scale is None:
            m, s = self._override(phi) if phi else self.gaussian
            z, log_s = (w - m) / s, math.log(s) * len(w) if isinstance(s, float) else torch.log(s).sum()
            return 0.5 * (torch.dot(z, z) + math.log(2 * math.pi) * len(w)) + log_s
        return self._kl_by_site(loc, scale, w, phi)

    def _override(self, phi: Tree) -> tuple[Tensor, Tensor]:
        """(loc, scale) of all priors as flat vectors, those that `phi` names taken from it."""
        assert self.gaussian is not None
        flat = []
        for name, own in zip(("loc", "scale"), self.gaussian):
            like = next(iter(phi.values()))
            own = (like.new_tensor(own) if isinstance(own, float) else own).expand(sum(self.sizes))
            pieces = zip(self.sites, torch.split(own, self.sizes))
            flat.append(torch.cat([phi.get(f"{site}/{name}", piece).reshape(-1) for site, piece in pieces]))
        return flat[0], flat[1]

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


class _Swapped:
    """`net(x)` with the named tensors in place of its own: what `functional_call` does, its lookups done once."""

    def __init__(self, net: nn.Module, names: list[str]):
        self.net = net
        self.slots: list[tuple[dict[str, Any], str]] = []
        for name in names:
            path, _, leaf = name.rpartition(".")
            module: Any = net.get_submodule(path)
            self.slots.append((module._parameters if leaf in module._parameters else module._buffers, leaf))
        self.own = [store[leaf] for store, leaf in self.slots]

    def __call__(self, tensors: list[Tensor], x: Tensor) -> Tensor:
        try:
            for (store, leaf), v in zip(self.slots, tensors):
                store[leaf] = v
            return self.net(x)
        finally:
            for (store, leaf), v in zip(self.slots, self.own):
                store[leaf] = v


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
