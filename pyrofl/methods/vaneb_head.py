"""VANEB-Head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..data import Data
from ..limits import at_least
from ..method import Cohort, Reply
from ..tree import Tree, only, where, without
from .fixed import OwnTuning
from .head_prior import HeadPrior


@dataclass(frozen=True)
class VANEBHead(OwnTuning, HeadPrior):
    """A shared body and personal heads, which an empirical-Bayes step at the server shrinks every `every` rounds.

    Client: all layers, from the averaged body and its own head, or the head that the server last gave it. Server: the
    bodies' mean every round; in every fifth, theta_k = E[theta_k | z_k, V_k] for the heads of all clients heard so far
    (see `HeadPrior`). A client that was away takes its shrunken head when it comes back.

    Our reading where the paper is open: between the steps heads stay with their clients, as in FedPer.

    Reference: Chang, Auddy, Paul, "Variance-Aware Nonparametric Empirical Bayes", VANEB-Head.
    """

    every: int = 5

    travels: ClassVar[str] = "body down and up; every few rounds a head and its variances up, a head down"
    stays: ClassVar[str] = "the head"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method", self, 1, "every", unit="round")

    def init(self, key: Tensor) -> Tree:
        theta = super().init(key)
        return {**without(theta, self.mine), **self.heads(theta)}

    def message(self, down: Tree) -> Tree:
        return {**without(down, ["waits", "head"]), **self.ravel.tree(down["head"]), "variance": down["head"]}

    def common(self, server: Tree) -> Tree | None:
        return None

    def join(self, down: Tree) -> Tree:
        return {k: v.clone() for k, v in self.ravel.tree(down["head"]).items()}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.fit(self.program.parts, self.now(down, own), data, key)
        y = self.program.refresh(y, data)
        return Reply({**y, "variance": self.variance(y, data)}, only(y, self.mine), info)

    def now(self, down: Tree, own: Tree) -> Tree:
        """The averaged body and the client's head as it is now."""
        theta = only(down, self.program.theta0)
        return {**theta, **where(down["waits"], dict(self.ravel.tree(down["head"])), own)}

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        bodies = without(ups, {*self.mine, "variance"})
        new = self.hear(super().aggregate(server, bodies, cohort), ups, cohort)
        return self.shrunk(new) if cohort.round % self.every == 0 else new

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return without(self.local(down, own, data, key).up, ["variance"]) if self.finetune else self.now(down, own)
