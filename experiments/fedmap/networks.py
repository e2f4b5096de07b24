"""The networks of the experiments, with batch normalisation on demand: FedBN needs it, the others do not."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Features -> 32 -> 16 -> outputs with ReLU, as in the paper."""

    def __init__(self, shape: tuple[int, ...], outputs: int, *, norm: bool = False):
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, units in pairwise((math.prod(shape), 32, 16)):
            layers += [nn.Linear(inputs, units), *([nn.BatchNorm1d(units)] if norm else []), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)


class ConvNet(nn.Module):
    """Three 3 x 3 convolutions, each with batch normalisation, ReLU and 2 x 2 max pooling, and a linear head."""

    def __init__(self, shape: tuple[int, ...], outputs: int, *, channels: int = 16):
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, units in pairwise((shape[0], channels, 2 * channels, 4 * channels)):
            layers += [nn.Conv2d(inputs, units, 3, padding=1), nn.BatchNorm2d(units), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(4 * channels * (shape[1] // 8) * (shape[2] // 8), outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # (B, outputs)
