"""pFedBL: a shared body and a personal Bayesian last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..data import Data
from ..method import Reply
from ..tree import Tree, only
from .fedavg import FedAvg
from .fixed import OwnTuning


@dataclass(frozen=True)
class PFedBL(OwnTuning, FedAvg):
    """A body that is averaged, and a posterior q_k of the last layer that every client keeps, pulled to their average.

    Client: lowers mean E[-log p(y | x, w)] + KL(q_k || q) / n_k over the body, from the server's, and over q_k, from
    its last one; both are sent. Server: averages the bodies and pools the q_k by the rule `pooling` into q, the prior
    of the next round. With `prior = { name = "gaussian", points = ["norm", "body"] }` the body is deterministic; else
    it has a posterior too, under the declared prior. The network needs an attribute `head`.

    This is our reading of a method that we know from citations alone ("a Bayesian layer at clients and server"), not a
    reproduction.

    Reference: Yu and others, 2025, as cited by Rahman, Nguyen, 2026.
    """

    guide: ClassVar[str] = "normal"
    prior: ClassVar[str] = "gaussian"
    travels: ClassVar[str] = "the body, and the last layer's posterior, down and up"
    stays: ClassVar[str] = "the posterior of the client's last layer"
    guides: ClassVar[tuple[str, ...]] = ("normal",)
    guides_because: ClassVar[str] = "has a Normal posterior of the last layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head:
            raise ValueError("the last layer has a Normal posterior: use a network with a .head")

    @property
    def head(self) -> tuple[str, ...]:
        """The latent sites of the last layer."""
        names = self.program.names("head")
        return tuple(s for s in self.program.sites if self.program.loc_name(s) in names)

    @property
    def mine(self) -> frozenset[str]:
        """Names in the tree of the last layer's posterior."""
        return self.program.posterior_names & self.program.names("head")

    def join(self, down: Tree) -> Tree:
        return {k: v.clone() for k, v in only(down, self.mine).items()}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        q = self.program.posterior(down)
        theta, info = self.fit_under({s: q[s] for s in self.head}, {**down, **own}, data, key)
        return Reply(theta, only(theta, self.mine), info)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        if self.finetune:
            return self.local(down, own, data, key).up
        return self.program.refresh({**down, **own}, data)
