"""FedRep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..data import Data
from ..limits import EPOCHS, positive
from ..method import Reply
from ..random import fold
from ..tree import Tree, only, without
from .fedavg import Part
from .fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """As FedPer, one part after the other: many epochs on the head, then few on the body.

    h_k <- `head_epochs` epochs on h with the body at b; then b_k <- `epochs` epochs on b with the head at h_k;
    b <- mean_k b_k. What is not trained is no part of the optimizer: neither momentum nor decay moves it. A client
    predicts with its head fine-tuned to the body as it is now (`finetune`), as the authors do.

    Reference: Collins, Hassani, Mokhtari, Shakkottai, 2021, algorithm 1.
    """

    head_epochs: float = 10.0
    weighting: Literal["rows", "uniform"] = "uniform"
    finetune: bool = True
    finetune_epochs: float | None = 10.0
    finetune_part: Part = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "head_epochs", most=EPOCHS)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        head, body = self.part("head"), self.part("body")
        y = {**down, **own}
        y, first = self.fit(self.program.parts, y, data, fold(key, "head"), epochs=self.head_epochs, names=head)
        y, info = self.train(y, data, key, names=body)
        return Reply(without(y, self.mine), only(y, self.mine), {**info, "steps": first["steps"] + info["steps"]})
