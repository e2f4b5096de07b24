"""Poisson regression of counts, as a network for any prior and as a complete Pyro model."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.nn.functional import linear

_MAX_LOG_RATE = 30.0  # exp(30) events a row: larger log-rates would overflow float32 sums


class Poisson(PyroModule):
    """Log-rates that are linear in the flattened row: the body flattens, the head is the one layer."""

    def __init__(self, shape: tuple[int, ...], outputs: int = 1):
        super().__init__()
        _one(outputs)
        self.body = PyroModule[nn.Flatten]()
        self.head = PyroModule[nn.Linear](math.prod(shape), outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, 1)


class PoissonModel(PyroModule):
    """w, b ~ N(0, scale^2), y | x ~ Poisson(exp(w x + b)); log-rates above 30 are cut there.

    A model declared fully in Pyro: it has its own priors and likelihood, and pyrofl adds a guide. The buffer `zero`
    makes the priors follow the module's dtype and device.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int = 1, *, scale: float = 1.0):
        super().__init__()
        _one(outputs)
        if not scale > 0:
            raise ValueError(f"PoissonModel: scale must be positive, got {scale}")
        self.inputs, self.scale = math.prod(shape), scale
        self.register_buffer("zero", torch.zeros(()))

    @PyroSample
    def weight(self) -> dist.Distribution:
        return dist.Normal(self.zero, self.scale).expand([1, self.inputs]).to_event(2)

    @PyroSample
    def bias(self) -> dist.Distribution:
        return dist.Normal(self.zero, self.scale).expand([1]).to_event(1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        log_rate = linear(x.flatten(1), self.weight, self.bias).clamp(max=_MAX_LOG_RATE)  # (B, 1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Poisson(log_rate.squeeze(-1).exp()), obs=y)
        return log_rate


def _one(outputs: int) -> None:
    if outputs != 1:
        raise ValueError(f"Poisson regression has one output, the log-rate, not {outputs}: are the targets counts?")
