"""The lift of a network into a Pyro model: `nn.Module` + prior + likelihood -> PyroModule with PyroSample weights.

Layers with hidden state are replaced, by type, with pure versions: batch normalisation without running updates, and
dropout that draws from a key. What one forward pass needs beside its input (the key, which rows are live) is held in a
`Pass` for the length of the call.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from . import random
from .likelihoods import LIKELIHOODS, Likelihood
from .plain import plain_, pyro_sites
from .suggest import choose

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass
class Pass:
    """One forward pass: `key` turns dropout on, `rows` (B,) marks the distinct rows that give batch statistics."""

    key: Tensor | None = None
    rows: Tensor | None = None
    statistics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # layer -> batch mean, variance


_PASS: ContextVar[Pass | None] = ContextVar("pyrofl_pass", default=None)


@contextmanager
def forward_pass(key: Tensor | None = None, rows: Tensor | None = None) -> Iterator[Pass]:
    """With `rows`, batch norms use batch statistics; without, the running ones. With `key`, dropout is on."""
    now = Pass(key, rows)
    token = _PASS.set(now)
    try:
        yield now
    finally:
        _PASS.reset(token)


class BatchNorm(nn.Module):
    """Batch normalisation without hidden updates (Ioffe, Szegedy, 2015).

    Training passes use the statistics of the batch's distinct rows; other passes use `running_mean` and `running_var`,
    which are entries of the tree and change only where `local` recomputes them. One row has variance 0 and maps to the
    bias, so batches of one row work.
    """

    def __init__(self, like: nn.modules.batchnorm._BatchNorm, name: str):
        super().__init__()
        self.name, self.eps = name, like.eps
        self.weight, self.bias = like.weight, like.bias
        for stat, start in (("running_mean", torch.zeros), ("running_var", torch.ones)):
            kept = getattr(like, stat)
            self.register_buffer(stat, start(like.num_features) if kept is None else kept.detach().clone())

    running_mean: Tensor
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        now = _PASS.get()
        shape = (1, -1, *[1] * (x.dim() - 2))
        if now is None or now.rows is None:
            mean, var = self.running_mean, self.running_var
        else:
            w = now.rows.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
            over = [0, *range(2, x.dim())]
            count = w.sum(over).clamp_min(1)  # (F,)
            mean = (w * x).sum(over) / count
            var = (w * (x - mean.reshape(shape)).square()).sum(over) / count
            now.statistics[self.name] = (mean, var)
        y = (x - mean.reshape(shape)) * torch.rsqrt(var + self.eps).reshape(shape)
        return y if self.weight is None else y * self.weight.reshape(shape) + self.bias.reshape(shape)


class Dropout(nn.Module):
    """Dropout drawn from the pass's key; off where the pass has none. `whole` drops whole channels."""

    def __init__(self, p: float, name: str, *, whole: bool = False):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout {name!r}: p must be in [0, 1), got {p}")
        self.p, self.name, self.whole = p, name, whole

    def forward(self, x: Tensor) -> Tensor:
        now = _PASS.get()
        if now is None or now.key is None or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.whole else x.shape
        keep = random.bernoulli(random.fold(now.key, "dropout", self.name), 1 - self.p, shape)
        return x * keep.to(x.dtype) / (1 - self.p)


NORMS = (
    BatchNorm,
    *_BATCH_NORMS,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.LocalResponseNorm,
)


def purify_(root: nn.Module) -> nn.Module:
    """Replace batch norms and dropouts inside `root`, by module type, with the pure versions above."""
    for path, parent in list(root.named_modules()):
        for name, child in list(parent.named_children()):
            full = f"{path}.{name}" if path else name
            if isinstance(child, _BATCH_NORMS):
                setattr(parent, name, BatchNorm(child, full))
            elif isinstance(child, _DROPOUTS):
                setattr(parent, name, Dropout(child.p, full, whole=not isinstance(child, nn.Dropout)))
    return root


class Weight(NamedTuple):
    """A network parameter about to get a prior."""

    site: str  # the Pyro site's name, e.g. "net.body.0.weight"
    layer: str  # the layer's name, shared by its weight and bias
    value: Tensor  # as the network initialised it: shape, dtype and device of the site
    fan_in: int  # inputs of one unit of the layer


