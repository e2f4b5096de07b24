"""The flat prior: no prior at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ..bayesian import Prior, Weight


class Improper(dist.ImproperUniform):
    """log p(w) = 0 everywhere, in the dtype and on the device of w.

    It cannot be drawn from. `sample` returns `start`, because Pyro's `Predictive` runs a model once to learn
    its shapes.
    """

    def __init__(self, start: Tensor):
        self.start = start
        super().__init__(constraints.independent(constraints.real, start.dim()), (), start.shape)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Improper:
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.start = self.start
        return super().expand(batch_shape, new)

    def log_prob(self, value: Tensor) -> Tensor:
        return value.new_zeros(()).expand(super().log_prob(value).shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.start.expand(self._extended_shape(torch.Size(sample_shape)))


class Flat(Prior):
    """p(w) proportional to 1: with a point-mass guide, training is maximum likelihood.

    The density has no integral, so there is no KL to it: `Program` takes it with a Delta guide only.
    """

    def forward(self, weight: Weight) -> dist.Distribution:
        return Improper(weight.value)
