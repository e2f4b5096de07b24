"""FedEP and FedSEP: expectation propagation over clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..curvature import fisher_diagonal
from ..data import Data
from ..meanfield import Posterior, divergence, natural
from ..method import Cohort
from ..tree import Tree, scale, sub, without
from .pvi import PVI

POINT = 1e-7  # standard deviation of draws that stand for the location alone


@dataclass(frozen=True)
class FedEP(PVI):
    """As PVI, but a client matches the moments of its tilted distribution, cavity times likelihood.

    The moments are those of the Laplace approximation with a diagonal covariance: the mean is the mode, found by
    `epochs` of stochastic gradients, and the precision is the cavity's plus the diagonal of the Fisher information of
    the client's rows there. For a linear Gaussian model whose columns are orthogonal both are exact.

    `stateless` (FedSEP) keeps no factors at the clients: t_k stands for (q / prior)^(n_k / n), one average factor to
    the power of the client's share of the rows, so the cavity is prior^(n_k / n) q^(1 - n_k / n). Until clients were
    heard the share is 1 / K; then n is K times the mean of the numbers of rows heard of.

    Precisions stay positive by the rules of PVI, in place of the paper's clipping of norms and constant covariance
    scales; a step of the server is the sum of the damped steps.

    Reference: Guo, Greengard, Wang, Gelman, Kim, Xing, 2023, algorithms 1 and 2, "Laplace".
    """

    stateless: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.program.beta > 0:
            raise ValueError("a beta of 0 takes the cavity out of the tilted distribution; use a positive one")

    def init(self, key: Tensor) -> Tree:
        rows = {"rows": torch.zeros(self.clients, dtype=torch.float64, device=key.device)} if self.stateless else {}
        return {**super().init(key), **rows}

    def down(self, server: Tree, client: int) -> Tree:
        out = super().down(server, client)
        if self.stateless:
            heard = (server["rows"] > 0).sum().clamp_min(1)
            out["total"] = server["rows"].sum() * self.clients / heard
        return out

    def join(self, down: Tree) -> Tree:
        own = super().join(down)
        return without(own, [k for k in own if k.startswith("factor/")]) if self.stateless else own

    def factor(self, down: Tree, own: Tree, data: Data) -> Tree:
        if not self.stateless:
            return super().factor(down, own, data)
        n, total = data.n.double(), down["total"]
        share = torch.where(total > 0, (n / total.clamp_min(1)).clamp_max(1), 1 / self.clients)
        return scale(sub(natural(self.program.posterior(down)), natural(self.start)), share)

    def refine(self, theta: Tree, cavity: Posterior, data: Data, key: Tensor) -> tuple[Tree, Tree]:
        p, n = self.program, data.n.clamp_min(1)
        point = p.guide_of({s: (m, torch.full_like(v, POINT)) for s, (m, v) in p.posterior(theta).items()})
        names = p.trainable - {p.scale_name(s) for s in p.sites}
        theta, info = self.fit_under(cavity, {**theta, **point}, data, key, names=names)
        fisher = fisher_diagonal(p, theta, data)
        tilted = {s: (theta[p.loc_name(s)], (v.pow(-2) + fisher[s] / p.beta).rsqrt()) for s, (_, v) in cavity.items()}
        kl = p.beta * divergence(tilted, cavity) / n
        return {**theta, **p.guide_of(tilted)}, {**info, "loss": info.get("nll", 0.0) + kl, "kl": kl}

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        new = super().aggregate(server, ups, cohort)
        if self.stateless:
            new["rows"] = server["rows"].index_copy(0, cohort.ids, cohort.n.double())
        return new
