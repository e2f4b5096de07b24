"""The study's network with batch normalisation, which FedBN needs."""

from __future__ import annotations

import math

from torch import Tensor, nn


class NormalisedMLP(nn.Module):
    """A row of any shape -> `hidden` units, normalised, with ReLU -> outputs."""

    def __init__(self, shape: tuple[int, ...], outputs: int, *, hidden: int = 100):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)
