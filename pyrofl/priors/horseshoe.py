"""The horseshoe prior: most weights near 0, a few left free."""

from __future__ import annotations

from typing import Literal, get_args

import pyro.distributions as dist
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from ..bayesian import Weight
from .layers import LayerPrior
from .positive import positive

Local = Literal["weight", "unit"]


class _Layer(PyroModule):
    """The global scale of one layer, and the local scales of its tensors."""

    def __init__(self, weight: Weight, scale: float):
        super().__init__()
        self.scale = PyroSample(dist.HalfCauchy(weight.value.new_tensor(scale)))

    def add(self, weight: Weight, local: Local) -> None:
        shape = tuple(weight.value.shape)
        if local == "unit":  # one entry of the first axis
            shape = (*shape[:1], *[1] * (len(shape) - 1))
        scales = dist.HalfCauchy(weight.value.new_ones(shape)).to_event(len(shape))
        setattr(self, _local(weight), PyroSample(scales))

    def local(self, weight: Weight) -> Tensor:
        return getattr(self, _local(weight))


def _local(weight: Weight) -> str:
    return f"local_{weight.site.rpartition('.')[2]}"


class Horseshoe(LayerPrior):
    """w_j | tau_l, lambda_j ~ N(0, tau_l^2 lambda_j^2), tau_l ~ C+(0, scale), lambda_j ~ C+(0, 1) (half-Cauchy).

    tau_l is shared by layer l; lambda_j belongs to one weight, or (`local = "unit"`) to all weights that enter
    one unit, which prunes whole units and costs far fewer latents. The sites of a layer are
    "prior.net_body_0.scale", "prior.net_body_0.local_weight" and "prior.net_body_0.local_bias".

    Centred: the weights themselves are the sites, so that posteriors, pooling and `as_prior` speak of them, and
    the KL of the weights given the scales is in closed form. A mean-field guide cannot hold the dependence of a
    weight on its scale; a non-centred form would hold it, but its sites are standardised weights, whose average
    over clients means nothing. A Delta guide has no useful mode: the joint density grows without bound at 0; use
    a Normal guide.

    Reference: Carvalho, Polson, Scott, "The horseshoe estimator for sparse signals", 2010; for networks:
    Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017.
    """

    def __init__(self, scale: float = 1.0, *, local: Local = "weight"):
        super().__init__()
        positive("horseshoe", scale=scale)
        if local not in get_args(Local):
            raise ValueError(f'prior.local of the horseshoe prior must be "weight" or "unit", got {local!r}')
        self.scale, self.local = scale, local

    def layer(self, weight: Weight) -> PyroModule:
        return _Layer(weight, self.scale)

    def add(self, weight: Weight) -> None:
        super().add(weight)
        self.of(weight).add(weight, self.local)

    def forward(self, weight: Weight) -> dist.Distribution:
        layer = self.of(weight)
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.Normal(zero, layer.scale * layer.local(weight)).to_event(zero.dim())
