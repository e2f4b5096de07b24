"""Models of which a part never leaves the client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..data import Data
from ..method import Cohort, Reply
from ..random import root
from ..tree import Tree, only, without
from .fedavg import FedAvg


@dataclass(frozen=True)
class Partial(FedAvg):
    """FedAvg of all tensors but those in `mine`, which every client keeps; with nothing in `mine` it is FedAvg.

    All clients' own parts start alike, from the run's seed. There is no global model to predict with.
    """

    seed: int = 0  # of the clients' own parts, taken from the run

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mine >= self.program.trainable:
            raise ValueError(
                f"{type(self).__name__} would keep the whole network at the clients and share nothing: use a network "
                "with more layers, or method = 'alone'"
            )

    @property
    def mine(self) -> frozenset[str]:
        """Names in the tree of what a client keeps."""
        return frozenset()

    def init(self, key: Tensor) -> Tree:
        return without(super().init(key), self.mine)

    def common(self, server: Tree) -> Tree | None:
        return None if self.mine else super().common(server)

    def join(self, down: Tree) -> Tree:
        return only(self.program.init(root(self.seed)), self.mine)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.train({**down, **own}, data, key)
        return Reply(without(y, self.mine), only(y, self.mine), info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        C = len(cohort.ids)
        blank = {k: v.expand(C, *v.shape) for k, v in only(self.program.theta0, self.mine).items()}
        return without(super().aggregate(server, {**ups, **blank}, cohort), self.mine)
