"""FedBABU: body aggregation and body update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..data import Data
from ..method import Reply
from ..tree import Tree, without
from .fedper import FedPer


@dataclass(frozen=True)
class FedBABU(FedPer):
    """Only the body is trained in the federation, under one random head; each client fine-tunes a copy to predict.

    b_k minimises f_k(b, h0) from b with h0 fixed; b <- mean_k b_k. h0 is the head that all clients start with: it comes
    from the run's seed, so that it never travels. The global model is (b, h0). `finetune` trains a copy of it on the
    client's own rows: of both parts (the authors' choice), or of one (`finetune_part`).

    Reference: Oh, Kim, Yun, 2022, algorithm 1.
    """

    weighting: Literal["rows", "uniform"] = "uniform"
    finetune: bool = True
    finetune_epochs: float | None = 5.0

    stays: ClassVar[str] = "the head, the same at all clients and never trained"

    def common(self, server: Tree) -> Tree | None:
        return {**server, **self.join(server)}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.train({**down, **own}, data, key, names=self.part("body"))
        return Reply(without(y, self.mine), own, info)
