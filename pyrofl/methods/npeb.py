"""NPEB: the nonparametric maximum-likelihood prior of estimates with known covariances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..empirical_bayes.mixture import Mixture
from ..empirical_bayes.npmle import npmle
from ..estimate import Estimator, log_normal
from ..limits import positive
from .site_prior import SitePrior


@dataclass(frozen=True)
class NPEB(SitePrior):
    """Empirical Bayes with any prior G: argmax_G sum_k log integral N(z_k; theta, V_k) dG(theta), V_k fixed at z_k.

    G is discrete. One round gives everything; `tolerance` is the certified gap of its
    log-likelihood, in nats a client.

    Reference: Soloff, Guntuboyina, Sen, 2025.
    """

    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "tolerance")

    def estimate(self, z: Any, V: Any, key: Tensor) -> Mixture:
        prior = npmle(z, V, tolerance=self.tolerance, workers=1)
        few = prior.atoms[: self.slots]  # the heaviest first
        return prior if len(few) == len(prior.atoms) else npmle(z, V, atoms=few, grid_only=True, workers=1)

    def log_kernel(self, e: Estimator, atoms: Tensor) -> Tensor:
        z = e.fit(atoms.new_zeros(atoms.shape[1]), steps=self.newton)
        return log_normal(z - atoms, e.precision(z).expand(len(atoms), -1, -1))
