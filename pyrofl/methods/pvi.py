"""Partitioned variational inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..data import Data
from ..limits import at_least
from ..meanfield import Posterior, moments, natural, shortened, spare
from ..method import Cohort, Reply
from ..random import root
from ..tree import Tree, add, mean, only, pack, part, scale, sub, where, without, zeros
from .fedavg import FedAvg
from .fixed import ByRows, OwnTuning

FLOOR = 1e-3  # of the prior's precision: what a cavity, and the posterior, have at least


@dataclass(frozen=True)
class PVI(OwnTuning, ByRows, FedAvg):
    """q(w) = p(w) prod_k t_k(w): every client refines its own factor t_k of one posterior.

    Client: cavity = q / t_k; q_k = argmax E[log p(rows | w)] - KL(q_k || cavity) by `epochs` of stochastic gradients
    from its last q_k; step = (q_k / q)^damping; t_k <- t_k step. Server: q <- q prod_k step_k. Products are sums of
    natural parameters, in float64, so that q is p prod_k t_k after every round. One client is variational inference.

    `together` clients at most take part in a round, all of them if it is not given. `damping` is 1 / together if not
    given: q then is the geometric mean of the q_k. Larger values can diverge where local fits stop early. One client
    at a time: `together = 1` and `cohort = { clients = 1 }`.

    A cavity, or a q, of a precision that is not positive is no density. Where q / t_k would have less than a thousandth
    of the prior's precision in some coordinate, a smaller power of t_k is divided out of it; where q would have less if
    all clients took the same step, the step is taken to a smaller power. `shortened` in the log is the part of the
    coordinates where either happened. Parameters without a prior are averaged, weighted by rows.

    Reference: Ashman, Bui, Nguyen, Markou, Weller, Swaroop, Turner, 2022, algorithm 1 with synchronous or sequential
    updates; Bui, Nguyen, Swaroop, Turner, 2018.
    """

    damping: float | None = None
    together: int | None = None
    clients: int = 1  # taken from the run
    seed: int = 0  # of the first q_k, alike for all clients; taken from the run

    guide: ClassVar[str] = "normal"
    prior: ClassVar[str] = "gaussian"
    travels: ClassVar[str] = "global posterior down, change of the client's factor up, both as natural parameters"
    stays: ClassVar[str] = "the client's factor of the posterior"
    guides: ClassVar[tuple[str, ...]] = ("normal",)
    guides_because: ClassVar[str] = "multiplies Normals: prior, factors and posterior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.program.prior_posterior() is None:
            raise ValueError(
                "prior, factors and posterior are Normals: use guide = 'normal' and prior = 'gaussian', or in a Pyro "
                "model Normal priors that depend on no other latent site or parameter"
            )
        if self.damping is not None and not 0 < self.damping <= 1:
            raise ValueError(f"method.damping must be above 0 and at most 1, got {self.damping}")
        at_least("method", self, 1, "together", unit="client")

    @property
    def at_once(self) -> int:
        """How many clients a round may have."""
        return self.clients if self.together is None else self.together

    @property
    def start(self) -> Posterior:
        """q before any client was heard: the prior."""
        return self.program.prior_posterior() or {}

    # ------------------------------------------------------------------ hooks

    def init(self, key: Tensor) -> Tree:
        return {**super().init(key), **self.program.guide_of(self.start), **pack(q=natural(self.start))}

    def down(self, server: Tree, client: int) -> Tree:
        return only(server, self.program.theta0)

    def message(self, down: Tree) -> Tree:
        points = without(super().message(down), self.program.posterior_names)
        return {**points, **pack(factor=zeros(natural(self.start)))}

    def join(self, down: Tree) -> Tree:
        return {
            **only(self.program.init(root(self.seed)), self.program.posterior_names),
            **pack(factor=zeros(natural(self.start))),
        }

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, q, t = self.program, natural(self.program.posterior(down)), self.factor(down, own, data)
        mine, dtype = p.posterior_names, down[p.loc_name(p.sites[0])].dtype
        lowest = spare(q, natural(self.start), FLOOR)
        divisor = shortened(scale(t, -1.0), lowest)
        theta, info = self.refine({**down, **only(own, mine)}, moments(add(q, divisor), dtype), data, key)
        wanted = scale(sub(natural(p.posterior(theta)), q), self.damping or 1 / self.at_once)
        step = shortened(wanted, scale(lowest, 1 / self.at_once))
        cut = [(a[k] != b[k]).flatten() for a, b in ((divisor, scale(t, -1.0)), (step, wanted)) for k in lowest]
        info = {**info, "shortened": torch.cat(cut).float().mean()}
        kept = {**only(theta, mine), **only(pack(factor=add(t, step)), own)}
        return Reply({**without(theta, mine), **pack(factor=step)}, kept, info)

    def factor(self, down: Tree, own: Tree, data: Data) -> Tree:
        """The client's factor of q, in natural parameters."""
        return part(own, "factor")

    def refine(self, theta: Tree, cavity: Posterior, data: Data, key: Tensor) -> tuple[Tree, Tree]:
        """The tilted posterior, cavity times likelihood, as parameters of the guide that start at `theta`."""
        return self.fit_under(cavity, theta, data, key)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        if len(cohort.ids) > self.at_once:
            raise ValueError(f"method.together is {self.at_once} and the round has {len(cohort.ids)} clients: raise it")
        p, steps = self.program, part(ups, "factor")
        q = add(part(server, "q"), {k: v.sum(0) for k, v in steps.items()})
        rest, dtype = mean(without(ups, pack(factor=steps)), cohort.n), server[p.loc_name(p.sites[0])].dtype
        return {**server, **rest, **p.guide_of(moments(q, dtype)), **pack(q=q)}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        q = only(down, self.program.theta0)
        if not self.finetune:
            return q
        reply = self.local(down, own, data, key)
        return where(data.n > 0, only({**reply.up, **reply.own}, q), q)
