"""Methods that are given a run's rounds: `"support.totals:Slow"` in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyrofl.data import Data
from pyrofl.methods import BayFL, FedAvg
from pyrofl.optim import SGD
from pyrofl.program import Program
from pyrofl.tree import Tree


@dataclass(frozen=True)
class Slow(FedAvg):
    """FedAvg whose rate is 1 / rounds."""

    rounds: int = 1

    def train(self, theta: Tree, data: Data, key: Tensor, **how: Any) -> tuple[Tree, Tree]:
        return super().train(theta, data, key, optimizer=SGD(1 / self.rounds), **how)


def slow(program: Program, rounds: int) -> FedAvg:
    """FedAvg whose rate is 1 / rounds, made by a function."""
    return FedAvg(program, SGD(1 / rounds))


class Own(BayFL):
    """A method on top of one that may use the rounds."""


class Steady(BayFL):
    """The same, which says that it does not."""

    @property
    def uses_rounds(self) -> bool:
        return False
