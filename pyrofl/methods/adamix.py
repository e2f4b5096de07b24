"""AdaMix: a mixture of Gaussians as the prior of the clients' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import Data
from ..empirical_bayes.adamix import adamix
from ..empirical_bayes.mixture import Mixture
from ..limits import at_least
from ..random import normal
from ..tree import Tree, only
from .site_prior import SitePrior


@dataclass(frozen=True)
class AdaMix(SitePrior):
    """theta_k ~ sum_l p_l N(mu_l, C_l) with at most `components` Gaussians, fitted by EM on the estimates.

    The posterior of a client is a mixture again: component l has covariance (C_l^-1 + V_k^-1)^-1. The mixture has full
    covariances and is fitted from one message a client, by the best of `restarts` runs of at most `em` steps, where the
    paper takes gradient steps on isotropic ones.

    Reference: Ozkara, Girgis, Data, Diggavi, 2023.
    """

    components: int = 5
    restarts: int = 3
    em: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method", self, 1, "components", "restarts", "em")

    def init(self, key: Tensor) -> Tree:
        start = super().init(key)
        like = start["prior/atoms"]
        unit = torch.eye(self.dimension, dtype=like.dtype, device=like.device)
        return {**start, "prior/spreads": unit.repeat(self.slots, 1, 1)}

    @property
    def slots(self) -> int:
        return min(self.components, self.clients)

    def estimate(self, z: Any, V: Any, key: Tensor) -> Mixture:
        return adamix(z, V, components=self.slots, restarts=self.restarts, max_steps=self.em, key=key)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        mu, C, log_p = (down[f"prior/{k}"] for k in ("atoms", "spreads", "weights"))
        e = self.estimator(down, data)
        z = e.fit(self.start(down), steps=self.newton)
        total = C + torch.linalg.inv(e.precision(z))  # (L, d, d)
        lower = torch.linalg.cholesky(total)
        gap = torch.linalg.solve_triangular(lower, (z - mu).unsqueeze(-1), upper=False).squeeze(-1)
        log_phi = -0.5 * gap.square().sum(1) - lower.diagonal(dim1=1, dim2=2).log().sum(1)
        gain = torch.linalg.solve(total, C).mT
        mean = mu + torch.einsum("lab,lb->la", gain, z - mu)
        spread = C - gain @ C
        seen = data.n > 0
        mean, spread = torch.where(seen, mean, mu), torch.where(seen, (spread + spread.mT) / 2, C)
        r = torch.softmax(log_p.log() + torch.where(seen, log_phi, 0), 0)
        values, vectors = torch.linalg.eigh(spread)
        theta = self.ravel.tree(r @ mean, only(down, self.program.buffers))
        roots = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        return {**theta, "posterior/atoms": mean, "posterior/weights": r, "posterior/roots": roots}

    def draw(self, posterior: Tree, j: Tensor, key: Tensor) -> Tensor:
        mean, root = (posterior[k].index_select(0, j).squeeze(0) for k in ("atoms", "roots"))
        return mean + root @ normal(key, mean.shape, mean.dtype)
