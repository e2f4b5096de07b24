"""Effect handlers that turn a Pyro model and guide into pure functions of a key.

`keyed` draws every latent site from a key instead of torch's generator; `reprior` replaces priors by Normals held in a
tree; `quiet` holds the two settings that `functional_call` and `vmap` need, for the length of one call only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import biject_to, constraints

from . import random
from .tree import Tree


@contextmanager
def quiet() -> Iterator[None]:
    """Module-local parameters on (else `functional_call` would be ignored) and validation off (it branches on data)."""
    with ExitStack() as stack:
        stack.enter_context(pyro.settings.context(module_local_params=True))
        stack.enter_context(pyro.validation_enabled(False))
        yield


def draw(fn: dist.Distribution, key: Tensor, noise: Tensor | None = None) -> Tensor:
    """One reparametrised draw of `fn` from `key`; `noise` replaces the standard normals where `fn` uses them.

    Normals of every shape work under `vmap` too. A distribution without a rule here is drawn by its own sampler from a
    generator seeded with the key, which works in the sequential engine only.
    """

    def normal(shape: torch.Size, like: Tensor) -> Tensor:
        return random.normal(key, shape, like.dtype) if noise is None else noise.reshape(shape)

    if isinstance(fn, dist.Independent | dist.MaskedDistribution):
        return draw(fn.base_dist, key, noise)
    if isinstance(fn, dist.Normal):
        return fn.loc + fn.scale * normal(fn.loc.shape, fn.loc)
    if isinstance(fn, dist.Delta):
        return fn.v
    if isinstance(fn, dist.MultivariateNormal):
        loc = fn.loc
        return loc + (fn._unbroadcasted_scale_tril @ normal(loc.shape, loc).unsqueeze(-1)).squeeze(-1)
    if isinstance(fn, dist.LowRankMultivariateNormal):
        W, d = fn._unbroadcasted_cov_factor, fn._unbroadcasted_cov_diag
        low = random.normal(random.fold(key, "low rank"), (*fn.batch_shape, W.shape[-1]), W.dtype)
        return fn.loc + (W @ low.unsqueeze(-1)).squeeze(-1) + d.sqrt() * normal(fn.loc.shape, fn.loc)
    if isinstance(fn, dist.TransformedDistribution):
        value = draw(fn.base_dist, key, noise)
        for transform in fn.transforms:
            value = transform(value)
        return value
    return _seeded(fn, key)


def _seeded(fn: dist.Distribution, key: Tensor) -> Tensor:
    try:
        seed = int(key)
    except RuntimeError:
        raise NotImplementedError(
            f"{type(fn).__name__} has no vectorised draw from a key; run it with engine = 'sequential'"
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        return fn.rsample() if fn.has_rsample else fn.sample()


def latents(trace: Trace) -> list[str]:
    """Latent sites of a trace, without the subsample sites of its plates."""
    return [n for n in trace.stochastic_nodes if not site_is_subsample(trace.nodes[n])]


def observations(trace: Trace) -> list[str]:
    """Observed sites of a trace, without the values that `pyro.deterministic` records."""
    found = (n for n in trace.observation_nodes if trace.nodes[n]["type"] == "sample")
    return [n for n in found if not is_deterministic(trace.nodes[n])]


def is_deterministic(site: Mapping[str, Any]) -> bool:
    """Whether a site is one of `pyro.deterministic`, which Pyro counts as observed."""
    return bool(site["infer"].get("_deterministic"))


def localise_(model: PyroModule) -> None:
    """Let a PyroModule that was built without module-local parameters run with them.

    Pyro gives a module its own parameter state only if the setting is on while it is built, which is not asked of
    users.
    """
    for module in model.modules():
        if isinstance(module, PyroModule) and not hasattr(module._pyro_context, "param_state"):
            module._pyro_context.param_state = {"params": {}, "constraints": {}}


class _Contained:
    """Mixed into a PyroModule class: calls read the module's own tensors, never Pyro's process-wide store."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with pyro.settings.context(module_local_params=True):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]


def contained(module: nn.Module) -> Any:
    """`module`, changed so that two of its kind in one process share nothing."""
    kind: Any = type(module)
    module.__class__ = type(kind)(kind.__name__, (_Contained, kind), {})
    return module


def standard_noise(key: Tensor, like: Tensor) -> Tensor:
    """The standard normals (D,) behind one draw of all D weights of a mean-field guide."""
    return random.normal(key, like.shape, like.dtype)


class keyed(Messenger):
    """Draw every latent site from `key` (and from `noise[site]` where given): sampling becomes a pure function."""

    def __init__(self, key: Tensor, noise: Mapping[str, Tensor] | None = None):
        super().__init__()
        self.key, self.noise = key, noise or {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"] or msg["value"] is not None or site_is_subsample(msg):
            return
        name = msg["name"]
        msg["value"] = draw(msg["fn"], random.fold(self.key, name), self.noise.get(name))
        msg["done"] = True


class reprior(Messenger):
    """Replace the prior of each latent site named in `phi` (`site/loc`, `site/scale`) by that Normal.

    The Normal lives in the site's unconstrained space, as posteriors do: a positive site gets a LogNormal.
    """

    def __init__(self, phi: Tree):
        super().__init__()
        self.phi = phi

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        loc = self.phi.get(msg["name"] + "/loc")
        if loc is not None and not msg["is_observed"]:
            old = msg["fn"]
            normal = dist.Normal(loc, self.phi[msg["name"] + "/scale"]).to_event(old.event_dim)
            msg["fn"] = normal if is_real(old.support) else Image(normal, old.support)


class Image(dist.TransformedDistribution):
    """A distribution of a site's unconstrained space, carried to the site's own support."""

    def __init__(self, base: dist.Distribution, support: constraints.Constraint):
        self._support = support
        super().__init__(base, [biject_to(support)])

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        return self._support


def is_real(support: Any) -> bool:
    """Whether a support is the whole real line, in any number of dimensions."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support is constraints.real