class Prior(PyroModule):
    """Base of all priors: `forward(weight) -> Distribution` with the weight's shape as event.

    A prior with latent hyper-parameters makes a submodule for each layer in `add`, which is called once for each weight
    before the model runs.
    """

    def add(self, weight: Weight) -> None:
        """Announce a weight that will have this prior."""

    def forward(self, weight: Weight) -> dist.Distribution:
        raise NotImplementedError(f"{type(self).__name__} must define forward(weight) -> Distribution")


class _PriorOf:
    """The prior of one weight as PyroSample wants it: an object, not a closure, so that copies follow their prior."""

    def __init__(self, prior: Prior, weight: Weight):
        self.prior, self.weight = prior, weight

    def __call__(self, module: nn.Module) -> dist.Distribution:
        return self.prior(self.weight)


def fan_in(module: nn.Module) -> int:
    """Inputs of one output unit: from the layer's weight, 1 where it has none."""
    weight = getattr(module, "weight", None)
    return max(int(weight[0].numel()), 1) if isinstance(weight, Tensor) and weight.dim() > 1 else 1


class Bayesian(PyroModule):
    """p(y | x, w) p(w): `net` with a prior on its weights and a likelihood on its output.

    `points` names what stays a point estimate without a prior: "norm" (scale and shift of normalisation layers, the
    default), "bias", "body", "head", or a site name. Sites are named by their path, such as "net.body.0.weight". The
    network given is copied, never changed.
    """

    def __init__(
        self,
        net: nn.Module,
        prior: Prior,
        likelihood: str | Likelihood = "categorical",
        *,
        points: tuple[str, ...] = ("norm",),
    ):
        super().__init__()
        if isinstance(likelihood, str):
            choose(likelihood, LIKELIHOODS, "likelihood")
            likelihood = LIKELIHOODS[likelihood]()
        _check(net, points)
        net = purify_(copy.deepcopy(net))
        self.plain = (plain_(copy.deepcopy(net)),)  # in a tuple: not a submodule, its weights are no parameters here
        for module in net.modules():
            if isinstance(module, PyroModule):
                module._pyro_context.used = False  # Pyro refuses to nest a module that ran before; this is a copy
        to_pyro_module_(net)
        self.net = net
        self.prior, self.likelihood = copy.deepcopy(prior), copy.deepcopy(likelihood)
        self.likelihood.to(next(net.parameters()))  # dtype and device of the network
        self.weights: tuple[Weight, ...] = ()  # in the order of the network's parameters
        for path, module in list(self.net.named_modules()):
            inputs = fan_in(module)
            for name, value in list(module.named_parameters(recurse=False)):
                layer = f"net.{path}" if path else "net"
                site = f"{layer}.{name}"
                if _is_point(site, name, path, module, points):
                    continue
                weight = Weight(site, layer, value.detach().clone(), inputs)
                self.weights += (weight,)
                self.prior.add(weight)
                setattr(module, name, PyroSample(_PriorOf(self.prior, weight)))
        if not self.weights:
            raise ValueError("every parameter of the network is a point: name fewer in points, or use guide = 'delta'")

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        out = self.net(x)  # (B, K)
        with pyro.plate("data", len(x)):
            pyro.sample("y", self.likelihood(out), obs=y)
        return out


def _check(net: nn.Module, points: tuple[str, ...]) -> None:
    """Refuse networks that cannot be lifted, and points that do not exist."""
    if own := pyro_sites(net):
        raise ValueError(
            f"the network has Pyro sites of its own ({', '.join(own)}): it gets priors here, so leave them plain "
            "parameters, or give a complete Pyro model instead of a network"
        )
    names: dict[Tensor, str] = {}
    for name, value in net.named_parameters(remove_duplicate=False):
        if value in names:
            raise ValueError(
                f"net.{name} shares its tensor with net.{names[value]}: tied weights have no prior of their own; untie "
                "them in the network"
            )
        names[value] = name
    if not names:
        raise ValueError(f"{type(net).__name__} has no parameters: there is nothing to learn")
    groups = [g for g in ("body", "head") if hasattr(net, g)]
    for point in points:
        choose(point, ("norm", "bias", *groups, *(f"net.{n}" for n in names.values())), "entry of points")


def _is_point(site: str, name: str, path: str, module: nn.Module, points: tuple[str, ...]) -> bool:
    return (
        ("norm" in points and isinstance(module, NORMS))
        or ("bias" in points and name == "bias")
        or any(p in ("body", "head") and (path == p or path.startswith(p + ".")) for p in points)
        or site in points
    )
