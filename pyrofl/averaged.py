"""In which numbers a server's step is a plain mean of the clients' messages, so that their sum is all it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .method import Cohort
from .methods.fedavg import FedAvg
from .program import Program
from .random import fold, normal, root
from .tree import Tree, mean, stack

_RTOL, _ATOL = 1e-4, 1e-5  # of float32; a wrong rule is off by a tenth


@dataclass(frozen=True)
class Averaged:
    """z_k of message k, such that the server's step is that on copies of the message of z = sum_k w_k z_k.

    In z a mean-field posterior is (loc, scale) by the `rule` "scale", (loc, scale^2) by "variance",
    (loc, scale^2 + loc^2) by "mixture", (loc / scale^2, 1 / scale^2) by "product", and the guide's own parameters by
    "plain". w_k is 1 / C, or n_k / n where `rows`. Everything else of a message is averaged as it is.
    """

    program: Program
    rule: str = "plain"
    rows: bool = False

    def of(self, message: Tree) -> Tree:
        """z, under the names of the message."""
        p = self.program
        if self.rule == "plain" or not p.posterior_names <= message.keys():
            return message
        out = dict(message)
        for site, (loc, scale) in p.posterior(message).items():
            m, s = loc.double(), scale.double()
            first, second = {
                "scale": (m, s),
                "variance": (m, s.square()),
                "mixture": (m, s.square() + m.square()),
                "product": (m / s.square(), s.square().reciprocal()),
            }[self.rule]
            out |= {p.loc_name(site): first, p.scale_name(site): second}
        return out

    def back(self, z: Tree, like: Tree) -> Tree:
        """The message of z, in the dtypes of `like`; not finite where there is none, as for a negative variance."""
        p = self.program
        if self.rule == "plain":
            return z
        q = {}
        for site in p.sites:
            first, second = z[p.loc_name(site)], z[p.scale_name(site)]
            q[site] = {
                "scale": (first, second),
                "variance": (first, second.sqrt()),
                "mixture": (first, (second - first.square()).sqrt()),
                "product": (first / second, second.rsqrt()),
            }[self.rule]
        return {k: v.to(like[k].dtype) for k, v in {**z, **p.guide_of(q)}.items()}

    def shares(self, n: Tensor) -> Tensor:
        """C w_k for each of C clients of n_k rows, (C,)."""
        w = n.double() if self.rows else torch.ones_like(n, dtype=torch.float64)
        return w * (len(w) / w.sum())


def averaged(method: FedAvg, server: Tree) -> Averaged:
    """The numbers in which this method's server takes a plain mean, found by trying; refused where there are none."""
    name, like = type(method).__name__, method.message(method.down(server, 0))
    if odd := [k for k, v in like.items() if not v.is_floating_point()]:
        raise ValueError(f"secure: {odd[0]!r} of {name}'s message is no real number, and is not summed")
    if any(a is not server.get(k) for k, a in method.down(server, 1).items()):
        raise ValueError(f"secure: {name} sends each client something else, and the plain mean is of one thing")
    if not like:
        raise ValueError(f"secure: {name} sends nothing, so there is nothing to sum: leave secure out")
    key, some = root(0), next(iter(like.values()))
    away = lambda c: {k: v + 0.5 * normal(fold(key, c, k), v.shape, v.dtype).to(v.device) for k, v in like.items()}
    ups, n = stack([away(c) for c in range(3)]), torch.tensor([1, 2, 3], device=some.device)
    cohort = Cohort(torch.arange(3, device=some.device), n, key, 1)
    try:
        right, odd = method.aggregate(server, ups, cohort), []
        for candidate in _candidates(method, like):
            z = mean(candidate.of(ups), candidate.shares(n))
            copies = stack([candidate.back(z, like)] * 3)
            odd = _different(right, method.aggregate(server, copies, cohort))
            if not odd:
                return candidate
    except ValueError as error:
        raise ValueError(f"secure: {name}'s server needs more than a sum of messages: {error}") from None
    raise ValueError(f"secure: {name}'s server needs more than a sum of the clients' messages, for {odd[0]!r}")


def _candidates(method: FedAvg, like: Tree) -> Iterator[Averaged]:
    posterior = method.program.mean_field and method.program.posterior_names <= like.keys()
    its_own = "plain" if method.pooling == "unconstrained" else method.pooling
    for rule in dict.fromkeys(("plain", its_own, "mixture") if posterior else ("plain",)):
        yield from (Averaged(method.program, rule, rows) for rows in (False, True))


def _different(right: Tree, other: Tree) -> list[str]:
    real = [k for k, v in right.items() if v.is_floating_point()]
    return [k for k in real if not torch.allclose(right[k], other[k], rtol=_RTOL, atol=_ATOL)]
