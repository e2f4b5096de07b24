"""Independent Student-t weights."""

from __future__ import annotations

import pyro.distributions as dist

from ..bayesian import Prior, Weight
from .positive import positive


class StudentT(Prior):
    """w ~ t_df(0, scale): tails heavier than a Gaussian's, the more so the smaller `df`.

    The KL from a Normal has no closed form; it is estimated at the draw.

    Reference: Fortuin, Garriga-Alonso, Ober, Wenzel, Ratsch, Turner, van der Wilk, Aitchison, "Bayesian
    Neural Network Priors Revisited", 2022.
    """

    def __init__(self, scale: float = 1.0, *, df: float = 3.0):
        super().__init__()
        positive("student_t", scale=scale, df=df)
        self.scale, self.df = scale, df

    def forward(self, weight: Weight) -> dist.Distribution:
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.StudentT(zero.new_tensor(self.df), zero, zero.new_tensor(self.scale)).to_event(zero.dim())
