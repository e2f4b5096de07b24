"""pFedMe: personal models by Moreau envelopes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..fit import descend, fit, with_gradient
from ..limits import at_least, positive
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer
from ..tree import Tree, only, pack, part, scale, sub
from .fedavg import FedAvg
from .fixed import Untuned


@dataclass(frozen=True)
class PFedMe(Untuned, FedAvg):
    """The global model descends the envelopes F_k(w) = min_theta f_k(theta) + (lam / 2) ||theta - w||^2.

    Client, each local step on one batch: theta by `inner_steps` steps theta <- theta - inner_lr (g(theta) +
    lam (theta - w_k)), then w_k <- w_k - eta lam (w_k - theta); eta is the rate of `optimizer`, which is plain SGD.
    theta starts a round at w and goes on from its last value, as in the authors' code. Sends w_k; keeps and predicts
    with theta, a new client with w. Server: w <- (1 - beta) w + beta mean_k w_k, running statistics by the mean alone.
    With a Normal guide the distance is over locations and unconstrained scales. The logged loss is that of theta.

    Reference: Dinh, Tran, Nguyen, 2020, algorithm 1.
    """

    lam: float = 15.0
    inner_lr: float = 0.05
    inner_steps: int = 5
    beta: float = 1.0
    optimizer: Optimizer = field(default=SGD(0.01))
    weighting: Literal["rows", "uniform"] = "uniform"

    stays: ClassVar[str] = "the personal model, from which it goes on"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "lam", "inner_lr", "beta")
        at_least("method", self, 1, "inner_steps")
        if self.optimizer != SGD(self.eta):
            raise ValueError("method.optimizer must be plain SGD, such as 'sgd:0.01': its rate is eta of the paper")
        if self.eta * self.lam > 1 or self.inner_lr * self.lam >= 2:
            raise ValueError(
                f"method.lam = {self.lam:g} overshoots: it needs optimizer's rate * lam <= 1, here "
                f"{self.eta * self.lam:g}, and inner_lr * lam < 2, here {self.inner_lr * self.lam:g}"
            )

    @property
    def eta(self) -> float:
        return float(self.optimizer.lr)

    def join(self, down: Tree) -> Tree:
        return only(down, self.program.theta0)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, w, held = self.program, only(down, self.program.trainable), only(down, self.program.buffers)

        def envelope(both: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            w, theta = ({name: v.detach() for name, v in part(both, of).items()} for of in ("w", "theta"))
            new = descend(
                p.parts,
                {**held, **theta},
                batch,
                k,
                rate=self.inner_lr,
                steps=self.inner_steps,
                names=p.trainable,
                pull=(self.lam, w),
            )
            value, scalars = p.parts(new, batch, k)
            new = only(new, p.trainable)
            # theta becomes `new`: a step of rate eta along (theta - new) / eta
            steps = pack(w=scale(sub(w, new), self.lam), theta=scale(sub(theta, new), 1 / self.eta))
            return with_gradient(value, both, steps), scalars

        o, epochs, size = self.optimizer, self.epochs, self.size
        both, info = fit(envelope, pack(w=w, theta=w), data, key, optimizer=o, epochs=epochs, size=size)
        up, theta = ({**held, **part(both, of)} for of in ("w", "theta"))
        return Reply(p.refresh(up, data), p.refresh(theta, data), info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        new = super().aggregate(server, ups, cohort)
        return {k: torch.lerp(server[k], v, self.beta) if k in self.program.trainable else v for k, v in new.items()}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return own
