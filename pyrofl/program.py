"""Program: a Pyro model and its guide as pure functions of named tensors.

`loss` is the negative ELBO of stochastic variational inference. A mean-field Normal or Delta guide over a lifted
network takes the fast path (`fastpath`); everything else is traced by Pyro's own handlers.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoNormal, init_to_feasible, init_to_value
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.func import functional_call

from . import likelihoods, random
from .bayesian import NORMS, BatchNorm, Bayesian, Dropout, forward_pass, purify_
from .data import Batch, Data
from .fastpath import FastPath, divergence
from .guides import Normal
from .handlers import Image, contained, is_real, keyed, latents, localise_, observations, quiet, reprior, standard_noise
from .meanfield import Posterior
from .tree import Ravel, Tree

_JITTER = 0.1  # spread of initial locations where the model states no initial value
_LOC, _SCALE = "guide.locs.", "guide.scales."


class Draw(NamedTuple):
    """One draw from a posterior (or prior), with its log densities in nats, float64."""

    sites: Tree  # each site's value, on the site's own support
    log_q: Tensor  # () log density of the guide; that of the prior, for a draw from it
    log_prior: Tensor  # () log density of the prior


class _Joint(nn.Module):
    """Model and guide under one root, so that one `functional_call` swaps the tensors of both."""

    def __init__(self, model: PyroModule, guide: nn.Module):
        super().__init__()
        self.model, self.guide = model, guide

    def forward(self, run: Callable[[PyroModule, nn.Module], Any]) -> Any:
        return run(self.model, self.guide)


class Program:
    """A Pyro model `model(x (B, ...), y (B,) | None)` with one observed site, and an autoguide.

    `guide(model, init_loc_fn=...)` builds the guide. `x`, `y` are a few example rows: the model is traced on them once,
    with Pyro's validation on, so that its own shape errors reach the user here. `kl` is "closed" (the KL in closed form
    where both densities allow it, as in Pyro's TraceMeanField_ELBO) or "draw" (log q - log p at the draw, as in
    Trace_ELBO). `beta` weighs the KL in the loss: 1 is each client's own ELBO, 1/K counts the prior once over K
    clients. A step averages over `particles` draws.
    """

    def __init__(
        self,
        model: PyroModule,
        x: Tensor,
        y: Tensor,
        *,
        guide: Callable[..., Any] = Normal,
        kl: str = "closed",
        beta: float = 1.0,
        particles: int = 1,
    ):
        if kl not in ("closed", "draw"):
            raise ValueError(f'kl must be "closed" or "draw", got {kl!r}')
        if particles < 1:
            raise ValueError(f"particles must be at least 1, got {particles}")
        if not isinstance(model, PyroModule):
            name = type(model).__name__
            raise TypeError(f"{name} is not a PyroModule: lift a network with Bayesian(net, prior, likelihood)")
        if not 0 <= beta < math.inf:
            raise ValueError(f"inference.beta must be 0 or positive, and finite, got {beta}")
        self.closed, self.beta, self.particles, self._example = kl == "closed", beta, particles, (x, y)
        self.model = copy.deepcopy(model)
        if not isinstance(model, Bayesian):
            purify_(self.model)
        localise_(self.model)
        weights = model.weights if isinstance(model, Bayesian) else ()
        self._start = {w.site: w.value for w in weights}
        self._guide = guide
        self.observed = self._check(x, y)
        self.guide = self._build_guide(self.model)
        self._check_priors()
        self._joint = _Joint(self.model, self.guide)
        self._norms = {p for p, m in self.model.named_modules() if isinstance(m, NORMS)}
        batch_norms = [p for p, m in self.model.named_modules() if isinstance(m, BatchNorm)]
        named: Tree = dict(self._joint.named_parameters())
        self.trainable = frozenset(named)
        self.buffers = frozenset(f"model.{p}.{s}" for p in batch_norms for s in ("running_mean", "running_var"))
        named.update({k: v for k, v in self._joint.named_buffers() if k in self.buffers})
        self.theta0: Tree = {k: v.detach().clone() for k, v in named.items()}
        self.has_dropout = any(isinstance(m, Dropout) for m in self.model.modules())
        self._aux = self._mean_field_sites()
        self._fast = FastPath.of(self)
        self._check_loss(x, y)

    # ------------------------------------------------------------------ checks, once

    def _build_guide(self, model: PyroModule) -> Any:
        with _own_stream():
            guide = self._guide(poutine.block(model, hide=[self.observed]), init_loc_fn=self._start_at())
            guide(*self._example)
        return guide

    def _start_at(self) -> Callable[..., Any]:
        values = {site: v.clone() for site, v in self._start.items()}  # guides keep what they are given as parameters
        return init_to_value(values=values, fallback=init_to_feasible)

    def _check(self, x: Tensor, y: Tensor) -> str:
        """Trace the model with validation on; returns the name of its observed site."""
        started = InitMessenger(self._start_at())(self.model)
        everything = torch.ones_like(y, dtype=torch.bool)
        with _own_stream(), pyro.validation_enabled(True), forward_pass(rows=everything):
            trace = poutine.trace(started).get_trace(x, y)
        seen = observations(trace)
        if len(seen) != 1:
            raise ValueError(
                f"the model must observe one site, it observes {len(seen)} ({', '.join(seen) or 'none'}): write "
                "pyro.sample('y', ..., obs=y) once, inside pyro.plate('data', len(x))"
            )
        fn = trace.nodes[seen[0]]["fn"]
        self.kind = likelihoods.kind_of(fn)
        if fn.batch_shape != (len(x),):
            shape = tuple(fn.batch_shape)
            raise ValueError(f"site {seen[0]!r} has batch shape {shape}; it must be ({len(x)},), one entry a row")
        width = likelihoods.parameters(fn).shape[-1]
        if self.kind == "categorical" and not bool(((y >= 0) & (y < width)).all()):
            raise ValueError(f"labels go from {int(y.min())} to {int(y.max())}, but the model has {width} outputs")
        for name in latents(trace):
            rows = trace.nodes[seen[0]]["cond_indep_stack"]
            if any(frame in rows for frame in trace.nodes[name]["cond_indep_stack"]):
                raise ValueError(f"site {name!r} is a latent of every row: only latents shared by all rows can travel")
        for name, start in self._start.items():
            _check_start(name, trace.nodes[name]["fn"], start)
        return seen[0]

    def _check_priors(self) -> None:
        """Refuse priors without an integral, to which no posterior but a point mass has a KL."""
        flat = [s for s in self.sites if _is_improper(self.guide.prototype_trace.nodes[s]["fn"])]
        if flat and not isinstance(self.guide, AutoDelta):
            raise ValueError(
                f"the prior of {flat[0]!r} is flat: it has no integral, so a {type(self.guide).__name__} guide has no "
                "KL to it; use guide = 'delta', or a proper prior such as 'gaussian'"
            )

    def _check_loss(self, x: Tensor, y: Tensor) -> None:
        batch, key = Batch.of(x, y), random.root(0).to(x.device)
        with torch.no_grad():
            here, there = (self.parts(theta, batch, key)[1]["nll"] for theta in (self.theta0, self._moved(key)))
        if torch.equal(here, there):
            raise ValueError(
                "the likelihood does not move with the guide's parameters: the model does not use its latent sites"
            )

    def _moved(self, key: Tensor) -> Tree:
        """`theta0` with a little noise on all that is trained."""
        step = lambda k, v: 0.01 * random.normal(random.fold(key, k), v.shape, v.dtype) if k in self.trainable else 0.0
        return {k: v + step(k, v) for k, v in self.theta0.items()}

    def _mean_field_sites(self) -> dict[str, torch.Size]:
        """Latent site -> unconstrained shape, where the guide is an AutoNormal; empty for other guides."""
        if not isinstance(self.guide, AutoNormal):
            return {}
        return {s: self.theta0[self.loc_name(s)].shape for s in self.guide.prototype_trace.stochastic_nodes}

    # ------------------------------------------------------------------ names

    def loc_name(self, site: str) -> str:
        """Name in the tree of a site's location."""
        if isinstance(self.guide, AutoNormal):
            return f"{_LOC}{site}_unconstrained"
        plain = f"guide.{site}"
        return plain if plain in self.theta0 else f"{plain}_unconstrained"

    def scale_name(self, site: str) -> str:
        """Name in the tree of a site's unconstrained scale (mean-field guides)."""
        return f"{_SCALE}{site}_unconstrained"

    def path(self, name: str) -> str:
        """The model's own path of a tensor of the tree: "net.head.weight" for its location, scale or point."""
        for head in (_LOC, _SCALE, "guide.", "model."):
            if name.startswith(head):
                return name.removeprefix(head).removesuffix("_unconstrained")
        return name

    def names(self, where: str) -> frozenset[str]:
        """Names in the tree of the network's "head", "body" or "norm" (by module type, never by substring)."""
        if where == "norm":
            found = {k for k in self.theta0 if self.path(k).rpartition(".")[0] in self._norms}
        else:
            found = {k for k in self.theta0 if self.path(k).removeprefix("net.").startswith(f"{where}.")}
        if not found:
            need = "normalisation layer" if where == "norm" else f"attribute .{where} with parameters"
            raise ValueError(f"names({where!r}): the network has no {need}, or its guide does not keep sites apart")
        return frozenset(found)

    @property
    def posterior_names(self) -> frozenset[str]:
        """Names in the tree of the locations and scales of a mean-field guide: what `guide_of` returns."""
        return frozenset(name(s) for s in self.sites for name in (self.loc_name, self.scale_name))

    # ------------------------------------------------------------------ pure functions

    def init(self, key: Tensor) -> Tree:
        """Initial guide parameters: locations drawn from `key` with the mean and spread of the network's own start.

        A tensor that the network starts at a constant (zero biases, unit norm scales) stays there, and so do the scales
        of the guide and the running statistics.
        """
        return {k: self._initial(k, v, random.fold(key, k)) for k, v in self.theta0.items()}

    def _initial(self, name: str, value: Tensor, key: Tensor) -> Tensor:
        if name in self.buffers or name.startswith((_SCALE, "model.likelihood.", "guide.locs.prior.")):
            return value.clone()
        noise = random.normal(key.to(value.device), value.shape, value.dtype)
        if self.path(name) not in self._start and not name.startswith("model."):
            return value + _JITTER * noise
        spread = value.std() if value.numel() > 1 else value.new_zeros(())
        return torch.where(spread > 0, value.mean() + spread * noise, value)

    def loss(self, theta: Tree, batch: Batch, key: Tensor, prior: Tree | None = None) -> Tensor:
        """-ELBO / n of a batch, a scalar in nats per row: mean of -log p(y | x, w) over live rows + beta KL(q||p) / n.

        `prior` (`site/loc`, `site/scale`; see `as_prior`) replaces the priors it names.
        """
        return self.parts(theta, batch, key, prior)[0]

    def parts(self, theta: Tree, batch: Batch, key: Tensor, prior: Tree | None = None) -> tuple[Tensor, Tree]:
        """The loss and, detached, its two parts, `nll` and the `penalty`, all in nats per row."""
        elbo = self._fast.elbo if self._fast is not None else self.traced_elbo
        if self.particles == 1:
            nll, kl = elbo(theta, batch, key, prior)
        else:
            draws = [elbo(theta, batch, random.fold(key, s), prior) for s in range(self.particles)]
            nll, kl = (torch.stack(parts).mean() for parts in zip(*draws))
        kl = kl * self.beta / batch.n
        return nll + kl, {"nll": nll.detach(), self.penalty: kl.detach()}

    @property
    def fast_path(self) -> FastPath | None:
        """The fast path, where this model and guide have one."""
        return self._fast

    def trains_together(self, loss: Any, ravel: Ravel) -> bool:
        """Whether `loss` is this program's own and clients' vectors laid out by `ravel` can be trained stacked."""
        own = getattr(loss, "__func__", None) is Program.parts and self.particles == 1
        return own and self._fast is not None and self._fast.fits(ravel)

    def traced_elbo(self, theta: Tree, batch: Batch, key: Tensor, prior: Tree | None = None) -> tuple[Tensor, Tensor]:
        """(mean of -log-likelihood over the rows that count, KL) in nats, by Pyro's traces: the fast path's oracle."""

        def run(model: PyroModule, guide: nn.Module) -> tuple[Tensor, Tensor]:
            with keyed(random.fold(key, "guide"), self._noise(key)):
                q = poutine.trace(guide).get_trace(batch.x, batch.y)
            with forward_pass(key, batch.distinct), reprior(prior or {}):
                p = poutine.trace(poutine.replay(model, q)).get_trace(batch.x, batch.y)
            p.compute_log_prob()
            loglik = p.nodes[self.observed]["unscaled_log_prob"]  # (B,)
            return -(batch.weight * loglik).sum(), self._kl(q, p)

        return self._call(theta, run)

    def _kl(self, q: Any, p: Any) -> Tensor:
        """KL(q || p) of two traces, site by site."""
        q.compute_log_prob()
        total, done = [], set()
        for name in latents(p):
            prior, mine = p.nodes[name]["fn"], q.nodes.get(f"{name}_unconstrained", q.nodes[name])
            base = _unconstrained(prior) if self.closed else None
            if base is not None and not isinstance(mine["fn"], pyro.distributions.Delta):
                total.append(divergence(mine["fn"], base, mine["value"], closed=True))
                done |= {name, f"{name}_unconstrained"}
            else:
                total.append(-p.nodes[name]["unscaled_log_prob"].sum())
        total += [q.nodes[n]["unscaled_log_prob"].sum() for n in latents(q) if n not in done]
        return torch.stack(total).sum()

    def predict(
        self, theta: Tree, x: Tensor, key: Tensor | None, *, dropout: bool = False, rows: Tensor | None = None
    ) -> Tensor:
        """Predictive parameters (B, K) of one posterior draw (see `likelihoods`); `key=None`: at the posterior mean.

        Batch normalisation uses its running statistics, or, as in training, those of the `rows` (B,) bool.
        """
        if self._fast is not None:
            return self._fast.predict(theta, x, key, dropout=dropout, rows=rows)
        y = self._example[1][:1].to(x.device).expand(len(x))

        def run(model: PyroModule, guide: nn.Module) -> Tensor:
            with keyed(random.fold(random.root(0) if key is None else key, "guide"), self._noise(key)):
                q = poutine.trace(guide).get_trace(x, y)
            with forward_pass(key if dropout else None, rows):
                p = poutine.trace(poutine.replay(model, q)).get_trace(x, y)
            return likelihoods.parameters(p.nodes[self.observed]["fn"])

        return self._call(theta, run)

    def draw(self, theta: Tree, key: Tensor) -> Draw:
        """The draw from the guide that `predict` takes from the same key; both densities are on the sites' supports."""
        x, y = (v[:1].to(key.device) for v in self._example)

        def run(model: PyroModule, guide: nn.Module) -> Draw:
            with keyed(random.fold(key, "guide"), self._noise(key)):
                q = poutine.trace(guide).get_trace(x, y)
            with forward_pass():
                p = poutine.trace(poutine.replay(model, q)).get_trace(x, y)
            sites = {n: p.nodes[n]["value"].detach() for n in latents(p)}
            return Draw(sites, _log_density(q), _log_density(p))

        with torch.no_grad():
            return self._call(theta, run)

    def draw_prior(self, theta: Tree, key: Tensor) -> Draw:
        """A draw from the declared prior; `theta` gives what has none. Improper priors cannot be drawn from."""
        p = self.trace_prior(theta, key)
        with quiet(), torch.no_grad():
            log_prior = _log_density(p)
        return Draw({n: p.nodes[n]["value"].detach() for n in latents(p)}, log_prior, log_prior)

    def prior_moments(self, theta: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """site -> mean, and site -> variance, of its prior given the sites before it, at the draw of `draw_prior`.

        Of a distribution without formulas they are the draw and 0; both averaged over keys give the moments of every
        site's own prior, by the law of total variance. Infinite and undefined moments are inf or NaN.
        """
        p = self.trace_prior(theta, key)
        pairs = {n: _mean_and_variance(p.nodes[n]["fn"], p.nodes[n]["value"].detach()) for n in latents(p)}
        return {n: mean for n, (mean, _) in pairs.items()}, {n: variance for n, (_, variance) in pairs.items()}

    def trace_prior(self, theta: Tree, key: Tensor, given: Tree | None = None) -> Any:
        """Pyro's trace of the draw that `draw_prior` takes from the same key; `given` fixes the sites that it names."""
        x, y = (v[:1].to(key.device) for v in self._example)

        def run(model: PyroModule, guide: nn.Module) -> Any:
            with forward_pass(), keyed(key), poutine.condition(data=given or {}):
                return poutine.trace(model).get_trace(x, y)

        with torch.no_grad():
            return self._call(theta, run)

    def log_likelihood(self, theta: Tree, data: Data, *, size: int = 1000) -> Tensor:
        """Mean over the client's rows of log p(y | x) at the posterior mean, () in nats a row; 0 without rows."""
        total = torch.zeros((), dtype=torch.float64, device=data.n.device)
        for batch in data.chunks(size):
            out = self.predict(theta, batch.x, None)
            each = likelihoods.distribution(self.kind, out, validate_args=False).log_prob(batch.y)  # (B,)
            total = total + torch.where(batch.live, each, 0).sum()
        return total / data.n.clamp_min(1)

    def _noise(self, key: Tensor | None) -> Tree:
        """The standard normals of every latent site of a mean-field guide, from one draw; zeros for key=None."""
        if not self._aux:
            return {}
        like = {f"{s}_unconstrained": self.theta0[self.loc_name(s)] for s in self._aux}
        ravel = Ravel(like)
        flat = ravel.flat(like)
        return ravel.tree(torch.zeros_like(flat) if key is None else standard_noise(key, flat))

    def _call(self, theta: Tree, run: Callable[..., Any]) -> Any:
        with quiet():
            return functional_call(self._joint, dict(theta), (run,))

    def refresh(self, theta: Tree, data: Data, *, size: int = 256) -> Tree:
        """`theta` with its batch-norm statistics recomputed over the client's rows at the posterior mean.

        Rows go through in chunks of `size`; the chunks' means and variances are pooled exactly, layer by layer.
        """
        if not self.buffers:
            return theta
        sums: dict[str, list[Tensor]] = {}
        for batch in data.chunks(size):
            for layer, (mean, var) in self._statistics(theta, batch).items():
                w = batch.distinct.sum()
                old = sums.setdefault(layer, [torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(w)])
                for i, v in enumerate((w * mean, w * (var + mean.square()), w)):
                    old[i] = old[i] + v
        out = dict(theta)
        for layer, (first, second, w) in sums.items():
            mean = first / w.clamp_min(1)
            for stat, v in (("running_mean", mean), ("running_var", second / w.clamp_min(1) - mean.square())):
                name = self._buffer(layer, stat)
                out[name] = torch.where(w > 0, v.clamp_min(0) if stat == "running_var" else v, theta[name])
        return out

    def _buffer(self, layer: str, stat: str) -> str:
        found = [k for k in self.buffers if k in (f"model.net.{layer}.{stat}", f"model.{layer}.{stat}")]
        return found[0]

    def _statistics(self, theta: Tree, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        def run(model: PyroModule, guide: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
            with keyed(random.root(0), self._noise(None)):
                q = poutine.trace(guide).get_trace(batch.x, batch.y)
            with forward_pass(rows=batch.distinct) as now:
                poutine.replay(model, q)(batch.x, batch.y)
            return now.statistics

        return self._call(theta, run)

    def features(self, theta: Tree, x: Tensor) -> Tensor:
        """What the network's `.head` receives, (B, H), at the posterior mean; batch norms use running statistics."""
        seen: list[Tensor] = []
        head = getattr(self.model, "net", self.model).head
        handle = head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        try:
            self._call(theta, functools.partial(self._at_the_mean, x))
        finally:
            handle.remove()
        return seen[-1]

    def _at_the_mean(self, x: Tensor, model: PyroModule, guide: nn.Module) -> None:
        y = self._example[1][:1].to(x.device).expand(len(x))
        with keyed(random.root(0), self._noise(None)):
            q = poutine.trace(guide).get_trace(x, y)
        with forward_pass():
            poutine.replay(model, q)(x, y)

    # ------------------------------------------------------------------ posteriors

    def posterior(self, theta: Tree) -> Posterior:
        """site -> (loc, scale) of the guide, in unconstrained space; the scale of a point mass is 0."""
        if isinstance(self.guide, AutoDelta):
            return {s: (theta[self.loc_name(s)], torch.zeros_like(theta[self.loc_name(s)])) for s in self.sites}
        self._need_mean_field("posterior")
        to_scale = transform_to(self.guide.scale_constraint)
        return {s: (theta[self.loc_name(s)], to_scale(theta[self.scale_name(s)])) for s in self.sites}

    def deviation(self, theta: Tree, site: str) -> Tensor:
        """The scale of one site of a mean-field guide, in unconstrained space."""
        return transform_to(self.guide.scale_constraint)(theta[self.scale_name(site)])

    def guide_of(self, q: Posterior) -> Tree:
        """The guide's parameters of a posterior: the inverse of `posterior`."""
        self._need_mean_field("guide_of")
        inverse = transform_to(self.guide.scale_constraint).inv
        locs = {self.loc_name(s): loc for s, (loc, _) in q.items()}
        return {**locs, **{self.scale_name(s): inverse(scale) for s, (_, scale) in q.items()}}

    def as_prior(self, q: Posterior) -> Tree:
        """The `prior` argument of `loss` that makes every prior equal to q: `site/loc` and `site/scale`."""
        return {f"{s}/{p}": v for s, pair in q.items() for p, v in zip(("loc", "scale"), pair)}

    def prior_posterior(self) -> Posterior | None:
        """The declared priors as {site: (loc, scale)} where all are Normals that depend on nothing else, else None."""
        if self._fast is None or self._fast.gaussian is None:
            return {s: (loc.clone(), scale.clone()) for s, (loc, scale) in (self._normal_priors or {}).items()} or None
        like = {s: self.theta0[self.loc_name(s)] for s in self.sites}
        ravel = Ravel(like)
        flat = ravel.flat(like)
        loc, scale = (ravel.tree(torch.as_tensor(v).to(flat).expand_as(flat)) for v in self._fast.gaussian)
        return {s: (loc[s].clone(), scale[s].clone()) for s in like}

    @functools.cached_property
    def _normal_priors(self) -> Posterior | None:
        """(loc, scale) of every site by tracing, or None where one is no Normal or moves with a latent or parameter."""
        found, key = _normals(self.guide.prototype_trace, self.sites), random.root(0).to(self.example.device)
        if found is None:
            return None
        again = _normals(self.trace_prior(self._moved(key), key), self.sites)
        fixed = again is not None and all(torch.equal(a, b) for s in found for a, b in zip(found[s], again[s]))
        return {s: (loc.detach(), scale.detach()) for s, (loc, scale) in found.items()} if fixed else None

    @property
    def example(self) -> Tensor:
        """The inputs of the example rows, (B, ...)."""
        return self._example[0]

    @property
    def sites(self) -> tuple[str, ...]:
        """The latent sites, in the order of the model."""
        return tuple(self.guide.prototype_trace.stochastic_nodes)

    @property
    def mean_field(self) -> bool:
        """Whether the guide is a product of Normals, with a location and a scale for every site."""
        return isinstance(self.guide, AutoNormal)

    @property
    def penalty(self) -> str:
        """What is added to the loss's `nll`: the guide's "kl", or "neg_log_prior" of a point, which may be negative."""
        return "neg_log_prior" if self.point_mass else "kl"

    @property
    def flat(self) -> bool:
        """Whether no site has a prior, so that the loss of a point guide is the likelihood alone."""
        return all(_is_improper(self.guide.prototype_trace.nodes[s]["fn"]) for s in self.sites)

    @property
    def family(self) -> str:
        """The guide's family: "delta", "normal" (mean-field), or "other"."""
        return "delta" if self.point_mass else "normal" if self.mean_field else "other"

    @property
    def point_mass(self) -> bool:
        """Whether the guide has no spread, so that every draw of the weights is the same."""
        return isinstance(self.guide, AutoDelta)

    def _need_mean_field(self, what: str) -> None:
        if not self.mean_field:
            kind = type(self.guide).__name__
            raise TypeError(f"{what} needs a mean-field Normal guide, this one is {kind}; use guide = 'normal'")

    def to_pyro(self, theta: Tree) -> tuple[PyroModule, nn.Module]:
        """An ordinary Pyro model and guide that hold `theta`, for `Predictive`, notebooks and ArviZ; copies."""
        model = copy.deepcopy(self.model)
        joint = _Joint(model, self._build_guide(model))
        tensors = dict(joint.named_parameters()) | dict(joint.named_buffers())
        with torch.no_grad():
            for name, value in theta.items():
                tensors[name].copy_(value)
        return contained(joint.model), contained(joint.guide)


@contextmanager
def _own_stream() -> Iterator[None]:
    """Module-local parameters, and a forked generator: guides that start from a draw of the prior start alike."""
    with pyro.settings.context(module_local_params=True), torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        yield


_ELEMENTWISE = (
    pyro.distributions.Normal,
    pyro.distributions.Delta,
    pyro.distributions.Laplace,
    pyro.distributions.StudentT,
    pyro.distributions.Cauchy,
    pyro.distributions.HalfNormal,
    pyro.distributions.HalfCauchy,
)


def _log_density(trace: Any) -> Tensor:
    """Sum over the latent sites of log density, (); in float64, since it adds up one term for each weight."""
    total = torch.zeros((), dtype=torch.float64)
    for name in latents(trace):
        fn, value = trace.nodes[name]["fn"], trace.nodes[name]["value"]
        base = fn
        while isinstance(base, pyro.distributions.Independent | pyro.distributions.MaskedDistribution):
            base = base.base_dist
        value = value.double() if isinstance(base, _ELEMENTWISE) else value
        total = total.to(value.device) + fn.log_prob(value).double().sum()
    return total


def _unconstrained(prior: Any) -> Any | None:
    """The prior in the site's unconstrained space, where it has a form there: real priors, and LogNormals."""
    if is_real(prior.support):
        return prior
    return prior.base_dist if isinstance(prior, Image | pyro.distributions.LogNormal) else None


def _is_improper(fn: Any) -> bool:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, pyro.distributions.ImproperUniform)


def _mean_and_variance(fn: Any, value: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of `fn` in the shape of `value`, a draw from it; (value, 0) where there are no formulas."""
    if _is_improper(fn):
        return value, torch.full_like(value, math.inf)
    try:
        return fn.mean.expand(value.shape).detach(), fn.variance.expand(value.shape).detach()
    except NotImplementedError:
        return value, torch.zeros_like(value)


def _normals(trace: Any, sites: Sequence[str]) -> Posterior | None:
    """site -> (loc, scale) of a trace's priors, each in its site's shape, or None where one is no Normal."""
    found = {}
    for name in sites:
        base = shaped = trace.nodes[name]["fn"]
        while isinstance(base, pyro.distributions.Independent):
            base = base.base_dist
        if not isinstance(base, pyro.distributions.Normal):
            return None
        shape = shaped.batch_shape + shaped.event_shape
        found[name] = (base.loc.expand(shape), base.scale.expand(shape))
    return found


def _check_start(name: str, fn: Any, start: Tensor) -> None:
    """Refuse a prior that gives a network's weight density 0 where the network starts it."""
    if bool(fn.support.check(start).all()):
        return
    support = fn.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    while isinstance(fn, pyro.distributions.Independent | pyro.distributions.MaskedDistribution):
        fn = fn.base_dist
    raise ValueError(
        f"the prior of {name!r} is a {type(fn).__name__}, whose support {support} does not hold the values that the "
        f"network starts it at, {float(start.min()):.3g} to {float(start.max()):.3g}: take a prior on all real "
        "numbers, such as 'gaussian', start the network inside the support, or name the site in points"
    )
