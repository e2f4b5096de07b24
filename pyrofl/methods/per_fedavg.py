"""Per-FedAvg: federated meta-learning of a model to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..fit import descend, slope, with_gradient
from ..limits import at_least, positive
from ..method import Reply
from ..random import fold
from ..tree import Tree, add, only, scale, sqnorm, sub, tmap, where
from .fedavg import FedAvg
from .fixed import Untuned


@dataclass(frozen=True)
class PerFedAvg(Untuned, FedAvg):
    """A model that is good after one gradient step on a client's own rows: min_w mean_k f_k(w - alpha grad f_k(w)).

    Each local step, on batches D1, D2, D3 drawn apart from each other: w' = w - alpha g(w; D1), d = g(w'; D2), and

    - order = "first": w <- w - beta d;
    - order = "hessian_free": w <- w - beta (d - alpha h), h = [g(w + e d; D3) - g(w - e d; D3)] / (2 e), which is the
      product of the Hessian and d; e = `delta` / ||d||, so that the difference is taken over a known distance.

    beta is the rate of `optimizer`; D2 goes through the rows once an epoch, D1 and D3 are drawn at random. The logged
    loss is that of w'. With a Normal guide w are the guide's parameters, and both gradients of h see the same noise. A
    client predicts with w after `adapt` steps of rate alpha, as in training, on its training rows: w alone is a start,
    not a predictor.

    Reference: Fallah, Mokhtari, Ozdaglar, 2020, algorithm 1, "FO" and "HF".
    """

    order: Literal["first", "hessian_free"] = "first"
    alpha: float = 0.03
    delta: float = 1e-3
    adapt: int = 1
    weighting: Literal["rows", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "alpha", "delta")
        at_least("method", self, 1, "adapt", unit="step")

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        def meta(theta: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            w = {name: v.detach() for name, v in theta.items()}
            d, (value, scalars) = slope(self.program.parts, self.step(w, data, k), batch, k, self.program.trainable)
            if self.order == "hessian_free":
                d = sub(d, scale(self.hessian_times(d, w, data, k), self.alpha))
            return with_gradient(value, theta, d), scalars

        y, info = self.fit(meta, down, data, key)
        return Reply(self.program.refresh(y, data), own, info)

    def step(self, w: Tree, data: Data, key: Tensor) -> Tree:
        """w - alpha g(w; D1)."""
        p, k = self.program, fold(key, "inner")
        return descend(p.parts, w, data.sample(k, self.size), k, rate=self.alpha, names=p.trainable)

    def hessian_times(self, d: Tree, w: Tree, data: Data, key: Tensor) -> Tree:
        """The Hessian at w on D3, times d, by a central difference."""
        p, k = self.program, fold(key, "curvature")
        batch, free = data.sample(k, self.size), only(w, p.trainable)
        e = self.delta / sqnorm(d).sqrt().clamp_min(torch.finfo(next(iter(d.values())).dtype).tiny)
        ahead, behind = (slope(p.parts, {**w, **add(free, scale(d, way))}, batch, k, p.trainable)[0] for way in (e, -e))
        return tmap(lambda a, b: (a - b) / (2 * e), ahead, behind)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        w = theta = only(down, self.program.theta0)
        for s in range(self.adapt):
            theta = self.step(theta, data, fold(key, s))
        return where(data.n > 0, self.program.refresh(theta, data), w)
