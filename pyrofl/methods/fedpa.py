"""FedPA: federated posterior averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer
from ..tree import Ravel, Tree, mean, only, pack, part, scale, sub, where, without, zeros
from .fedavg import FedAvg, Pooling
from .tuning import OwnTuning


@dataclass(frozen=True)
class FedPA(OwnTuning, FedAvg):
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
    weighting: Literal["rows"] = field(default="rows", init=False, repr=False)
    pooling: Pooling = field(default="scale", init=False, repr=False)

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
        if self.warmup < 0:
            raise ValueError(f"method.warmup is a number of rounds, 0 or more, got {self.warmup}")
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
        x, l = only(down, self.program.trainable), self.samples
        per_epoch = ((data.n + self.size - 1) // self.size).clamp_min(1)
        blank = pack(sample={k: v.new_zeros(l, *v.shape) for k, v in x.items()})

        def average(t: int, theta: Tree, batch: Batch, k: Tensor) -> Tree:
            here = torch.arange(l, device=per_epoch.device) == t // per_epoch - self.burn_in  # (l,)
            share = lambda v: (here.to(v.dtype) / per_epoch).reshape(-1, *[1] * v.dim()) * v
            return {f"sample/{name}": theta[f"sample/{name}"] + share(theta[name]) for name in x}

        y, info = self.fit(self.program.parts, down, data, key, after=average, kept=blank)
        ravel = Ravel(x)
        rows = torch.cat([v.reshape(l, -1) for v in part(y, "sample").values()], 1)  # (l, P)
        step = ravel.tree(posterior_step(rows, ravel.flat(x), self.rho))
        move = where(down["round"] <= self.warmup, sub(only(y, x), x), step)
        theta = self.program.refresh(without(y, blank), data)
        return Reply({**only(theta, self.program.buffers), **pack(move=move)}, own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        new, x = mean(ups, cohort.n), only(server, self.program.trainable)
        theta, state = self.server.update(scale(part(new, "move"), -1.0), part(server, "state"), x)
        now = torch.full_like(server["round"], cohort.round + 1)
        return {**server, **only(new, self.program.buffers), **theta, **pack(state=state), "round": now}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        here = only(down, self.program.theta0)
        return super().local(here, own, data, key).up if self.finetune else here


def posterior_step(samples: Tensor, x: Tensor, rho: float) -> Tensor:
    """Sigma^-1 (m - x), (P,), for the mean m and Sigma = r I + (1 - r) S of `samples` (l, P), in O(l^2 P).

    Sigma / r = I + sum_t g_t u_t u_t', u_t = x_t - mean of the samples before, g_t = rho (t - 1) / t: one rank at a
    time by Sherman and Morrison's formula, in float64.
    """
    l, first, *rest = len(samples), *samples.double().unbind()
    m, a = first, first - x.double()
    known: list[tuple[Tensor, Tensor]] = []  # v_t = (Sigma_t-1 / r)^-1 u_t, and g_t / (1 + g_t <v_t, u_t>)
    for t, sample in enumerate(rest, 2):
        u, g = sample - m, rho * (t - 1) / t
        v = u
        for w, c in known:
            v = v - c * torch.dot(w, u) * w
        uv = torch.dot(u, v)
        a = a + v / t * (1 - g * (t * torch.dot(a, u) + uv) / (1 + g * uv))
        m = m + u / t
        known.append((v, g / (1 + g * uv)))
    return ((1 + (l - 1) * rho) * a).to(x.dtype)
