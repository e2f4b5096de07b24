"""What empirical-Bayes methods for network heads share: a head and its variances go up, a posterior mean comes down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..curvature import head_scores
from ..data import Data
from ..empirical_bayes.line import npmle_lines
from ..empirical_bayes.npmle import npmle
from ..limits import positive
from ..method import Cohort
from ..tree import Ravel, Tree, only, pack, part, put
from .fedavg import FedAvg

HEADS = "heads/"
Shrunk = tuple[NDArray[np.float64], NDArray[np.float64], float, float]


@dataclass(frozen=True)
class HeadPrior(FedAvg):
    """The heads z_k (C, H + 1) of all clients are noisy draws from one prior G: z_k ~ N(theta_k, V_k), theta_k ~ G.

    V_k is diagonal, 1 / (n_k (F_k + damping)), with F_k the client's mean squared score of every weight. A weight of
    which a client's rows say nothing, such as those of a class that it lacks, has F_k near 0 and takes the prior's
    value; `damping`, in the unit of F (1 / weight^2 a row), limits how uncertain it gets. V_k does not move with
    theta_k. `estimate` says what G is a prior of:

    - "coordinate": of one weight, and every weight has its own, by d problems in one dimension;
    - "direct": of the whole head. With few clients in so many dimensions each keeps an atom of its own: its head.
    """

    estimate: Literal["coordinate", "direct"] = "coordinate"
    damping: float = 1e-3
    tolerance: float = 1e-4  # certified gap of G's log-likelihood, nats a client
    clients: int = 1  # taken from the run

    prior: ClassVar[str] = "flat"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "takes one estimate of each head"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "damping", "tolerance")
        p = self.program
        if p.kind not in ("categorical", "bernoulli"):
            raise ValueError(f"the variances of a head are those of a classifier's, and this model is {p.kind}")
        if not isinstance(getattr(getattr(p.model, "net", p.model), "head", None), nn.Linear):
            raise ValueError("the network has no linear layer .head: the closed form of its variances is for one")

    # ------------------------------------------------------------------ the head as one vector

    @property
    def mine(self) -> frozenset[str]:
        """Names in the tree of the head's weights and biases."""
        return self.program.names("head") & self.program.trainable

    @property
    def ravel(self) -> Ravel:
        return Ravel(only(self.program.theta0, self.mine))

    def variance(self, theta: Tree, data: Data) -> Tensor:
        """1 / (n (F + damping)) of every weight of the head, (d,)."""
        squares = self.ravel.flat(head_scores(self.program, theta, data, self.ravel.names))
        return 1 / (squares + data.n.clamp_min(1) * self.damping)

    # ------------------------------------------------------------------ state and messages

    def heads(self, theta: Tree) -> Tree:
        """The server's first state of the heads: what it heard, and what waits to be taken by each client."""
        z = self.ravel.flat(theta).expand(self.clients, -1).clone()  # (K, d)
        no = torch.zeros(self.clients, dtype=torch.bool, device=z.device)
        first = {"estimate": z, "variance": torch.ones_like(z), "heard": no, "posterior": z.clone(), "waits": ~no}
        reports = {"report/heads_log_likelihood": z.new_zeros(()), "report/heads_gap": z.new_zeros(())}
        return {**{HEADS + k: v for k, v in first.items()}, **reports}

    def down(self, server: Tree, client: int) -> Tree:
        row = {"head": server[f"{HEADS}posterior"][client], "waits": server[f"{HEADS}waits"][client]}
        return {**only(server, self.program.theta0), **row}

    def hear(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        """The server's state with the cohort's heads written down; they have taken what waited for them."""
        z = torch.stack([self.ravel.flat({k: ups[k][i] for k in self.mine}) for i in range(len(cohort.ids))])
        yes = torch.ones_like(cohort.ids, dtype=torch.bool)
        said = {"estimate": z, "variance": ups["variance"], "heard": yes, "waits": ~yes}
        return {**server, **pack(heads=put(only(part(server, "heads"), said), cohort.ids, said))}

    def shrunk(self, server: Tree) -> Tree:
        """The empirical-Bayes step: every client's posterior mean, the prior's mean for those not heard yet."""
        heard, like = server[f"{HEADS}heard"], server[f"{HEADS}posterior"]
        z, V = (server[HEADS + k][heard].double().cpu().numpy() for k in ("estimate", "variance"))
        means, center, fitted, gap = shrink(z, V, self.estimate, self.tolerance)
        posterior = torch.as_tensor(center).to(like).expand_as(like).clone()
        posterior[heard] = torch.as_tensor(means).to(like)
        return {
            **server,
            f"{HEADS}posterior": posterior,
            f"{HEADS}waits": torch.ones_like(heard),
            "report/heads_log_likelihood": like.new_tensor(fitted),
            "report/heads_gap": like.new_tensor(gap),
        }


def shrink(z: NDArray[np.float64], V: NDArray[np.float64], how: str, tolerance: float) -> Shrunk:
    """(posterior means (K, d), mean of the prior (d,), log-likelihood in nats a client, largest gap)."""
    if how == "direct":
        prior = npmle(z, V, tolerance=tolerance, workers=1)
        return prior.posterior(z, V).mean, prior.weights @ prior.atoms, prior.log_likelihood, prior.gap
    lines = npmle_lines(z.T, V.T, tolerance=tolerance, workers=1)
    center = (lines.weights * lines.atoms).sum(1)
    return lines.mean.T, center, float(lines.log_likelihood.sum()), float(lines.gap.max())
