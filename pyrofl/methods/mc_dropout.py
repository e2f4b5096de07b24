"""Monte Carlo dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..tree import Tree
from .fedavg import FedAvg


@dataclass(frozen=True)
class MCDropout(FedAvg):
    """FedAvg on a network with dropout that stays on at test time: each pass is one approximate posterior draw.

    Batch normalisation predicts with its stored statistics; a Gaussian prior gives the L2 term of the paper.

    Reference: Gal, Ghahramani, "Dropout as a Bayesian Approximation", 2016.
    """

    prior: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.program.has_dropout:
            raise ValueError("mc_dropout needs a network with Dropout layers: set model.dropout, for example to 0.2")

    def predict(self, theta: Tree, x: Tensor, key: Tensor) -> Tensor:
        return self.program.predict(theta, x, key, dropout=True)

    @property
    def stochastic(self) -> bool:
        return True
