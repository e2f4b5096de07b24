"""The scale mixture of two Gaussians, a smooth spike and slab."""

from __future__ import annotations

import pyro.distributions as dist
from torch.distributions import constraints

from ..bayesian import Prior, Weight
from .positive import positive


class NormalMixture(dist.MixtureSameFamily):
    """Pyro's mixture of Normals, said to live on the reals, so that guides and KLs can take it.

    Its log density is a logsumexp over components: one whose density underflows to 0 leaves value and
    gradient finite.
    """

    support = constraints.real


class ScaleMixture(Prior):
    """p(w) = mixing * N(w; 0, scale1^2) + (1 - mixing) * N(w; 0, scale2^2), independently.

    `scale1` is the slab, the wider component, and `scale2` the spike around 0. The KL from a Normal has no
    closed form; it is estimated at the draw.

    Reference: Blundell, Cornebise, Kavukcuoglu, Wierstra, "Weight Uncertainty in Neural Networks", 2015,
    equation 7.
    """

    def __init__(self, scale1: float = 1.0, scale2: float = 0.1, *, mixing: float = 0.5):
        super().__init__()
        positive("scale_mixture", scale1=scale1, scale2=scale2)
        if not scale1 > scale2:
            raise ValueError(f"prior.scale1 must be above prior.scale2 (slab and spike), got {scale1} and {scale2}")
        if not 0 < mixing < 1:
            raise ValueError(f"prior.mixing of the scale_mixture prior must be between 0 and 1, got {mixing}")
        self.scale1, self.scale2, self.mixing = scale1, scale2, mixing

    def forward(self, weight: Weight) -> dist.Distribution:
        number, shape = weight.value.new_tensor, weight.value.shape
        scales = number([self.scale1, self.scale2]).expand(*shape, 2)  # (..., 2)
        which = dist.Categorical(probs=number([self.mixing, 1 - self.mixing]).expand(*shape, 2))
        return NormalMixture(which, dist.Normal(scales.new_zeros(()), scales)).to_event(len(shape))
