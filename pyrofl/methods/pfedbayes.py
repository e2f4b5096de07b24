"""pFedBayes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad

from ..data import Batch, Data
from ..limits import at_least
from ..meanfield import divergence
from ..method import Cohort, Reply
from ..optim import Adam, Optimizer
from ..tree import Tree, only, pack, part, where, without
from .fedavg import FedAvg
from .fixed import OwnTuning


@dataclass(frozen=True)
class PFedBayes(OwnTuning, FedAvg):
    """Personal posteriors q_k, pulled to a global one that is the average of the clients' local copies of it.

    Client: w_k <- w; then `inner` steps on q_k to lower mean E[-log p(y | x, v)] + zeta KL(q_k || w_k) / n_k with w_k
    fixed, and one step of the same optimizer on w_k to lower zeta KL(q_k || w_k) / n_k with q_k fixed, by turns for
    `epochs`; a client's last step is followed by one on w_k in any case. q_k stays at the client, w_k is sent. Server:
    w <- (1 - server_rate) w + server_rate mean_k w_k, means and scales pooled by the rule `pooling`.

    The likelihood is a mean over rows, so the KL is divided by n_k. Parameters without a prior are averaged.

    Reference: Zhang, Li, Li, Guo, Shao, 2022, algorithm 1.
    """

    optimizer: Optimizer = field(default=Adam(1e-3))
    zeta: float = 10.0
    inner: int = 5  # R
    server_rate: float = 1.0  # beta

    guide: ClassVar[str] = "normal"
    prior: ClassVar[str] = "gaussian"
    travels: ClassVar[str] = "the global posterior, down and up: mean and scale of every weight"
    stays: ClassVar[str] = "the personal posterior"
    guides: ClassVar[tuple[str, ...]] = ("normal",)
    guides_because: ClassVar[str] = "has a Normal posterior at every client"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.zeta < math.inf:
            raise ValueError(f"method.zeta must be 0 or positive, got {self.zeta}")
        at_least("method", self, 1, "inner", unit="step")
        if not 0 < self.server_rate <= 1:
            raise ValueError(f"method.server_rate must be above 0 and at most 1, got {self.server_rate}")

    def join(self, down: Tree) -> Tree:
        return pack(personal={k: v.clone() for k, v in only(down, self.program.posterior_names).items()})

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, R, last = self.program, self.inner, data.steps(self.epochs, self.size) - 1
        w = only(down, p.posterior_names)
        copy = pack(w=w, state=self.optimizer.init(w))

        def personal(q: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            return p.parts(q, batch._replace(n=batch.n / self.zeta), k, p.as_prior(p.posterior(part(q, "w"))))

        def follow(t: int, theta: Tree, batch: Batch, k: Tensor) -> Tree:
            old, q = {name: theta[name] for name in copy}, p.posterior(theta)
            pull = lambda w: self.zeta * p.beta * divergence(q, p.posterior(w)) / batch.n
            w, state = self.optimizer.update(grad(pull)(part(old, "w")), part(old, "state"), part(old, "w"))
            due = torch.as_tensor((t + 1) % R == 0, device=last.device) | (last == t)
            return where(due, pack(w=w, state=state), old)

        start = {**down, **part(own, "personal")}
        theta, info = self.fit(personal, start, data, key, after=follow, kept=copy)
        mine = only(theta, p.posterior_names)
        return Reply({**p.refresh(without(theta, copy), data), **part(theta, "w")}, pack(personal=mine), info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        p, b = self.program, self.server_rate
        new = super().aggregate(server, ups, cohort)
        step = lambda old, now: torch.lerp(old, now, b)
        q, r = p.posterior(server), p.posterior(new)
        w = {s: (step(q[s][0], r[s][0]), step(q[s][1], r[s][1])) for s in q}
        return {**new, **p.guide_of(w)}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        kept = self.local(down, own, data, key).own if self.finetune else own
        return self.program.refresh({**down, **part(kept, "personal")}, data)
