"""FedAvg, and BayFL, which is FedAvg with a mean-field Normal guide."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..fit import After, Loss, fit
from ..meanfield import Posterior, pool
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer, with_rate
from ..program import Program
from ..tree import Tree, mean, only

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
        weights = cohort.n.double() if self.weighting == "rows" else torch.ones_like(cohort.n, dtype=torch.float64)
        p = self.program
        if self.pooling == "unconstrained" or not p.mean_field:
            return {**server, **mean(ups, weights)}
        q = pool(p.posterior(ups), weights, self.pooling, prior=p.prior_posterior())
        return {**server, **mean(ups, weights), **p.guide_of(q)}

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
        after: After | None = None,
        kept: Tree | None = None,
    ) -> tuple[Tree, Tree]:
        """`fit` with the method's own budget where nothing else is said; running statistics are never trained.

        `kept` is what `after` changes, beside the program's own tensors.
        """
        return fit(
            loss,
            {**only(theta, self.program.theta0), **(kept or {})},
            data,
            key,
            optimizer=self.optimizer if optimizer is None else optimizer,
            epochs=self.epochs if epochs is None else epochs,
            size=self.size,
            names=self.program.trainable if names is None else names & self.program.trainable,
            shift=shift,
            pull=pull,
            after=after,
        )

    def fit_under(
        self,
        prior: Posterior,
        theta: Tree,
        data: Data,
        key: Tensor,
        *,
        rows: Tensor | None = None,
        names: frozenset[str] | None = None,
    ) -> tuple[Tree, Tree]:
        """`fit` of mean -log p(y | x, w) + beta KL(q || prior) / rows, under a prior N(m, s^2) that came in a message.

        A rate beyond rows s^2 would overshoot the minimum of the KL. There the steps of the locations are cut to that
        rate, by moving u in loc = m + a (u - m). `rows` is the client's own number of rows if not given.
        """
        p, n = self.program, data.n.clamp_min(1) if rows is None else rows
        centre = {p.loc_name(s): m for s, (m, _) in prior.items()}
        stiff = {p.loc_name(s): self.optimizer.lr * p.beta / (n * scale.square()) for s, (_, scale) in prior.items()}
        a = {k: v.clamp_min(1).rsqrt() for k, v in stiff.items()}
        at = lambda u: {**u, **{k: torch.lerp(centre[k], u[k], a[k]) for k in a}}

        def penalised(u: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            return p.parts(at(u), batch._replace(n=n.to(batch.n.dtype)), k, p.as_prior(prior))

        begin = {**theta, **{k: centre[k] + (theta[k] - centre[k]) / a[k] for k in a}}
        u, info = self.fit(penalised, begin, data, key, names=names)
        return p.refresh(at(u), data), info


@dataclass(frozen=True)
class BayFL(FedAvg):
    """Federated averaging of mean-field posteriors: the server averages the clients' means and scales.

    `schedule` sets the rate of global round k of K from the optimizer's rate a, as in the paper's Theorem 1:
    "a" (constant), "a/sqrt(K)", "a/k" or "a/sqrt(k)".

    Reference: Rahman, Nguyen, 2026, "BayFL" and Theorem 1.
    """

    schedule: Literal["a", "a/sqrt(K)", "a/k", "a/sqrt(k)"] = "a"
    rounds: int = 1  # K, taken from the run

    guide: ClassVar[str] = "normal"
    prior: ClassVar[str] = "gaussian"

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
        return new
