"""FedPop: a population of personal layers, sampled by Langevin dynamics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from ..data import Batch, Data
from ..meanfield import Posterior
from ..method import Cohort, Reply
from ..optim import SGD, SGLD, Optimizer
from ..random import fold, uniform
from ..tree import Tree, add, mean, only, pack, part, scale, without, zeros
from .fedavg import FedAvg, Pooling
from .tuning import Untuned

FLOOR = 1e-4  # of the population's variance


@dataclass(frozen=True)
class FedPop(Untuned, FedAvg):
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
    weighting: Literal["rows"] = field(default="rows", init=False, repr=False)
    pooling: Pooling = field(default="scale", init=False, repr=False)

    travels: ClassVar[str] = "body and population prior of heads down, the body's change and moments of heads up"
    stays: ClassVar[str] = "the chain's last layer"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "draws last layers by a chain and not from a guide"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1:
            raise ValueError(f"method.samples must be at least 1, got {self.samples}")
        if not 0 <= self.prior_rate <= 1:
            raise ValueError(f"method.prior_rate must be from 0 to 1, got {self.prior_rate}")
        if not FLOOR <= self.first_variance < math.inf:
            raise ValueError(f"method.first_variance must be at least {FLOOR}, got {self.first_variance}")

    # ------------------------------------------------------------------ names

    @property
    def sites(self) -> tuple[str, ...]:
        """The latent sites of the last layer."""
        p, names = self.program, self.program.names("head")
        return tuple(s for s in p.sites if p.loc_name(s) in names)

    @property
    def mine(self) -> frozenset[str]:
        """Names in the tree of z_k."""
        return frozenset(self.program.loc_name(s) for s in self.sites)

    def common(self, server: Tree) -> Tree | None:
        return None

    # ------------------------------------------------------------------ hooks

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
        p, S, steps = self.program, self.samples, data.steps(self.epochs, self.size)
        mu, v, chain = part(down, "mu"), part(down, "v"), part(own, "chain")
        prior = p.as_prior(self.population(mu, v))
        f = lambda theta, batch, k: p.parts(theta, batch, k, prior)
        shared = only(down, p.trainable)

        def keep(t: int, theta: Tree, batch: Batch, k: Tensor) -> Tree:
            here = torch.arange(S, device=steps.device) == t - (steps - S)  # (S,) where this state is kept
            g = grad(lambda phi: f({**theta, **phi}, batch, fold(k, "body"))[0])(only(theta, shared))
            share = here.any().double() / torch.minimum(steps, steps.new_tensor(S)).clamp_min(1)
            at = lambda z, new: torch.where(here.reshape(-1, *[1] * new.dim()), new, z)
            drawn = {name: at(theta[f"chain/{name}"], theta[name]) for name in chain}
            total = {name: theta[f"gradient/{name}"] + share.to(d.dtype) * d for name, d in g.items()}
            return pack(chain=drawn, gradient=total)

        begin = {**down, **{k: chain[k][-1] for k in mu}}  # in the order of the server, which files do not keep
        noisy = SGLD(self.optimizer.lr, temperature=1 / data.n.clamp_min(1).double(), key=fold(key, "langevin"))
        kept = pack(chain=chain, gradient=zeros(shared))
        theta, info = self.fit(f, begin, data, key, optimizer=noisy, names=self.mine, after=keep, kept=kept)
        gap = {k: z - mu[k] for k, z in part(theta, "chain").items()}  # (S, ...)
        first, second = ({k: d.pow(e).mean(0) for k, d in gap.items()} for e in (1, 2))
        points = only(p.refresh(only(theta, p.theta0), data), p.buffers)
        sent = {**points, **pack(gradient=part(theta, "gradient"), first=first, second=second)}
        return Reply(sent, pack(chain=part(theta, "chain")), info)

    def population(self, mu: Tree, v: Tree) -> Posterior:
        """N(mu, v) of every site of the last layer, as (mu, sqrt v)."""
        names = {s: self.program.loc_name(s) for s in self.sites}
        return {s: (mu[name], v[name].sqrt()) for s, name in names.items()}

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        phi, rate = only(server, self.program.trainable), self.prior_rate
        theta, state = self.server.update(mean(part(ups, "gradient"), cohort.n), part(server, "state"), phi)
        first, second = ({k: rate * m.mean(0) for k, m in part(ups, name).items()} for name in ("first", "second"))
        mu, v = add(part(server, "mu"), first), add(scale(part(server, "v"), 1 - rate), second)
        v = {k: (t - first[k].square()).clamp_min(FLOOR) for k, t in v.items()}
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
