"""FedPA: federated posterior averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..data import Data
from ..iterates import EpochMeans, posterior_step
from ..limits import at_least
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer
from ..tree import Ravel, Tree, mean, only, pack, part, scale, sub, where, without, zeros
from .fedavg import FedAvg
from .fixed import ByRows, OwnTuning


@dataclass(frozen=True)
class FedPA(OwnTuning, ByRows, FedAvg):
    """The mode of the product of the clients' posteriors, each N(m_k, Sigma_k) sampled by stochastic gradients.

    Client: SGD from x; after `burn_in` epochs the mean iterate of each epoch is a sample, l = epochs - burn_in in all
    (iterate-averaged stochastic gradients). move_k = Sigma_k^-1 (m_k - x), with the mean m_k and the shrunk covariance
    Sigma_k = r I + (1 - r) S_k of the samples, r = 1 / (1 + (l - 1) rho). Server: one step of the optimizer `server`
    along mean_k move_k, weighted by rows.

    With rho = 0 it is FedAvg of averaged iterates. move_k grows with 1 + (l - 1) rho, so the rate of `server` is to be
    chosen anew with l and rho. The first `warmup` rounds take move_k = y_k - x with the last iterate y_k, as FedAvg:
    far from the mode, samples of one client say little.

    Reference: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, 2021, algorithms 2 to 4.
    """

    epochs: float = 5.0  # a whole number
    burn_in: int = 1
    rho: float = 0.01
    warmup: int = 0  # rounds of FedAvg
    server: Optimizer = field(default=SGD(0.5, momentum=0.9))

    travels: ClassVar[str] = "the model comes down, a step towards the mode of the posterior goes up"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "takes iterates of the weights themselves as samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs != int(self.epochs) or not 0 <= self.burn_in < self.epochs:
            raise ValueError(
                f"each epoch after method.burn_in = {self.burn_in} whole epochs gives a sample, "
                f"and method.epochs = {self.epochs} leaves none or part of one"
            )
        at_least("method", self, 0, "warmup", unit="rounds")
        if not 0 <= self.rho < float("inf"):
            raise ValueError(f"method.rho must be 0 or positive, got {self.rho}")
        if self.rho > 0 and self.samples < 2:
            raise ValueError(
                "one sample has no covariance, and this would be FedAvg: raise method.epochs, or take rho = 0"
            )

    @property
    def samples(self) -> int:
        """l, the samples of a local update."""
        return int(self.epochs) - self.burn_in

    def init(self, key: Tensor) -> Tree:
        theta = super().init(key)
        state = self.server.init(only(theta, self.program.trainable))
        return {**theta, **pack(state=state), "round": torch.tensor(1, device=key.device)}

    def down(self, server: Tree, client: int) -> Tree:
        return {**only(server, self.program.theta0), "round": server["round"]}

    def message(self, down: Tree) -> Tree:
        return {**only(down, self.program.buffers), **pack(move=zeros(only(down, self.program.trainable)))}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        x = only(down, self.program.trainable)
        means = EpochMeans(x, self.samples, data, size=self.size, burn_in=self.burn_in)
        y, info = self.fit(self.program.parts, down, data, key, after=means.after, kept=means.kept)
        ravel = Ravel(x)
        step = ravel.tree(posterior_step(means.rows(y), ravel.flat(x), self.rho))
        move = where(down["round"] <= self.warmup, sub(only(y, x), x), step)
        theta = self.program.refresh(without(y, means.kept), data)
        return Reply({**only(theta, self.program.buffers), **pack(move=move)}, own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        new, x = mean(ups, cohort.n), only(server, self.program.trainable)
        theta, state = self.server.update(scale(part(new, "move"), -1.0), part(server, "state"), x)
        now = torch.full_like(server["round"], cohort.round + 1)
        return {**server, **only(new, self.program.buffers), **theta, **pack(state=state), "round": now}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        here = only(down, self.program.theta0)
        return super().local(here, own, data, key).up if self.finetune else here
