"""The two ends of the scale: no federation, and no clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..data import Data
from ..method import Cohort, Reply
from ..random import root
from ..tree import Tree, where
from .fedavg import FedAvg
from .fixed import ByRows, Untuned


@dataclass(frozen=True)
class Alone(Untuned, ByRows, FedAvg):
    """Every client trains on its own rows for all rounds; nothing travels.

    A client without rows predicts with its prior, where that is Gaussian.
    """

    seed: int = 0  # of the initial model, taken from the run

    travels: ClassVar[str] = "nothing"
    stays: ClassVar[str] = "the model"

    def init(self, key: Tensor) -> Tree:
        return {}

    def message(self, down: Tree) -> Tree:
        return {}

    def common(self, server: Tree) -> Tree | None:
        return None

    def join(self, down: Tree) -> Tree:
        return self.program.init(root(self.seed))

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.train(own, data, key)
        return Reply({}, y, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        return server

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        prior = self.program.prior_posterior() if self.program.mean_field else None
        if prior is None:
            return own
        return where(torch.as_tensor(data.n > 0), own, {**own, **self.program.guide_of(prior)})


@dataclass(frozen=True)
class Pooled(Untuned, ByRows, FedAvg):
    """One model trained on all clients' rows together: what federation gives up, not a federated method."""

    travels: ClassVar[str] = "all rows, to one place"
    pools: ClassVar[bool] = True
