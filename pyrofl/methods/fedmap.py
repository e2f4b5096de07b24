"""FedMAP with a Gaussian prior: bi-level maximum a posteriori estimation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Data
from ..limits import positive
from ..meanfield import Posterior, pool, tied
from ..method import Cohort, Reply
from ..tree import Tree, mean, only, pack, without
from .fedavg import FedAvg
from .fixed import ByRows, OwnTuning

EFFECTIVE, VARIANCE = "report/effective_clients", "report/prior_variance"  # 1 / sum_k w_k^2; mean over coordinates


@dataclass(frozen=True)
class FedMAP(OwnTuning, ByRows, FedAvg):
    """Personal models under a common Gaussian prior that the server re-estimates from them.

    Client: theta_k = argmin mean -log p(y | x, theta) - log N(theta; mu, sigma^2) / n_k, from its last theta_k
    (`start = "global"`: from mu). Server: mu = sum_k w_k theta_k, sigma^2 = sum_k w_k ((theta_k - mu)^2 + s_k^2), with
    w = softmax of the clients' log-weights: log n_k ("rows"), the mean log-likelihood of a row, the total (the
    paper's), or log n_k plus the mean. sigma^2 is one number, one a tensor, or one a coordinate, and at least `floor`.
    s_k is the scale of a Normal guide, 0 for a point: the same two levels with posteriors in place of estimates.

    The estimates of a point guide draw together in every round, for both levels gain by a smaller sigma^2: it ends at
    `floor`, which then is the strength of the prior. The s_k of a Normal guide counter that.

    `literal` does not divide the prior by n_k, as the paper writes it. `fixed_variance` never learns sigma^2: with
    `literal` it is the authors' first code, FedProx with mu = 1 / sigma^2 around personal models. Parameters without a
    prior (normalisation layers) are averaged with the same weights and start from the average.

    Reference: Zhang, Kreuter, Chen, Dittmer et al., 2024, "FedMAP".
    """

    variance: Literal["isotropic", "tensor", "coordinate"] = "isotropic"
    weights: Literal["rows", "mean_loglik", "total_loglik", "rows_times_likelihood"] = "rows"
    start: Literal["personal", "global"] = "personal"
    first_variance: float = 1.0  # sigma^2 of the first round
    fixed_variance: float | None = None
    floor: float = 1e-2
    literal: bool = False

    travels: ClassVar[str] = "the prior's mean and variance come down, the client's model and its weight go up"
    stays: ClassVar[str] = "the client's model, from which it goes on"
    guides: ClassVar[tuple[str, ...]] = ("delta", "normal")
    guides_because: ClassVar[str] = "has a Gaussian prior for each site"
    prior: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "first_variance", "fixed_variance", "floor")

    def init(self, key: Tensor) -> Tree:
        theta, p = super().init(key), self.program
        first = self.first_variance if self.fixed_variance is None else self.fixed_variance
        variance = tied({s: torch.full_like(theta[p.loc_name(s)], first) for s in p.sites}, self.variance)
        return {**theta, **pack(variance=variance), EFFECTIVE: _scalar(theta, 1.0), VARIANCE: _scalar(theta, first)}

    def message(self, down: Tree) -> Tree:
        return {**super().message(down), "log_weight": _scalar(down, 0.0)}

    def join(self, down: Tree) -> Tree:
        return only(down, self.program.theta0)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        last = {k: v for k, v in own.items() if k.startswith("guide.")} if self.start == "personal" else {}
        rows = torch.ones_like(data.n) if self.literal else None
        theta, info = self.fit_under(self.prior_of(down), {**down, **last}, data, key, rows=rows)
        return Reply({**theta, "log_weight": self.log_weight(theta, data)}, theta, info)

    def log_weight(self, theta: Tree, data: Data) -> Tensor:
        """The logarithm of a client's weight, up to a constant that all clients share, () in nats."""
        fitted = self.program.log_likelihood(theta, data)
        n = data.n.to(fitted.dtype)
        known = {"rows": n.log(), "mean_loglik": fitted, "total_loglik": n * fitted}
        return {**known, "rows_times_likelihood": n.log() + fitted}[self.weights].to(_scalar(theta, 0.0).dtype)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        by_rows = self.weights == "rows"  # which the server knows
        p, w = self.program, self.shares(cohort) if by_rows else torch.softmax(ups["log_weight"].double(), 0)  # (C,)
        effective = (1 / w.square().sum()).to(server[EFFECTIVE].dtype)
        new = {**server, **mean(without(ups, ["log_weight"]), w), EFFECTIVE: effective}
        if self.fixed_variance is None:
            both = pool(p.posterior(ups), w, "mixture")
            variance = tied({s: scale.square() for s, (_, scale) in both.items()}, self.variance)
            new |= pack(variance={s: v.clamp_min(self.floor) for s, v in variance.items()})
            every = [scale.square().flatten() for _, scale in self.prior_of(new).values()]
            new[VARIANCE] = torch.cat(every).mean()
        return {**new, **p.guide_of(self.prior_of(new))} if p.mean_field else new

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return self.local(down, own, data, key).own if self.finetune else own

    def prior_of(self, server: Tree) -> Posterior:
        """N(mu, sigma^2) of every site, as (mu, sigma)."""
        locs = {s: server[self.program.loc_name(s)] for s in self.program.sites}
        return {s: (loc, server[f"variance/{s}"].sqrt().expand(loc.shape)) for s, loc in locs.items()}


def _scalar(like: Tree, value: float) -> Tensor:
    """A number of the network's dtype, on its device."""
    return next(v for v in like.values() if v.is_floating_point()).new_tensor(value)
