"""How the covariance of a site's estimate depends on the parameter: V_k(theta) = Sigma_k(theta) / n_k.

Every family fits one client, `fit(x, y) -> (z, n)`, evaluates its covariance function at any points,
`covariance(theta, x) -> (M, d, d)` or (M, d) when diagonal, and turns many clients into a `Kernel`.

A client need not hand out its rows: it can answer with Sigma_k at points that the server sends (`exchange.py`).
Maximum likelihood is infinite under separation or zero counts, so the likelihoods carry Jeffreys' penalty
(Firth, 1993); it is half an observation in all and vanishes as n grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from pyrofl.empirical_bayes.counts import Categories
from pyrofl.empirical_bayes.fitting import newton_jeffreys, newton_multinomial
from pyrofl.empirical_bayes.kernels import Array, Fixed, FixedFull, Kernel, Shared
from pyrofl.empirical_bayes.multinomial import MultinomialRegression, category_precision
from pyrofl.empirical_bayes.outcomes import Outcomes
from pyrofl.empirical_bayes.regression import Regression


class Estimate(NamedTuple):
    z: Array  # (d,)
    n: int


@dataclass(frozen=True)
class QuadraticVariance:
    """sigma_i^2(theta) = v0 + v1 theta_i + v2 theta_i^2 for one row; the estimate is the mean of n rows."""

    v0: float
    v1: float
    v2: float

    def __post_init__(self) -> None:
        if not (self.v0 > 0 and self.v2 >= 0 and self.v1**2 < 4 * self.v0 * self.v2 + (self.v1 == 0)):
            raise ValueError(f"v0 + v1 t + v2 t^2 must be positive for every t, got {self.v0}, {self.v1}, {self.v2}")

    def fit(self, x: Array | None, y: Array) -> Estimate:
        """The mean of the rows y (n, d)."""
        return Estimate(np.mean(y, axis=0), len(y))

    def variance(self, theta: Array) -> Array:
        return self.v0 + self.v1 * theta + self.v2 * theta**2

    def covariance(self, theta: Array, x: Array | None = None) -> Array:
        """Sigma(theta), diagonal, (M, d); the same for all clients."""
        return self.variance(np.asarray(theta, dtype=float))

    def precision(self, theta: Array) -> tuple[Array, Array]:
        points, d = theta.shape
        v, i = self.variance(theta), np.arange(d)
        weight, derivative = np.zeros((points, d, d)), np.zeros((points, d, d, d))
        weight[:, i, i] = 1.0 / v
        derivative[:, i, i, i] = -(self.v1 + 2 * self.v2 * theta) / v**2
        return weight, derivative

    def kernel(self, z: Array, n: Array) -> Kernel:
        return Shared(np.asarray(z, dtype=float), np.asarray(n, dtype=float), self.precision)


@dataclass(frozen=True)
class _OnePredictor:
    """Shared body of the regressions with one linear predictor a row."""

    ridge: float = 0.0
    diagonal: bool = False
    sandwich: bool = False

    def curvature(self, eta: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def mean(self, eta: Array) -> Array:
        raise NotImplementedError

    def cumulant(self, eta: Array) -> Array:
        raise NotImplementedError

    def log_base(self, y: Array) -> Array:
        raise NotImplementedError

    def fit(self, x: Array, y: Array) -> Estimate:
        """The penalised maximum-likelihood estimate of one client: x (n, d), y (n,)."""
        return Estimate(self.fit_all(np.asarray(x, dtype=float)[None], np.asarray(y, dtype=float)[None])[0], len(y))

    def fit_all(self, rows: Array, outcomes: Array) -> Array:
        """Estimates (K, d) of many clients at once: rows (K, N, d) and outcomes (K, N), padded with zero rows."""
        return newton_jeffreys(rows, outcomes, self.mean, self.curvature, self.ridge)

    def covariance(self, theta: Array, x: Array, y: Array | None = None) -> Array:
        """Sigma_k(theta) = n F_k^-1 from the client's rows x (n, d); with `sandwich`, n F^-1 (sum r^2 x x') F^-1."""
        x = np.asarray(x, dtype=float)
        eta = np.asarray(theta, dtype=float) @ x.T  # (M, n)
        information = np.einsum("mn,na,nb->mab", self.curvature(eta)[0], x, x) + self.ridge * np.eye(x.shape[1])
        sigma = np.linalg.inv(information)
        if self.sandwich:
            if y is None:
                raise ValueError("the sandwich needs the outcomes y of the client as third argument")
            meat = np.einsum("mn,na,nb->mab", (y - self.mean(eta)) ** 2, x, x)
            sigma = sigma @ meat @ sigma
        sigma = len(x) * sigma
        return np.diagonal(sigma, axis1=1, axis2=2).copy() if self.diagonal else sigma

    def kernel(self, z: Array, rows: Array, outcomes: Array | None = None) -> Kernel:
        """The kernel of K clients with design rows (K, N, d), padded with zero rows.

        With `sandwich` the covariances are fixed at the estimates: then `outcomes` (K, N) are needed.
        """
        z, rows = np.asarray(z, dtype=float), np.asarray(rows, dtype=float)
        if not self.sandwich:
            return Regression(z, rows, self.curvature, ridge=self.ridge, diagonal=self.diagonal)
        if outcomes is None:
            raise ValueError("the sandwich needs the outcomes (K, N) of the clients")
        V = np.concatenate([self.covariance(t[None], x, y) / len(x) for t, x, y in zip(z, rows, outcomes)])
        return Fixed(z, V) if self.diagonal else FixedFull(z, V)

    def likelihood(self, rows: Array, outcomes: Array) -> Kernel:
        """The exact likelihood of the outcomes (K, N), in place of the normal one of the estimates."""
        rows, y = np.asarray(rows, dtype=float), np.asarray(outcomes, dtype=float)
        return Outcomes(self.fit_all(rows, y), rows, y, self)


class Logistic(_OnePredictor):
    """Logistic regression: w(eta) = p(1 - p), b(eta) = log(1 + e^eta)."""

    def mean(self, eta: Array) -> Array:
        return 0.5 * (1.0 + np.tanh(0.5 * eta))

    def cumulant(self, eta: Array) -> Array:
        b: Array = np.logaddexp(0.0, eta)
        return b

    def log_base(self, y: Array) -> Array:
        return np.zeros_like(y)

    def curvature(self, eta: Array) -> tuple[Array, Array]:
        p = self.mean(eta)
        weight = p * (1.0 - p)
        return weight, weight * (1.0 - 2.0 * p)


class Poisson(_OnePredictor):
    """Poisson regression with log link: w(eta) = b(eta) = exp(eta); predictors beyond 50 are held there."""

    def mean(self, eta: Array) -> Array:
        return np.exp(np.minimum(eta, 50.0))

    def cumulant(self, eta: Array) -> Array:
        rate = self.mean(eta)
        return rate * (1.0 + np.maximum(eta - 50.0, 0.0))

    def log_base(self, y: Array) -> Array:
        base: Array = -gammaln(y + 1.0)
        return base

    def curvature(self, eta: Array) -> tuple[Array, Array]:
        weight = self.mean(eta)
        return weight, weight


@dataclass(frozen=True)
class GaussianRegression:
    """Linear regression with known noise: Sigma_k = n noise^2 (X'X + ridge I)^-1 does not move with theta."""

    noise: float
    ridge: float = 0.0
    diagonal: bool = False

    def fit(self, x: Array, y: Array) -> Estimate:
        x = np.asarray(x, dtype=float)
        return Estimate(
            np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ np.asarray(y, dtype=float)), len(x)
        )

    def covariance(self, theta: Array, x: Array) -> Array:
        x = np.asarray(x, dtype=float)
        sigma = len(x) * self.noise**2 * np.linalg.inv(x.T @ x + self.ridge * np.eye(x.shape[1]))
        return np.repeat((np.diag(sigma) if self.diagonal else sigma)[None], len(theta), axis=0)

    def kernel(self, z: Array, rows: Sequence[Array]) -> Kernel:
        z = np.asarray(z, dtype=float)
        V = np.concatenate([self.covariance(z[:1], x) / len(x) for x in rows])
        return Fixed(z, V) if self.diagonal else FixedFull(z, V)


