"""VANEB-FT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..data import Data
from ..method import Cohort, Reply
from ..tree import Tree, only, where
from .fixed import ByRows, Untuned
from .head_prior import HeadPrior


@dataclass(frozen=True)
class VANEBFT(Untuned, ByRows, HeadPrior):
    """Heads tuned to their clients from one global model, then shrunk by one empirical-Bayes step; the body is frozen.

    The second of two runs: `start` names that of FedAvg, and one round is enough (without `start` the body is as it was
    initialised). Client: `epochs` on the head alone, from the global head; the statistics of normalisation layers stay
    as they are. Server: theta_k = E[theta_k | z_k, V_k] (see `HeadPrior`), with which the client predicts.

    Reference: Chang, Auddy, Paul, "Variance-Aware Nonparametric Empirical Bayes", VANEB-FT.
    """

    travels: ClassVar[str] = "model down, once; a tuned head and its variances up, a shrunken head down"
    stays: ClassVar[str] = "nothing"

    def init(self, key: Tensor) -> Tree:
        theta = super().init(key)
        first = self.heads(theta)
        return {**theta, **first, "heads/waits": ~first["heads/waits"]}

    def message(self, down: Tree) -> Tree:
        return {**only(down, self.mine), "variance": down["head"]}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.fit(self.program.parts, down, data, key, names=self.mine)
        return Reply({**only(y, self.mine), "variance": self.variance(y, data)}, own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        return self.shrunk(self.hear(server, ups, cohort))

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        theta = only(down, self.program.theta0)
        head = where(down["waits"], dict(self.ravel.tree(down["head"])), only(theta, self.mine))
        return {**theta, **head}
