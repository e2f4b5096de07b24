"""FedProx."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..data import Batch, Data
from ..method import Reply
from ..tree import Tree, only, sqnorm, sub
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal pull to the round's starting model.

    y minimises f_k(y) + (mu / 2) ||y - x||^2, the squared norm over all trained tensors, x held fixed.

    Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, 2020, algorithm 2.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"method.mu must be 0 or positive, got {self.mu}")

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        x = only(down, self.program.trainable)

        def proximal(y: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            loss, scalars = self.program.parts(y, batch, k)
            return loss + self.mu / 2 * sqnorm(sub(only(y, x), x)), scalars

        y, info = self.fit(proximal, down, data, key)
        return Reply(self.program.refresh(y, data), own, info)
