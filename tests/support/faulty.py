"""A method with an own state that fails at one client, known by its number of training rows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrofl.data import Data
from pyrofl.method import Reply
from pyrofl.methods import FedAvg
from pyrofl.tree import Tree


@dataclass(frozen=True)
class Faulty(FedAvg):
    """FedAvg of clients that pull towards where they were last; NaN comes from the client with `nan_rows` rows.

    The client with `slow_rows` rows takes `seconds` seconds.
    """

    nan_rows: int = -1
    slow_rows: int = -1
    seconds: float = 0.0

    def join(self, down: Tree) -> Tree:
        return {k: v.clone() for k, v in self.message(down).items()}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        if int(data.n) == self.slow_rows:
            time.sleep(self.seconds)
        start = {**down, **{k: 0.5 * (down[k] + v) for k, v in own.items()}}
        y, _, info = super().local(start, {}, data, key)
        bad = {k: torch.where(data.n == self.nan_rows, torch.nan, v) for k, v in y.items()}
        return Reply(bad, y, info)
