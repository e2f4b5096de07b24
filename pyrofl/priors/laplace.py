"""Independent Laplace weights."""

from __future__ import annotations

import pyro.distributions as dist

from ..bayesian import Prior, Weight
from .positive import positive


class Laplace(Prior):
    """w ~ Laplace(0, scale): p(w) = exp(-|w| / scale) / (2 scale), the prior behind an L1 penalty.

    The standard deviation is sqrt(2) * scale. Its KL from a Normal has a closed form.

    Reference: Williams, "Bayesian Regularization and Pruning Using a Laplace Prior", 1995.
    """

    def __init__(self, scale: float = 1.0):
        super().__init__()
        positive("laplace", scale=scale)
        self.scale = scale

    def forward(self, weight: Weight) -> dist.Distribution:
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.Laplace(zero, zero.new_tensor(self.scale)).to_event(zero.dim())
