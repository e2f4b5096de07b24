"""FedProx."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data import Data
from ..tree import Tree
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

    def train(self, theta: Tree, data: Data, key: Tensor, **how: Any) -> tuple[Tree, Tree]:
        return super().train(theta, data, key, pull=(self.mu, theta), **how)
