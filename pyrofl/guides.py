"""Guides: the families of approximate posteriors, all of them Pyro autoguides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide import AutoDelta, AutoNormal, init_to_feasible
from torch import Tensor
from torch.distributions import biject_to, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import Transform
from torch.nn.functional import softplus

SCALE_FLOOR = 1e-8


def positive_scale(rho: Tensor) -> Tensor:
    """softplus(rho) + 1e-8: a scale is never 0, even where softplus underflows (rho = -120 in float32)."""
    return softplus(rho) + SCALE_FLOOR


def inverse_scale(scale: Tensor) -> Tensor:
    """Inverse of `positive_scale`; scales at or below the floor go to a large negative rho."""
    above = (scale - SCALE_FLOOR).clamp_min(torch.finfo(scale.dtype).tiny)
    return above + torch.log(-torch.expm1(-above))


class _FlooredScale(Constraint):
    """Scales of the guide, positive and at least the floor."""

    def check(self, value: Tensor) -> Tensor:
        return value > 0


class _FlooredSoftplus(Transform):
    domain = torch.distributions.constraints.real
    codomain = _FlooredScale()
    bijective = True
    sign = +1

    def _call(self, x: Tensor) -> Tensor:
        return positive_scale(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return inverse_scale(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


@transform_to.register(_FlooredScale)
@biject_to.register(_FlooredScale)
def _floored(constraint: _FlooredScale) -> Transform:
    return _FlooredSoftplus()


class Normal(AutoNormal):
    """Mean-field Normal: q(w) = prod_j N(loc_j, scale_j^2), scale = softplus(rho) + 1e-8.

    Reference: Blundell, Cornebise, Kavukcuoglu, Wierstra, "Weight Uncertainty in Neural Networks", 2015.
    """

    scale_constraint = _FlooredScale()

    def __init__(
        self, model: Callable[..., Any], *, init_loc_fn: Callable[..., Any] = init_to_feasible, init_scale: float = 0.05
    ):
        if not 0 < init_scale < math.inf:
            raise ValueError(f"guide.init_scale must be positive and finite, got {init_scale}")
        super().__init__(model, init_loc_fn=init_loc_fn, init_scale=init_scale)


class Delta(AutoDelta):
    """Point mass: q(w) = delta(w - loc), so SVI is maximum a posteriori (maximum likelihood under a flat prior)."""


GUIDES: dict[str, Callable[..., Any]] = {"normal": Normal, "delta": Delta}
