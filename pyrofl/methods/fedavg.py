"""FedAvg, the base of all methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..fit import After, Loss, fit
from ..limits import EPOCHS, at_least, positive
from ..meanfield import Posterior, pool
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer
from ..program import Program
from ..tree import Tree, mean, only

Pooling = Literal["scale", "unconstrained", "variance", "mixture", "product"]
Part = Literal["all", "head", "body"]
REPORT = "report/"  # begins the names of the server's numbers for people


@dataclass(frozen=True)
class FedAvg:
    """Average locally trained models, weighted by rows.

    x <- sum_k (n_k / n) y_k, with y_k after `epochs` local epochs of batches of `size` rows from x. With a Normal guide
    the server pools the clients' posteriors by the rule `pooling`. `finetune` lets a client predict with its own model
    after one more local update ("FedAvg+FT"), instead of with the global one: of `finetune_epochs` in place of `epochs`
    where given, and of all tensors, or of the network's head or of all others ("body") alone.

    Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, 2017, algorithm 1.
    """

    program: Program
    optimizer: Optimizer = field(default=SGD(0.1))
    epochs: float = 1.0
    size: int = 32
    weighting: Literal["rows", "uniform"] = "rows"
    pooling: Pooling = "scale"
    finetune: bool = False
    finetune_epochs: float | None = None
    finetune_part: Part = "all"

    travels: ClassVar[str] = "the model, down and up"
    stays: ClassVar[str] = "nothing"
    guides: ClassVar[tuple[str, ...]] = ("delta", "normal", "other")  # families that fit; "other": any other autoguide
    guides_because: ClassVar[str] = ""  # why no others do

    guide: ClassVar[str] = "delta"
    prior: ClassVar[str] = "flat"
    pools: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_guide(self.program.family)
        positive("method", self, "epochs", "finetune_epochs", most=EPOCHS)
        at_least("method", self, 1, "size", unit="row")
        if self.pooling != "scale" and not self.program.mean_field:
            raise ValueError(
                f"method.pooling = {self.pooling!r} pools scales, and a point guide has none; use guide = 'normal'"
            )
        if self.pooling == "product" and self.program.prior_posterior() is None:
            raise ValueError(
                "method.pooling = 'product' counts the prior once, so it needs Gaussian priors that depend on no other "
                "latent site or parameter: use prior = 'gaussian', such Normals in a Pyro model, or another pooling"
            )
        if self.finetune_part != "all":
            self.part(self.finetune_part)
        for name in ("finetune_epochs", "finetune_part"):
            if not self.finetune and getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"method.{name} has an effect only with method.finetune = true")

    @classmethod
    def check_guide(cls, family: str) -> None:
        """Raise unless guides of this family fit."""
        if family not in cls.guides:
            known = " or ".join(repr(g) for g in cls.guides)
            raise ValueError(f"{cls.__name__} {cls.guides_because}: use guide = {known}")

    @property
    def uses_rounds(self) -> bool:
        """Whether the total in a field `rounds` changes any update: such a run cannot be resumed with another total."""
        return True

    def init(self, key: Tensor) -> Tree:
        return self.program.init(key)

    def down(self, server: Tree, client: int) -> Tree:
        return {k: v for k, v in server.items() if not k.startswith(REPORT)}

    def message(self, down: Tree) -> Tree:
        return only(down, self.program.theta0)

    def common(self, server: Tree) -> Tree | None:
        return only(server, self.program.theta0)

    def join(self, down: Tree) -> Tree:
        return {}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.train(down, data, key)
        return Reply(y, own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        return {**server, **self.average(ups, self.shares(cohort))}

    def average(self, models: Tree, weights: Tensor) -> Tree:
        """One model from several, (C, ...) -> (...), by the rule `pooling`; `weights` (C,) need not add up to 1."""
        p, plain = self.program, mean(models, weights)
        if self.pooling == "unconstrained" or not p.mean_field:
            return plain
        return {**plain, **p.guide_of(pool(p.posterior(models), weights, self.pooling, prior=p.prior_posterior()))}

    def shares(self, cohort: Cohort) -> Tensor:
        """Weight of each client in the average, (C,), adding up to 1."""
        n = cohort.n.double() if self.weighting == "rows" else torch.ones_like(cohort.n, dtype=torch.float64)
        return n / n.sum()

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        theta = {**down, **own}
        if not self.finetune:
            return theta
        return self.train(theta, data, key, epochs=self.finetune_epochs, names=self.part(self.finetune_part))[0]

    def predict(self, theta: Tree, x: Tensor, key: Tensor) -> Tensor:
        return self.program.predict(theta, x, key)

    @property
    def stochastic(self) -> bool:
        """Whether `predict` differs from draw to draw."""
        return not self.program.point_mass

    def part(self, name: Part) -> frozenset[str]:
        """Names of what is trained: all, the network's head, or all but the head ("body")."""
        every = self.program.trainable
        if name == "all":
            return every
        head = self.program.names("head") & every
        found = head if name == "head" else every - head
        if not found:
            raise ValueError(f"nothing to train in the network's {name!r} alone: it has no parameters there")
        return found

    def train(self, theta: Tree, data: Data, key: Tensor, **how: Any) -> tuple[Tree, Tree]:
        """(model, log) of a local update from `theta`, with running statistics of the new weights; `how`: see `fit`."""
        y, info = self.fit(self.program.parts, theta, data, key, **how)
        return self.program.refresh(y, data), info

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
