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
        linear: bool = False,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ):
        super().__init__()
        units = math.prod(shape) if linear else hidden
        blocks: list[nn.Module] = [nn.Flatten()]
        if not linear:
            blocks += [nn.Linear(math.prod(shape), units), nn.Tanh()]
        if batch_norm:
            blocks.append(nn.BatchNorm1d(units))
        if dropout:
            blocks.append(nn.Dropout(dropout))
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def not_a_network(shape: tuple[int, ...], outputs: int) -> str:
    return "a string"
