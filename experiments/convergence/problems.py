"""Strongly convex federated problems whose constants are known: MAP estimates of regressions under N(0, 1/(n mu)).

F(w) = (1/N) sum_n F_n(w), and F_n is the loss that the library trains on: the client's mean of -log p(y | x, w) plus
(mu / 2) ||w||^2, the whole prior at every client. Two likelihoods:

    logistic    y | x ~ Bernoulli(sigmoid(x'w))    Hessian X' diag(p (1 - p)) X / n + mu I, at most X'X / (4 n) + mu I
    linear      y | x ~ N(x'w, sigma^2)            Hessian X'X / (n sigma^2) + mu I, everything in closed form

Clients differ in their true weights and in how their features lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import linalg, optimize
from scipy.special import expit
from torch import nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.guides import Delta
from pyrofl.likelihoods import Bernoulli
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.random import fold, generator, root

SIGMA = 1.0  # noise of the linear regression


@dataclass(frozen=True)
class Problem:
    """`x` (N, n, d) and `y` (N, n) of N clients with n rows each; `ridge` is the prior's precision over n."""

    kind: str  # "logistic" or "linear"
    x: np.ndarray
    y: np.ndarray
    ridge: float

    # ------------------------------------------------------------------ the objective, at one w (d,) or many (..., d)

    def values(self, w: np.ndarray) -> np.ndarray:
        """F_n(w) less the likelihood's constant, (..., N)."""
        z = np.einsum("...d,nrd->...nr", w, self.x)
        nll = np.logaddexp(0, z) - self.y * z if self.kind == "logistic" else (z - self.y) ** 2 / (2 * SIGMA**2)
        return nll.mean(-1) + self.ridge / 2 * np.square(w).sum(-1)[..., None]

    def slopes(self, w: np.ndarray) -> np.ndarray:
        """Gradients of F_n at the client's own w (..., N, d), by row: (..., N, n, d)."""
        z = np.einsum("...nd,nrd->...nr", w, self.x)
        residual = expit(z) - self.y if self.kind == "logistic" else (z - self.y) / SIGMA**2
        return residual[..., None] * self.x + self.ridge * w[..., None, :]

    def gradients(self, w: np.ndarray) -> np.ndarray:
        """Gradients of F_n at a common w (..., d): (..., N, d)."""
        return self.slopes(self._everywhere(w)).mean(-2)

    def value(self, w: np.ndarray) -> np.ndarray:
        """F(w), (...)."""
        return self.values(w).mean(-1)

    def gradient(self, w: np.ndarray) -> np.ndarray:
        """The gradient of F, (..., d)."""
        return self.gradients(w).mean(-2)

    def noise(self, w: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(E||g - E g||^2, E||g||^2), each (..., N), of g, the mean over `size` different rows, at w (..., N, d)."""
        rows = self.slopes(w)
        n = rows.shape[-2]
        spread = rows.var(-2, ddof=1).sum(-1) / size * (1 - size / n)
        return spread, spread + np.square(rows.mean(-2)).sum(-1)

    def _everywhere(self, w: np.ndarray) -> np.ndarray:
        return np.broadcast_to(w[..., None, :], (*w.shape[:-1], len(self.x), w.shape[-1]))

    # ------------------------------------------------------------------ constants

    @cached_property
    def curvatures(self) -> np.ndarray:
        """Hessians of the F_n where the likelihood curves most, (N, d, d)."""
        scale = 1 / 4 if self.kind == "logistic" else 1 / SIGMA**2
        gram = np.einsum("nri,nrj->nij", self.x, self.x) / self.x.shape[1]
        return scale * gram + self.ridge * np.eye(self.x.shape[2])

    @cached_property
    def smoothness(self) -> float:
        """L: every F_n is L-smooth."""
        return float(self._eigenvalues.max())

    @cached_property
    def convexity(self) -> float:
        """mu: every F_n is mu-strongly convex. The prior's share alone where the likelihood may be flat (logistic)."""
        return self.ridge if self.kind == "logistic" else float(self._eigenvalues.min())

    @cached_property
    def _eigenvalues(self) -> np.ndarray:
        return np.linalg.eigvalsh(self.curvatures)

    @cached_property
    def minimum(self) -> np.ndarray:
        """w*, where the gradient of F is zero."""
        return self._minimum(np.arange(len(self.x)))

    @cached_property
    def heterogeneity(self) -> float:
        """Gamma = F* - (1/N) sum_n F_n*."""
        own = [float(self.values(self._minimum(np.array([n])))[n]) for n in range(len(self.x))]
        return float(self.value(self.minimum)) - float(np.mean(own))

    def _minimum(self, clients: np.ndarray) -> np.ndarray:
        """The minimum of the mean of some clients' F_n: trust-region Newton steps, then one more."""
        some = Problem(self.kind, self.x[clients], self.y[clients], self.ridge)
        start = np.zeros(self.x.shape[2])
        found = optimize.minimize(
            some.value, start, jac=some.gradient, hess=some.hessian, method="trust-exact", options={"gtol": 1e-10}
        )
        return found.x - linalg.solve(some.hessian(found.x), some.gradient(found.x), assume_a="pos")

    def hessian(self, w: np.ndarray) -> np.ndarray:
        """The Hessian of F at w, (d, d)."""
        if self.kind == "linear":
            return self.curvatures.mean(0)
        p = expit(self.x @ w)  # (N, n)
        return np.einsum("nr,nri,nrj->ij", p * (1 - p), self.x, self.x) / p.size + self.ridge * np.eye(len(w))

    # ------------------------------------------------------------------ as the library sees it

    def program(self) -> Program:
        """The model with a point guide, so that training it is training F_n; it starts at w = 0."""
        d = self.x.shape[2]
        net = nn.Linear(d, 1, bias=False).double()
        nn.init.zeros_(net.weight)
        likelihood = Bernoulli() if self.kind == "logistic" else Noise(SIGMA)
        model = Bayesian(net, Gaussian((self.ridge * self.x.shape[1]) ** -0.5), likelihood)
        return Program(model, *(v[:2] for v in self.data()[0][:2]), guide=Delta)

    def data(self) -> list[Data]:
        """Each client's rows."""
        return [Data.of(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(self.x, self.y)]


def make(
    kind: str,
    *,
    seed: int,
    clients: int = 5,
    rows: int = 100,
    features: int = 4,
    ridge: float = 0.2,
    spread: float = 1.0,
) -> Problem:
    """A problem whose clients' true weights lie N(0, spread^2) about common ones, and whose features are shifted."""
    rng = generator(fold(root(seed), "problem", kind))
    w = rng.normal(size=features) + spread * rng.normal(size=(clients, features))
    x = 0.25 * rng.normal(size=(clients, 1, features)) + rng.normal(size=(clients, rows, features))
    z = np.einsum("nd,nrd->nr", w, x)
    y = (rng.random(z.shape) < expit(z)).astype(float) if kind == "logistic" else z + SIGMA * rng.normal(size=z.shape)
    return Problem(kind, x, y, ridge)
