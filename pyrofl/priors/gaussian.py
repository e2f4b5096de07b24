"""Independent Gaussian weights."""

from __future__ import annotations

import math
from typing import Literal

import pyro.distributions as dist

from ..bayesian import Prior, Weight
from .positive import positive


class Gaussian(Prior):
    """w ~ N(0, sd^2), independently.

    sd = `scale`, or sd = gain / sqrt(inputs of the layer) for `scale = "fan_in"`, which keeps the variance of
    a unit's input the same for every width; a bias has the sd of its layer's weights.

    Reference: Neal, "Bayesian Learning for Neural Networks", 1996, section 2.1 (the scaling with width).
    """

    def __init__(self, scale: float | Literal["fan_in"] = 1.0, *, gain: float = 1.0):
        super().__init__()
        if isinstance(scale, str):
            if scale != "fan_in":
                raise ValueError(f'prior.scale of the gaussian prior must be a number or "fan_in", got {scale!r}')
        else:
            positive("gaussian", scale=scale)
            if gain != 1:
                raise ValueError('prior.gain belongs to prior.scale = "fan_in"; with a number, multiply it in')
        positive("gaussian", gain=gain)
        self.scale, self.gain = scale, gain

    def forward(self, weight: Weight) -> dist.Distribution:
        sd = self.gain / math.sqrt(weight.fan_in) if isinstance(self.scale, str) else self.scale
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.Normal(zero, zero.new_tensor(sd)).to_event(zero.dim())
