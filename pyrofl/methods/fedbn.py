"""FedBN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..data import Data
from ..tree import Tree
from .partial import Partial


@dataclass(frozen=True)
class FedBN(Partial):
    """Every normalisation layer stays at its client: scale, shift and running statistics; all else is averaged.

    The layers are found by their type, wherever they are in the network. A client predicts with the shared layers as
    they are now, and with statistics of its own training rows under them; so does a client never seen before, from the
    network's initial scales and shifts. The mean over clients is not weighted, as in the authors' code.

    Reference: Li, Jiang, Zhang, Kamp, Dou, 2021, algorithm 1.
    """

    weighting: Literal["rows", "uniform"] = "uniform"

    travels: ClassVar[str] = "all but the normalisation layers, down and up"
    stays: ClassVar[str] = "the normalisation layers"

    def __post_init__(self) -> None:
        try:
            self.program.names("norm")
        except ValueError as error:
            text = "fedbn keeps normalisation layers at the clients, and this network has none: use fedavg"
            raise ValueError(text) from error
        super().__post_init__()

    @property
    def mine(self) -> frozenset[str]:
        return self.program.names("norm")

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return self.program.refresh(super().personal(down, own, data, key), data)
