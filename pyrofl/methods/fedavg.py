"""FedAvg, and BayFL, which is FedAvg with a mean-field Normal guide."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Data
from ..distill import Distillation, distill, ensemble, needs_unlabelled
from ..fit import Loss, fit
from ..meanfield import pool
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer, with_rate
from ..program import Program
from ..random import fold
from ..tree import Tree, mean, only, unstack

Pooling = Literal["scale", "unconstrained", "variance", "mixture", "product"]


@dataclass(frozen=True)
class FedAvg:
    """Average locally trained models, weighted by rows.

    x <- sum_k (n_k / n) y_k, with y_k after `epochs` local epochs of batches of `size` rows from x. With a Normal guide
    the server pools the clients' posteriors by the rule `pooling`. `finetune` lets a client predict with its own model
    after one more local update ("FedAvg+FT"), instead of with the global one.

    Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, 2017, algorithm 1.
    """

    program: Program
    optimizer: Optimizer = field(default=SGD(0.1))
    epochs: float = 1.0
    size: int = 32
    weighting: Literal["rows", "uniform"] = "rows"
    pooling: Pooling = "scale"
    finetune: bool = False

    guide: ClassVar[str] = "delta"
    prior: ClassVar[str] = "flat"
    pools: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.epochs > 0 or not math.isfinite(self.epochs):
            raise ValueError(f"method.epochs must be positive, got {self.epochs}")
        if self.size < 1:
            raise ValueError(f"method.size must be at least 1 row, got {self.size}")
        if self.pooling != "scale" and not self.program.mean_field:
            raise ValueError(
                f"method.pooling = {self.pooling!r} pools scales, and a point guide has none; use guide = 'normal'"
            )
        if self.pooling == "product" and self.program.prior_posterior() is None:
            raise ValueError("method.pooling = 'product' counts the prior once, so it needs Gaussian priors")

    def init(self, key: Tensor) -> Tree:
        return self.program.init(key)

    def down(self, server: Tree, client: int) -> Tree:
        return server

    def message(self, down: Tree) -> Tree:
        return only(down, self.program.theta0)

    def common(self, server: Tree) -> Tree | None:
        return only(server, self.program.theta0)

    def join(self, down: Tree) -> Tree:
        return {}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.fit(self.program.parts, down, data, key)
        return Reply(self.program.refresh(y, data), own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        weights, p = self.shares(cohort), self.program
        if self.pooling == "unconstrained" or not p.mean_field:
            return {**server, **mean(ups, weights)}
        q = pool(p.posterior(ups), weights, self.pooling, prior=p.prior_posterior())
        return {**server, **mean(ups, weights), **p.guide_of(q)}

    def shares(self, cohort: Cohort) -> Tensor:
        """Weight of each client in the average, (C,), adding up to 1."""
        n = cohort.n.double() if self.weighting == "rows" else torch.ones_like(cohort.n, dtype=torch.float64)
        return n / n.sum()

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return self.local(down, own, data, key).up if self.finetune else {**down, **own}

    def predict(self, theta: Tree, x: Tensor, key: Tensor) -> Tensor:
        return self.program.predict(theta, x, key)

    @property
    def stochastic(self) -> bool:
        """Whether `predict` differs from draw to draw."""
        return not self.program.point_mass

    def fit(
        self,
        loss: Loss,
        theta: Tree,
        data: Data,
        key: Tensor,
        *,
        optimizer: Optimizer | None = None,
        epochs: float | None = None,
        names: frozenset[str] | None = None,
        shift: Tree | None = None,
        pull: tuple[float, Tree] | None = None,
    ) -> tuple[Tree, Tree]:
        """`fit` with the method's own budget where nothing else is said; running statistics are never trained."""
        return fit(
            loss,
            only(theta, self.program.theta0),
            data,
            key,
            optimizer=self.optimizer if optimizer is None else optimizer,
            epochs=self.epochs if epochs is None else epochs,
            size=self.size,
            names=self.program.trainable if names is None else names & self.program.trainable,
            shift=shift,
            pull=pull,
        )


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

    guide: ClassVar[str] = "normal"
    prior: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher_draws < 1:
            raise ValueError(f"method.teacher_draws must be at least 1, got {self.teacher_draws}")
        if self.distillation is not None:
            needs_unlabelled(self.unlabelled, self.program, "this method, with its distillation,")

    def init(self, key: Tensor) -> Tree:
        start = super().init(key)
        return start if self.schedule == "a" else {**start, "round": torch.tensor(1, device=key.device)}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        if self.schedule == "a":
            return super().local(down, own, data, key)
        k = down["round"].double()
        share = {"a/sqrt(K)": torch.ones_like(k) * self.rounds**-0.5, "a/k": 1 / k, "a/sqrt(k)": k**-0.5}[self.schedule]
        rate = self.optimizer.lr * share
        y, info = self.fit(self.program.parts, down, data, key, optimizer=with_rate(self.optimizer, rate))
        return Reply(self.program.refresh(y, data), own, {**info, "rate": rate})

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
