"""Models of which a part never leaves the client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..data import Data
from ..method import Cohort, Reply
from ..tree import Tree, only, without
from .fedavg import FedAvg


@dataclass(frozen=True)
class Partial(FedAvg):
    """FedAvg of all tensors but those in `mine`, which every client keeps; with nothing in `mine` it is FedAvg.

    A client's own part starts as the network starts it. There is no global model to predict with.
    """

    @property
    def mine(self) -> frozenset[str]:
        """Names in the tree of what a client keeps."""
        return frozenset()

    def init(self, key: Tensor) -> Tree:
        return without(super().init(key), self.mine)

    def common(self, server: Tree) -> Tree | None:
        return None if self.mine else super().common(server)

    def join(self, down: Tree) -> Tree:
        return {k: v.clone() for k, v in only(self.program.theta0, self.mine).items()}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, _, info = super().local({**down, **own}, {}, data, key)
        return Reply(without(y, self.mine), only(y, self.mine), info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        C = len(cohort.ids)
        blank = {k: v.expand(C, *v.shape) for k, v in only(self.program.theta0, self.mine).items()}
        return without(super().aggregate(server, {**ups, **blank}, cohort), self.mine)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        reply = self.local(down, own, data, key) if self.finetune else Reply(down, own, {})
        return {**reply.up, **reply.own}