@dataclass(frozen=True)
class Multinomial:
    """Multinomial logistic regression with `classes` classes, the first the reference; theta is (classes-1)*q long.

    Without design rows (an intercept alone) Sigma(theta) is the same for all clients, and the estimate has the closed
    form log((c_j + 1/2) / (c_0 + 1/2)). With rows the penalty is the ridge.
    """

    classes: int
    ridge: float = 0.1

    def fit(self, x: Array | None, y: Array) -> Estimate:
        y = np.asarray(y).astype(int)
        if x is None:
            return Estimate(self.from_counts(np.bincount(y, minlength=self.classes).astype(float)), len(y))
        return Estimate(newton_multinomial(np.asarray(x, dtype=float), y, self.classes, self.ridge), len(y))

    def from_counts(self, counts: Array) -> Array:
        """Log odds (..., classes - 1) against the first class from counts (..., classes), each raised by a half."""
        log = np.log(np.asarray(counts, dtype=float) + 0.5)
        odds: Array = log[..., 1:] - log[..., :1]
        return odds

    def covariance(self, theta: Array, x: Array | None = None) -> Array:
        """Sigma_k(theta) (M, d, d)."""
        if x is None:
            shared: Array = np.asarray(np.linalg.inv(category_precision(np.asarray(theta, dtype=float))[0]))
            return shared
        x = np.asarray(x, dtype=float)
        kernel = MultinomialRegression(np.zeros((1, theta.shape[1])), x[None], self.classes, self.ridge)
        own: Array = len(x) * np.linalg.inv(kernel.information(np.asarray(theta, dtype=float), slice(0, 1))[0])
        return own

    def kernel(self, z: Array, n: Array | None = None, *, rows: Array | None = None) -> Kernel:
        """The kernel of K clients from their sizes n (K,), or from padded design rows (K, N, q)."""
        z = np.asarray(z, dtype=float)
        if rows is not None:
            return MultinomialRegression(z, np.asarray(rows, dtype=float), self.classes, self.ridge)
        if n is None:
            raise ValueError("an intercept-only multinomial needs the sizes n (K,), a regression needs `rows`")
        return Shared(z, np.asarray(n, dtype=float), category_precision)

    def likelihood(self, counts: Array) -> Kernel:
        """The exact likelihood of counts (K, classes), in place of the normal one of their log odds."""
        c = np.asarray(counts, dtype=float)
        if c.ndim != 2 or c.shape[1] != self.classes or not ((c >= 0) & (c == np.round(c))).all():
            raise ValueError(f"counts must be whole numbers (K, {self.classes}), a row a site, got shape {c.shape}")
        return Categories(c)
