"""Ditto."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..data import Data
from ..limits import EPOCHS, positive
from ..method import Reply
from ..optim import SGD, Optimizer
from ..random import fold
from ..tree import Tree, only
from .fedavg import FedAvg
from .fixed import Untuned


@dataclass(frozen=True)
class Ditto(Untuned, FedAvg):
    """A personal model beside the global one, pulled towards it; the global one is trained as by FedAvg.

    Client: y as in FedAvg, from w; and v minimises f_k(v) + (lam / 2) ||v - w||^2 from its last v, by `own_epochs`
    epochs of `own_optimizer`, w the model as received. Sends y, keeps v with its own running statistics, and predicts
    with v. The squared norm is over all trained tensors: with a Normal guide, over locations and unconstrained scales.
    A client that has not taken part predicts with w. lam = 0 leaves v alone.

    Reference: Li, Hu, Beirami, Smith, 2021, algorithm 1.
    """

    lam: float = 1.0
    own_optimizer: Optimizer = field(default=SGD(0.1))
    own_epochs: float = 1.0

    travels: ClassVar[str] = "the global model, down and up"
    stays: ClassVar[str] = "the personal model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam < math.inf:
            raise ValueError(f"method.lam must be 0 or positive, got {self.lam}")
        positive("method", self, "own_epochs", most=EPOCHS)

    def join(self, down: Tree) -> Tree:
        return only(down, self.program.theta0)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p = self.program
        up, _, info = super().local(down, {}, data, key)
        v, mine = self.fit(
            p.parts,
            own,
            data,
            fold(key, "own"),
            optimizer=self.own_optimizer,
            epochs=self.own_epochs,
            pull=(self.lam, down),
        )
        return Reply(up, p.refresh(v, data), {**info, **{f"own_{k}": value for k, value in mine.items()}})

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return own
