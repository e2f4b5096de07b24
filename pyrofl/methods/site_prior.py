"""What empirical-Bayes methods share: estimates and covariances go up, a prior over the parameters comes down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data import Data
from ..empirical_bayes.mixture import Mixture
from ..empirical_bayes.slots import component, filled, to_numpy
from ..estimate import Estimator
from ..limits import at_least, positive
from ..method import Cohort, Reply
from ..optim import SGD, Optimizer
from ..random import fold, uniform
from ..tree import Ravel, Tree, only, pack, part, put, without
from .fedavg import FedAvg
from .fixed import ByRows, Untuned

_MOST = 1000  # coordinates: a covariance of 8 MB


@dataclass(frozen=True)
class SitePrior(Untuned, ByRows, FedAvg):
    """theta_k ~ G at every client; the server estimates G from z_k and V_k, and each client computes its posterior.

    Client: z_k = argmax log p(rows | theta) - ridge |theta|^2 / 2 by Newton's method on all rows, and
    V_k = (information(z_k) + ridge I)^-1. Both are the same in every round; no row travels. Server: G from the
    estimates of all clients heard so far. Client: theta_k | z_k ~ w_j N(z_k; a_j, V_k), from which it predicts. A
    client without rows predicts with G. The covariance is a working model: for small generalised linear models.
    """

    ridge: float = 0.1
    newton: int = 30
    clients: int = 1  # taken from the run
    optimizer: Optimizer = field(default=SGD(0.1), init=False, repr=False)  # there are no gradient steps
    epochs: float = field(default=1.0, init=False, repr=False)
    size: int = field(default=1, init=False, repr=False)

    travels: ClassVar[str] = "an estimate and its covariance go up, the prior over the parameters comes down"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "estimates the prior itself, from point estimates under prior = 'flat'"
    prior: ClassVar[str] = "flat"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.program.flat:
            raise ValueError("the prior is what is estimated here: use guide = 'delta' and prior = 'flat'")
        positive("method", self, "ridge")  # without it separable rows have no finite estimate
        at_least("method", self, 1, "newton", unit="step")
        if self.dimension > _MOST:
            raise ValueError(
                f"the model has {self.dimension} parameters, and this method sends covariance matrices of them: it is "
                f"for models of at most {_MOST}, such as models.logistic:Logistic"
            )

    # ------------------------------------------------------------------ layout

    @property
    def ravel(self) -> Ravel:
        return Ravel(only(self.program.theta0, self.program.trainable))

    @property
    def dimension(self) -> int:
        return sum(self.ravel.sizes)

    @property
    def slots(self) -> int:
        """Atoms that a prior has room for: one a client is enough in theory, near-duplicates take another."""
        return 2 * self.clients

    def estimator(self, down: Tree, data: Data) -> Estimator:
        held = only(down, self.program.buffers)
        return Estimator(self.program, self.ravel, held, data, self.ridge)

    # ------------------------------------------------------------------ hooks

    def init(self, key: Tensor) -> Tree:
        theta = self.program.init(key)
        first, K, M, d = self.ravel.flat(theta), self.clients, self.slots, self.dimension
        prior = {"atoms": first.expand(M, d).clone(), "weights": torch.eye(M).to(first)[0]}
        nothing = {"estimate": first.new_zeros(K, d), "covariance": first.new_zeros(K, d, d)}
        heard = {**nothing, "yes": torch.zeros(K, dtype=torch.bool, device=first.device)}
        report = {"log_likelihood": first.new_zeros(()), "atoms": first.new_ones(())}
        return {**theta, **pack(prior=prior, heard=heard, report=report)}

    def down(self, server: Tree, client: int) -> Tree:
        return without(super().down(server, client), pack(heard=part(server, "heard")))

    def message(self, down: Tree) -> Tree:
        some, d = down["prior/atoms"], self.dimension
        return {"estimate": some.new_zeros(d), "covariance": some.new_zeros(d, d)}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        e = self.estimator(down, data)
        z = e.fit(self.start(down), steps=self.newton)
        n = data.n.clamp_min(1)
        info = {"nll": self.program.log_likelihood(self.ravel.tree(z, e.held), data).neg(), "loss": e.objective(z) / n}
        return Reply({"estimate": z, "covariance": torch.linalg.inv(e.precision(z))}, own, info)

    def start(self, down: Tree) -> Tensor:
        """Where Newton's method starts: at 0, the same for all clients and rounds, (d,)."""
        return torch.zeros_like(down["prior/atoms"][0])

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        new = self.hear(server, ups, cohort)
        heard = new["heard/yes"]
        z, V = (to_numpy(new[f"heard/{k}"][heard]) for k in ("estimate", "covariance"))
        return {**new, **self.as_tree(server, self.estimate(z, (V + np.swapaxes(V, 1, 2)) / 2, cohort.key))}

    def hear(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        """The server with the cohort's estimates written down."""
        heard, yes = part(server, "heard"), torch.ones_like(cohort.ids, dtype=torch.bool)
        return {**server, **pack(heard=put(heard, cohort.ids, {**only(ups, heard), "yes": yes}))}

    def estimate(self, z: Any, V: Any, key: Tensor) -> Mixture:
        """The prior of estimates (K, d) with covariances (K, d, d)."""
        raise NotImplementedError(f"{type(self).__name__} must define estimate(z, V, key) -> Mixture")

    def as_tree(self, server: Tree, prior: Mixture) -> Tree:
        """The prior, and its mean as a model."""
        like = server["prior/atoms"]
        made = filled(prior, len(like), like)
        atoms = float((made["weights"] > 0).sum())
        report = {"log_likelihood": like.new_tensor(prior.log_likelihood), "atoms": like.new_tensor(atoms)}
        return {**pack(prior=made, report=report), **self.ravel.tree(made["weights"] @ made["atoms"])}

    def common(self, server: Tree) -> Tree | None:
        return only(server, self.program.theta0)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        atoms, log_w = down["prior/atoms"], down["prior/weights"].log()
        log_phi = self.log_kernel(self.estimator(down, data), atoms)  # (M,)
        r = torch.softmax(log_w + torch.where(data.n > 0, log_phi, 0), 0)
        mean = self.ravel.tree(r @ atoms, only(down, self.program.buffers))
        return {**mean, "posterior/atoms": atoms, "posterior/weights": r}

    def log_kernel(self, e: Estimator, atoms: Tensor) -> Tensor:
        """log N(z_k; a_j, V_k(a_j)) of each atom, (M,) in nats."""
        raise NotImplementedError

    def predict(self, theta: Tree, x: Tensor, key: Tensor) -> Tensor:
        if "posterior/weights" not in theta:
            return self.program.predict(theta, x, None)
        j = component(theta["posterior/weights"], uniform(fold(key, "atom"), (), torch.float64))
        vector = self.draw(part(theta, "posterior"), j, fold(key, "within"))
        return self.program.predict({**theta, **self.ravel.tree(vector)}, x, None)

    def draw(self, posterior: Tree, j: Tensor, key: Tensor) -> Tensor:
        """A parameter vector (d,) of component j (1,)."""
        return posterior["atoms"].index_select(0, j).squeeze(0)

    @property
    def stochastic(self) -> bool:
        return True
