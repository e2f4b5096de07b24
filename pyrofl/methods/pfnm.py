"""PFNM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..data import Data
from ..matching import match
from ..method import Cohort, Reply
from ..random import fold, generator, root
from ..tree import Tree, mean, only, unstack, without
from .fedavg import FedAvg, Pooling

UNITS = "report/units"  # of the matched network that are in use


@dataclass(frozen=True)
class PFNM(FedAvg):
    """Hidden units of the clients' networks are noisy copies of a common set, to which they are matched.

    Client: its own network of `units` hidden units, from a start of its own; in a further round it trains on. Server:
    unit l of client k is the vector of its incoming weights, bias and outgoing weights; `match` finds the atoms, and
    their posterior means are the units of the global network. Output biases are averaged.

    The matched network may be wider than a client's. All states have the width of the configured network, which is the
    most that the matched one can have (`model.hidden`); a client's units are the first `units` of it, and units not in
    use are zero, which is where their gradient keeps them. With `units` None a client has half the width.

    `noise`, `spread` and `gamma` are those of `match`. Our reading: one noise variance for all clients and weights (the
    authors' code also divides that of outgoing weights by how often a client saw their class), and the factor 2 on the
    popularity of old atoms as on that of new ones.

    Reference: Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, 2019, algorithm 1.
    """

    units: int | None = None
    noise: float = 1.0
    spread: float = 1.0
    gamma: float = 1.0
    sweeps: int = 10
    seed: int = 0  # of the clients' initial networks, taken from the run
    pooling: Pooling = field(default="scale", init=False, repr=False)
    finetune: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise", "spread", "gamma"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"method.{name} must be positive, got {getattr(self, name)}")
        if self.sweeps < 1:
            raise ValueError(f"method.sweeps must be at least 1, got {self.sweeps}")
        if not self.program.point_mass:
            raise ValueError("pfnm matches points: use guide = 'delta'")
        self._check_network()
        if not 1 <= self.width <= self.capacity:
            raise ValueError(f"method.units must be from 1 to the network's {self.capacity} units, got {self.units}")

    def _check_network(self) -> None:
        p = self.program
        shapes = {k: p.theta0[k].dim() for k in p.theta0}
        body = sorted(shapes[k] for k in shapes if p.path(k).startswith("net.body."))
        head = sorted(shapes[k] for k in shapes if p.path(k).startswith("net.head."))
        if not body == head == [1, 2] or len(shapes) != 4:
            raise ValueError(
                "pfnm matches the units of one hidden layer that is fully connected, and this network is another: "
                f"it has {len(shapes)} tensors, not a weight and a bias in .body and in .head; use for example "
                "models.mlp:MLP with layers = 1"
            )
        nothing = {k: torch.zeros_like(v) for k, v in p.theta0.items()}
        if bool(p.features(nothing, p.example).any()):
            raise ValueError("pfnm needs a hidden unit without weights to give 0: use for example ReLU or Tanh")

    # ------------------------------------------------------------------ units as vectors

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Names in the tree of hidden weight (H, D), hidden bias (H,), output weight (K, H) and output bias (K,)."""
        p = self.program
        found = {(p.path(k).split(".")[1], v.dim()): k for k, v in p.theta0.items()}
        return found["body", 2], found["body", 1], found["head", 2], found["head", 1]

    @property
    def capacity(self) -> int:
        return len(self.program.theta0[self.names[1]])

    @property
    def width(self) -> int:
        return (self.capacity + 1) // 2 if self.units is None else self.units

    def vectors(self, theta: Tree) -> Tensor:
        """(H, D + 1 + K): incoming weights, bias and outgoing weights of each unit."""
        weight, bias, out, _ = self.names
        return torch.cat([theta[weight], theta[bias].unsqueeze(1), theta[out].T], 1)

    def network(self, vectors: Tensor) -> Tree:
        """The units' tensors from their vectors, zero beyond the last."""
        like = self.program.theta0
        weight, bias, out, _ = self.names
        full = torch.zeros_like(self.vectors(like))
        full = torch.cat([vectors.to(full), full[len(vectors) :]])
        D = like[weight].shape[1]
        return {weight: full[:, :D], bias: full[:, D], out: full[:, D + 1 :].T}

    def narrow(self, theta: Tree) -> Tree:
        """The network with the first `units` units of `theta`."""
        return {**theta, **{k: v.clone() for k, v in self.network(self.vectors(theta)[: self.width]).items()}}

    # ------------------------------------------------------------------ hooks

    def init(self, key: Tensor) -> Tree:
        theta = self.narrow(super().init(key))
        return {**theta, UNITS: next(iter(theta.values())).new_tensor(float(self.width))}

    def down(self, server: Tree, client: int) -> Tree:
        return {**without(server, [UNITS]), "client": torch.tensor(client, device=server[UNITS].device)}

    def join(self, down: Tree) -> Tree:
        return self.narrow(self.program.init(fold(root(self.seed), "pfnm", int(down["client"]))))

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.fit(self.program.parts, own, data, key)
        y = self.narrow(y)
        return Reply(y, y, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        clients = [self.vectors(unstack(ups, k))[: self.width] for k in range(len(cohort.ids))]
        found = match(
            [v.double().cpu().numpy() for v in clients],
            generator(cohort.key),
            noise=self.noise,
            spread=self.spread,
            gamma=self.gamma,
            most=self.capacity,
            sweeps=self.sweeps,
        )
        bias = mean(only(ups, self.names[3:]), self.shares(cohort))
        units = self.network(torch.from_numpy(np.ascontiguousarray(found.atoms)))
        units = {k: v.contiguous() for k, v in units.items()}
        return {**server, **units, **bias, UNITS: server[UNITS].new_tensor(float(len(found.atoms)))}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return only(down, self.program.theta0)
