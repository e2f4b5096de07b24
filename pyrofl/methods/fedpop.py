"""FedPop: a population of personal layers, sampled by Langevin dynamics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..data import Data
from ..iterates import LastStates
from ..limits import at_least, between, positive
from ..meanfield import em_step
from ..method import Cohort, Reply
from ..optim import SGD, SGLD, Optimizer
from ..random import fold, uniform
from ..tree import Tree, mean, only, pack, part, tmap, without, zeros
from .fedavg import FedAvg
from .fixed import ByRows, Untuned

FLOOR = 1e-4  # of the population's variance


@dataclass(frozen=True)
class FedPop(Untuned, ByRows, FedAvg):
    """Last layers z_k ~ N(mu, diag v) of a population, a common body phi: maximum likelihood of (phi, mu, v).

    Client: `epochs` of Langevin steps on z_k, of the rate of `optimizer`, with the stationary law
    p(z_k | rows, phi, mu, v) proportional to p(rows | phi, z_k) N(z_k; mu, v); the last `samples` states are kept, and
    the gradient of the mean -log p(y | x) by phi is averaged over them. Sent are that gradient and the means of
    z_k - mu and (z_k - mu)^2. Server: one step of the optimizer `server` on phi; mu and v move by `prior_rate` of the
    way to the moments of the clients' draws, by stochastic approximation EM (0: they stay as they are, 1: EM).

    A client predicts with the average over its kept states; one that never trained, with mu. By minibatches the steps
    are noisier than the law asks for. The order of updates within a round is our reading.

    Reference: Kotelevskii, Vono, Moulines, Durmus, 2022, "FedSOUK".
    """

    samples: int = 5
    prior_rate: float = 0.5
    first_variance: float = 1.0  # v of the first round, where mu is 0
    server: Optimizer = field(default=SGD(0.1))

    travels: ClassVar[str] = "body and population prior of heads down, the body's change and moments of heads up"
    stays: ClassVar[str] = "the chain's last layer"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "draws last layers by a chain and not from a guide"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method", self, 1, "samples")
        between("method", self, 0, 1, "prior_rate")
        at_least("method", self, FLOOR, "first_variance")
        positive("method", self, "first_variance")

    @property
    def last_layer(self) -> dict[str, str]:
        """The sites of z_k, and their names in the tree."""
        p, names = self.program, self.program.names("head")
        return {s: p.loc_name(s) for s in p.sites if p.loc_name(s) in names}

    @property
    def mine(self) -> frozenset[str]:
        """Names in the tree of z_k."""
        return frozenset(self.last_layer.values())

    def common(self, server: Tree) -> Tree | None:
        return None

    def init(self, key: Tensor) -> Tree:
        theta = super().init(key)
        phi, z = without(theta, self.mine), only(theta, self.mine)
        v = {k: torch.full_like(t, self.first_variance) for k, t in z.items()}
        return {**phi, **pack(mu=zeros(z), v=v, state=self.server.init(only(phi, self.program.trainable)))}

    def down(self, server: Tree, client: int) -> Tree:
        return {**only(server, self.program.theta0), **pack(mu=part(server, "mu"), v=part(server, "v"))}

    def message(self, down: Tree) -> Tree:
        phi, mu = only(down, self.program.theta0), part(down, "mu")
        trained = zeros(only(phi, self.program.trainable))
        return {**without(phi, trained), **pack(gradient=trained, first=mu, second=mu)}

    def join(self, down: Tree) -> Tree:
        return pack(chain={k: m.expand(self.samples, *m.shape).clone() for k, m in part(down, "mu").items()})

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, mu, v, chain = self.program, part(down, "mu"), part(down, "v"), part(own, "chain")
        prior = p.as_prior({s: (mu[name], v[name].sqrt()) for s, name in self.last_layer.items()})
        f = lambda theta, batch, k: p.parts(theta, batch, k, prior)
        states = LastStates(f, chain, only(down, p.trainable), data.steps(self.epochs, self.size))
        begin = {**down, **{k: chain[k][-1] for k in mu}}  # in the order of the server, which files do not keep
        noisy = SGLD(self.optimizer.lr, temperature=1 / data.n.clamp_min(1).double(), key=fold(key, "langevin"))
        theta, info = self.fit(
            f, begin, data, key, optimizer=noisy, names=self.mine, after=states.after, kept=states.kept
        )
        gap = {k: z - mu[k] for k, z in part(theta, "chain").items()}  # (S, ...)
        first, second = ({k: d.pow(e).mean(0) for k, d in gap.items()} for e in (1, 2))
        points = only(p.refresh(only(theta, p.theta0), data), p.buffers)
        sent = {**points, **pack(gradient=part(theta, "gradient"), first=first, second=second)}
        return Reply(sent, pack(chain=part(theta, "chain")), info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        phi = only(server, self.program.trainable)
        theta, state = self.server.update(mean(part(ups, "gradient"), cohort.n), part(server, "state"), phi)
        first, second = (tmap(lambda m: m.mean(0), part(ups, name)) for name in ("first", "second"))
        mu, v = em_step(part(server, "mu"), part(server, "v"), first, second, rate=self.prior_rate, floor=FLOOR)
        points = mean(only(ups, self.program.buffers), cohort.n)
        return {**server, **points, **theta, **pack(mu=mu, v=v, state=state)}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        middle = {k: z.mean(0) for k, z in part(own, "chain").items()}
        theta = self.program.refresh({**only(down, self.program.theta0), **middle}, data)
        return {**theta, **own}

    def predict(self, theta: Tree, x: Tensor, key: Tensor) -> Tensor:
        j = (uniform(fold(key, "state"), (1,), torch.float64) * self.samples).long()
        z = {k: c.index_select(0, j).squeeze(0) for k, c in part(theta, "chain").items()}
        return self.program.predict({**only(theta, self.program.theta0), **z}, x, None)

    @property
    def stochastic(self) -> bool:
        return True
