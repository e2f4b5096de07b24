"""Adaptive federated optimization: the server treats the clients' average move as a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..limits import positive
from ..method import Cohort
from ..tree import Tree, add, only, pack, part, scale, sub, tmap, zeros
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """x <- server optimizer(x, -d) with the pseudo-gradient -d, d = FedAvg(y_1, ..., y_C) - x.

    The optimizer moves what clients train, in the guide's unconstrained coordinates; running statistics are averaged.
    `move(w, d, server)` returns the new w and the optimizer's new state, which stays on the server.
    """

    server_rate: float = 1.0

    stays: ClassVar[str] = "nothing; the server keeps its optimizer's state"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "server_rate")
        for name in ("momentum", "b1", "b2"):
            if not 0 <= getattr(self, name, 0) < 1:
                raise ValueError(f"method.{name} must be at least 0 and below 1, got {getattr(self, name)}")

    def init(self, key: Tensor) -> Tree:
        x = super().init(key)
        return {**x, **self.memory(only(x, self.program.trainable))}

    def memory(self, w: Tree) -> Tree:
        """The optimizer's first state."""
        return pack(m=zeros(w))

    def down(self, server: Tree, client: int) -> Tree:
        return only(server, self.program.theta0)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        averaged, names = super().aggregate(self.down(server, 0), ups, cohort), self.program.trainable
        w = only(server, names)
        w, memory = self.move(w, sub(only(averaged, names), w), server)
        return {**averaged, **w, **memory}

    def move(self, w: Tree, d: Tree, server: Tree) -> tuple[Tree, Tree]:
        raise NotImplementedError(f"{type(self).__name__} must define move(w, d, server)")


@dataclass(frozen=True)
class FedAvgM(FedOpt):
    """FedAvg with momentum at the server.

    m <- momentum m + d, x <- x + server_rate m, d = FedAvg(y_1, ..., y_C) - x; running statistics are averaged.

    Reference: Hsu, Qi, Brown, 2019; Reddi et al., 2021, "FedAvgM".
    """

    momentum: float = 0.9

    def move(self, w: Tree, d: Tree, server: Tree) -> tuple[Tree, Tree]:
        m = add(scale(part(server, "m"), self.momentum), d)
        return add(w, scale(m, self.server_rate)), pack(m=m)


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """Adam at the server.

    m <- b1 m + (1 - b1) d, v <- b2 v + (1 - b2) d^2, x <- x + server_rate m / (sqrt(v) + tau), from m = 0, v = tau^2
    and without bias correction, as in the paper; d = FedAvg(y_1, ..., y_C) - x. Running statistics are averaged.

    Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, 2021, algorithm 2.
    """

    server_rate: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "tau", most=1e15)  # its square is a float32

    def memory(self, w: Tree) -> Tree:
        return pack(m=zeros(w), v=tmap(lambda k: torch.full_like(k, self.tau**2), w))

    def move(self, w: Tree, d: Tree, server: Tree) -> tuple[Tree, Tree]:
        m = tmap(lambda m, d: self.b1 * m + (1 - self.b1) * d, part(server, "m"), d)
        v = tmap(self.second, part(server, "v"), d)
        step = lambda w, m, v: w + self.server_rate * m / (v.sqrt() + self.tau)
        return tmap(step, w, m, v), pack(m=m, v=v)

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        """The new running mean of d^2."""
        return self.b2 * v + (1 - self.b2) * d.square()


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi at the server: as FedAdam, with a second moment that falls no faster than it rises.

    v <- v - (1 - b2) d^2 sign(v - d^2), all else as in FedAdam.

    Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, 2021, algorithm 2.
    """

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        return v - (1 - self.b2) * d.square() * torch.sign(v - d.square())
