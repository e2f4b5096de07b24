"""The multilayer perceptron."""

from __future__ import annotations

import math
from itertools import pairwise

from pyro.nn import PyroModule
from torch import Tensor, nn


class MLP(PyroModule):
    """`layers` hidden layers of `hidden` units with ReLU, then a linear head.

    A row of any shape is flattened. `dropout` is the probability that a hidden unit is dropped in training.
    """

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, hidden: int = 100, layers: int = 1, dropout: float = 0.0
    ):
        super().__init__()
        if hidden < 1 or layers < 1:
            raise ValueError(f"MLP: hidden and layers must be at least 1, got {hidden} and {layers}")
        widths = [math.prod(shape), *[hidden] * layers]
        blocks: list[nn.Module] = [nn.Flatten()]
        for inputs, units in pairwise(widths):
            blocks += [PyroModule[nn.Linear](inputs, units), nn.ReLU()]
            if dropout:
                blocks.append(nn.Dropout(dropout))
        self.body = PyroModule[nn.Sequential](*blocks)
        self.head = PyroModule[nn.Linear](widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)
