"""FedPHP: the private model of a client's past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..likelihoods import predictive_kl, soften
from ..limits import positive
from ..method import Reply
from ..tree import Tree, only
from .fedavg import FedAvg
from .fixed import Unpooled, Untuned


@dataclass(frozen=True)
class FedPHP(Untuned, Unpooled, FedAvg):
    """Each client keeps a moving average of its own past models, learns from it and predicts with it.

    Client: y as in FedAvg, from w, by the loss (1 - lam) f_k(y) + lam R(y, P), R the mean over rows of
    KL(p_P || p_y), the predictions of P softened by `temperature`; those of y are not, as in the authors' code, or
    (`softened = "both"`) they are, with R times temperature^2. Then P <- m P + (1 - m) y with
    m = min(most * c / (participation * rounds), most), c the rounds in which the client took part before. At its first
    there is no P: m = lam = 0. Sends y; P has running statistics of its own, and predicts as it was trained, with them.
    The authors' second R, a kernel distance of features, is not offered.

    Averaging and distilling are of one network: a point guide.

    Reference: Li, Zhan, Shao, Li, Song, 2021, "FedPHP", with knowledge distillation.
    """

    lam: float = 0.05
    temperature: float = 4.0
    softened: Literal["teacher", "both"] = "teacher"
    most: float = 0.9
    rounds: int = 1  # taken from the run
    participation: float = 1.0  # share of the clients in a round, taken from the run

    stays: ClassVar[str] = "the moving average of the client's past models"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "distils from one network of the past"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam < 1:
            raise ValueError(f"method.lam must be from 0 to below 1, got {self.lam}: 1 leaves no weight to the labels")
        if not 0 <= self.most <= 1:
            raise ValueError(f"method.most must be from 0 to 1, got {self.most}")
        positive("method", self, "temperature")
        kind = self.program.kind
        if self.temperature != 1 and kind not in ("categorical", "bernoulli"):
            raise ValueError(
                f"method.temperature softens class probabilities, and a {kind} likelihood has none: set it to 1"
            )

    def join(self, down: Tree) -> Tree:
        w = only(down, self.program.theta0)
        return {**w, "rounds": next(iter(w.values())).new_zeros(())}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, past, c = self.program, only(own, self.program.theta0), own["rounds"]
        lam = self.lam * (c > 0).to(c.dtype)

        def distilled(y: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            value, scalars = p.parts(y, batch, k)
            R = (batch.weight * self.distance(past, y, batch)).sum()
            return (1 - lam) * value + lam * R, {**scalars, "distance": R.detach()}

        y, info = self.fit(distilled, down, data, key)
        y = p.refresh(y, data)
        m = (self.most * c / (self.participation * self.rounds)).clamp(0, self.most)
        mine = p.refresh({k: torch.lerp(v, past[k], m) for k, v in y.items()}, data)
        return Reply(y, {**mine, "rounds": c + 1}, {**info, "memory": m})

    def distance(self, past: Tree, y: Tree, batch: Batch) -> Tensor:
        """R of each row, (B,) in nats."""
        p, T = self.program, self.temperature
        teacher, student = p.predict(past, batch.x, None), p.predict(y, batch.x, None, rows=batch.distinct)
        if T == 1:
            return predictive_kl(p.kind, teacher, student)
        if self.softened == "teacher":
            return predictive_kl(p.kind, soften(p.kind, teacher, T), student)
        return T**2 * predictive_kl(p.kind, soften(p.kind, teacher, T), soften(p.kind, student, T))

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return only(own, self.program.theta0)
