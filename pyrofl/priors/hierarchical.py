"""Gaussian weights whose scale is learned for each layer."""

from __future__ import annotations

import pyro.distributions as dist
from pyro.nn import PyroModule, PyroSample

from ..bayesian import Weight
from .layers import LayerPrior
from .positive import positive


class _Layer(PyroModule):
    """The latent scale of one layer."""

    def __init__(self, weight: Weight, width: float):
        super().__init__()
        self.scale = PyroSample(dist.HalfNormal(weight.value.new_tensor(width)))


class Hierarchical(LayerPrior):
    """scale_l ~ HalfNormal(width) for layer l, w_j | scale_l ~ N(0, scale_l^2) for its weights and biases.

    Centred: the weights themselves are the sites, so that posteriors, pooling and `as_prior` speak of them,
    and the KL of the weights given the scale is in closed form. A Delta guide has no useful mode here: the
    joint density grows without bound as a layer's scale and weights go to 0 together; use a Normal guide.

    Reference: Gelman, "Prior distributions for variance parameters in hierarchical models", 2006.
    """

    def __init__(self, width: float = 1.0):
        super().__init__()
        positive("hierarchical", width=width)
        self.width = width

    def layer(self, weight: Weight) -> PyroModule:
        return _Layer(weight, self.width)

    def forward(self, weight: Weight) -> dist.Distribution:
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.Normal(zero, self.of(weight).scale).to_event(zero.dim())
