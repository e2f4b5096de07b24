"""A network as a configuration names it: `"support.nets:Dense"`."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Dense(nn.Module):
    """A row of any shape -> `hidden` units, or none if `linear` -> outputs."""

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        hidden: int = 4,
        dropout: float = 0.0,
        batch_norm: bool = False,
        linear: bool = False,
    ):
        super().__init__()
        if linear:
            self.body: nn.Module = nn.Flatten()
            self.head = nn.Linear(math.prod(shape), outputs)
            return
        blocks: list[nn.Module] = [nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.Tanh()]
        if batch_norm:
            blocks.append(nn.BatchNorm1d(hidden))
        if dropout:
            blocks.append(nn.Dropout(dropout))
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def not_a_network(shape: tuple[int, ...], outputs: int) -> str:
    return "a string"
