"""PFNM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..data import Data
from ..limits import at_least, positive
from ..matching import match
from ..method import Cohort, Reply
from ..random import fold, generator, root
from ..tree import Tree, mean, only, unstack, without
from .fedavg import FedAvg
from .fixed import Unpooled, Untuned
from .hidden_units import HiddenUnits

UNITS = "report/units"  # of the matched network that are in use


@dataclass(frozen=True)
class PFNM(Untuned, Unpooled, FedAvg):
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

    travels: ClassVar[str] = "the client's network goes up, the matched one comes down"
    stays: ClassVar[str] = "the client's network, from which it goes on"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "matches points"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.program.kind not in ("categorical", "bernoulli"):
            raise ValueError(
                f"pfnm matches networks of classifiers, and this model's likelihood is {self.program.kind}"
            )
        positive("method", self, "noise", "spread", "gamma")
        at_least("method", self, 1, "sweeps")
        room = self.hidden.capacity
        if not 1 <= self.width <= room:
            raise ValueError(f"method.units must be from 1 to the network's {room} units, got {self.units}")

    @property
    def hidden(self) -> HiddenUnits:
        return HiddenUnits(self.program)

    @property
    def width(self) -> int:
        """Hidden units of a client's network."""
        return (self.hidden.capacity + 1) // 2 if self.units is None else self.units

    def init(self, key: Tensor) -> Tree:
        theta = self.hidden.narrow(super().init(key), self.width)
        return {**theta, UNITS: next(iter(theta.values())).new_tensor(float(self.width))}

    def down(self, server: Tree, client: int) -> Tree:
        return {**without(server, [UNITS]), "client": torch.tensor(client, device=server[UNITS].device)}

    def join(self, down: Tree) -> Tree:
        theta = self.program.init(fold(root(self.seed), "pfnm", int(down["client"])))
        return self.hidden.narrow(theta, self.width)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        y, info = self.fit(self.program.parts, own, data, key)
        y = self.hidden.narrow(y, self.width)
        return Reply(y, y, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        hidden = self.hidden
        clients = [hidden.vectors(unstack(ups, k))[: self.width] for k in range(len(cohort.ids))]
        found = match(
            [v.double().cpu().numpy() for v in clients],
            generator(cohort.key),
            noise=self.noise,
            spread=self.spread,
            gamma=self.gamma,
            most=hidden.capacity,
            sweeps=self.sweeps,
        )
        bias = mean(only(ups, hidden.names[3:]), self.shares(cohort))
        units = hidden.network(torch.from_numpy(found.atoms).to(clients[0]))
        return {**server, **units, **bias, UNITS: server[UNITS].new_tensor(float(len(found.atoms)))}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return only(down, self.program.theta0)
