"""SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from ..data import Data
from ..limits import positive
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer
from ..random import fold
from ..tree import Tree, add, mean, only, pack, part, scale, sub, where, zeros
from .fedavg import FedAvg
from .fixed import Alike

_CHUNK = 1000  # rows whose gradient is taken at once


@dataclass(frozen=True)
class SCAFFOLD(Alike, FedAvg):
    """Control variates cancel the drift of clients towards their own minima.

    Client, S local steps: y <- y - a (g(y) - c_k + c). Then its control variate: the mean gradient that it met,
    c_k+ = c_k - c + (x - y) / (S a) (`option = "II"`), or the gradient of all its rows at x (`"I"`). It sends y and
    c_k+ - c_k. Server: x <- x + server_rate mean_k(y_k - x), c <- c + (1 / K) sum_k(c_k+ - c_k), K all clients, not
    only those of the round. All c start at 0. Clients count alike, whatever their rows. Running statistics are
    averaged. With a Normal guide all this holds for the guide's unconstrained parameters, with gradients at a draw.

    Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, 2020, algorithm 1.
    """

    option: Literal["I", "II"] = "II"
    server_rate: float = 1.0
    clients: int = 1  # K, taken from the run
    optimizer: Optimizer = field(default=SGD(0.1))

    travels: ClassVar[str] = "model and control variate down; model and the control variate's change up"
    stays: ClassVar[str] = "the client's control variate"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.optimizer, SGD) or self.optimizer.momentum:
            raise ValueError(
                "scaffold reads the mean gradient off the length of plain SGD steps, which momentum and adaptive rates "
                "change: use optimizer = 'sgd:RATE'"
            )
        positive("method", self, "server_rate")

    def init(self, key: Tensor) -> Tree:
        x = super().init(key)
        return {**x, **pack(c=zeros(only(x, self.program.trainable)))}

    def message(self, down: Tree) -> Tree:
        return down

    def join(self, down: Tree) -> Tree:
        return pack(c=zeros(part(down, "c")))

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        c, ck = part(down, "c"), part(own, "c")
        y, info = self.train(down, data, key, shift=sub(c, ck))
        x, S = only(down, c), info["steps"]
        if self.option == "I":
            new = self.gradient(down, data, fold(key, "control"))
        else:
            path = scale(sub(x, only(y, c)), 1 / (S.clamp_min(1) * self.optimizer.lr))
            new = add(sub(ck, c), path)
        new = where(S > 0, new, ck)
        return Reply({**y, **pack(c=sub(new, ck))}, pack(c=new), info)

    def gradient(self, x: Tree, data: Data, key: Tensor) -> Tree:
        """The gradient at x of the mean loss over all rows, the optimizer's decay included."""
        w = only(x, self.program.trainable)
        total = scale(w, self.optimizer.decay)
        for batch in data.chunks(_CHUNK):
            g = grad(lambda w, b=batch: self.program.loss({**x, **w}, b, key))(w)
            total = add(total, scale(g, batch.live.sum() / batch.n))
        return total

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        m = mean(ups, torch.ones_like(cohort.n))
        x, c = only(server, self.program.trainable), part(server, "c")
        x = add(x, scale(sub(only(m, x), x), self.server_rate))
        c = add(c, scale(part(m, "c"), len(cohort.ids) / self.clients))
        return {**m, **x, **pack(c=c)}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return super().personal(only(down, self.program.theta0), {}, data, key)
