"""BayFL: FedAvg with a mean-field Normal guide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..data import Data
from ..distill import Distillation, distill, ensemble, needs_unlabelled
from ..limits import at_least
from ..method import Cohort
from ..optim import with_rate
from ..random import fold
from ..tree import Tree, only, unstack
from .fedavg import FedAvg


@dataclass(frozen=True)
class BayFL(FedAvg):
    """Federated averaging of mean-field posteriors: the server averages the clients' means and scales.

    `schedule` sets the rate of global round k of K from the optimizer's rate a, as in the paper's Theorem 1:
    "a" (constant), "a/sqrt(K)", "a/k" or "a/sqrt(k)".

    With `distillation` the server goes on from the pooled posterior: on unlabelled rows of its own it learns what the
    clients' posteriors and the pooled one predict together, the mean over `teacher_draws` draws of each. Means of the
    weights are what it learns; scales stay as they were pooled, since rows without labels are no evidence.

    Reference: Rahman, Nguyen, 2026, "BayFL" and Theorem 1.
    """

    schedule: Literal["a", "a/sqrt(K)", "a/k", "a/sqrt(k)"] = "a"
    rounds: int = 1  # K, taken from the run
    distillation: Distillation | None = None
    teacher_draws: int = 10
    unlabelled: Tensor | None = field(default=None, repr=False, compare=False)  # (U, ...), taken from the run

    travels: ClassVar[str] = "the posterior, down and up: mean and scale of every weight"
    guide: ClassVar[str] = "normal"
    prior: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method", self, 1, "teacher_draws")
        if self.distillation is not None:
            needs_unlabelled(self.unlabelled, self.program, "this method, with its distillation,")

    @property
    def uses_rounds(self) -> bool:
        """Here by `schedule` alone; a class on top of this one is taken to use it, unless it says otherwise."""
        return type(self) is not BayFL or self.schedule == "a/sqrt(K)"

    def init(self, key: Tensor) -> Tree:
        start = super().init(key)
        return start if self.schedule == "a" else {**start, "round": torch.tensor(1, device=key.device)}

    def train(self, theta: Tree, data: Data, key: Tensor, **how: Any) -> tuple[Tree, Tree]:
        if self.schedule == "a":
            return super().train(theta, data, key, **how)
        rate = self.rate(theta["round"].double())
        y, info = super().train(theta, data, key, optimizer=with_rate(self.optimizer, rate), **how)
        return y, {**info, "rate": rate}

    def rate(self, k: Tensor) -> Tensor:
        """The rate of global round k = 1, 2, ..., (), where it moves with k; a schedule of your own overrides this."""
        share = {"a/sqrt(K)": torch.ones_like(k) * self.rounds**-0.5, "a/k": 1 / k, "a/sqrt(k)": k**-0.5}[self.schedule]
        return self.optimizer.lr * share

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        new = super().aggregate(server, ups, cohort)
        if "round" in server:
            new["round"] = torch.full_like(server["round"], cohort.round + 1)
        return new if self.distillation is None else {**new, **self.distilled(new, ups, cohort, self.distillation)}

    def distilled(self, pooled: Tree, ups: Tree, cohort: Cohort, how: Distillation) -> Tree:
        """The pooled posterior with its means moved towards what all posteriors predict on the unlabelled rows."""
        assert self.unlabelled is not None
        p, x = self.program, self.unlabelled
        draws = self.teacher_draws if self.stochastic else 1
        teachers = [only(pooled, p.theta0), *(unstack(ups, k) for k in range(len(cohort.ids)))]
        log_p = ensemble(p, teachers, x, cohort.key, draws=draws)  # (U, K)
        scales = {p.scale_name(s) for s in p.sites} if p.mean_field else set()
        return distill(p, pooled, log_p, x, fold(cohort.key, "distill"), how, names=p.trainable - scales)[0]
