"""The Gaussian working likelihood of every site as a function of the parameter, with exact gradients.

phi_k(theta) = N(z_k; theta, V_k(theta)): the mean *and* the covariance move with theta. Everything else in this
package sees sites only through a `Kernel`: log phi_k at M points, and sums of its gradient over sites.

Shapes: K sites, d coordinates, M points, k sites of one block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Rows = slice | Index  # some of the sites
LOG_2PI = float(np.log(2 * np.pi))


class Tangent(NamedTuple):
    """Sums over sites with weights q (k, M), at the points theta (M, d)."""

    gradient: Array  # (M, d)     sum_k q_kj grad log phi_k(theta_j), through the mean and through V_k
    ridge: Array  # (M, d)        sum_k q_kj V_k^-1 (z_k - theta_j): the same with V_k held fixed
    precision: Array  # (M, d, d) sum_k q_kj V_k^-1(theta_j)


class Kernel(ABC):
    """Log-likelihoods of K sites; `z` (K, d) holds their estimates."""

    z: Array
    width: int = 1  # numbers held for one site and one point during `evaluate`
    normal: bool = True  # the normal density of an estimate; False: the likelihood of the site's outcomes themselves

    @property
    def sites(self) -> int:
        return self.z.shape[0]

    @property
    def dimension(self) -> int:
        return self.z.shape[1]

    @property
    def exact(self) -> NDArray[np.bool_]:
        """(K,) sites whose estimate has no error at all: their posterior is the estimate."""
        return np.zeros(self.sites, dtype=bool)

    @abstractmethod
    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        """log phi_k(theta_j) (k, M) in nats for the sites `rows`, and the tangent at the same points."""

    @abstractmethod
    def plugin(self) -> Array:
        """V_k at the estimate itself, (K, d, d): what a method with fixed covariances uses."""

    @abstractmethod
    def take(self, index: Index) -> Kernel:
        """The kernel of some of the sites."""


class Fixed(Kernel):
    """V_k known and constant: `variance` (K, d) on the diagonal, zero and infinity allowed.

    Zero is an exact estimate. It enters as a point observation: a width of 1e-7 of the spread of all estimates,
    while the site's posterior is the estimate itself. Infinity is a coordinate without information.
    """

    def __init__(self, z: Array, variance: Array):
        self.z, self._variance = z, variance
        spread = np.maximum(np.ptp(z, axis=0), 1e-3 * np.abs(z).max(axis=0))
        floored = np.maximum(variance, (1e-7 * np.where(spread > 0, spread, 1.0)) ** 2)
        self.weight = 1.0 / floored  # (K, d) precision
        informed = np.isfinite(variance)
        logs = np.where(informed, np.log(np.where(informed, floored, 1.0)) + LOG_2PI, 0.0)
        self.constant = -0.5 * logs.sum(axis=1)  # (K,)

    @property
    def exact(self) -> NDArray[np.bool_]:
        return (self._variance == 0).all(axis=1)

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        z, weight = self.z[rows], self.weight[rows]
        out = np.repeat(self.constant[rows, None], len(theta), axis=1)  # (k, M)
        for i in range(self.dimension):
            square = z[:, i, None] - theta[:, i]
            square *= square
            square *= 0.5 * weight[:, i, None]
            out -= square

        def tangent(q: Array) -> Tangent:
            diagonal = q.T @ weight  # (M, d)
            ridge = q.T @ (weight * z) - diagonal * theta
            return Tangent(ridge, ridge, diagonal[:, :, None] * np.eye(self.dimension))

        return out, tangent

    def plugin(self) -> Array:
        return self._variance[:, :, None] * np.eye(self.dimension)

    def take(self, index: Index) -> Fixed:
        return Fixed(self.z[index], self._variance[index])


class FixedFull(Kernel):
    """V_k known and constant, a full matrix: `covariance` (K, d, d), positive definite."""

    def __init__(self, z: Array, covariance: Array):
        self.z, self._covariance = z, covariance
        lower = np.linalg.cholesky(covariance)
        root = np.linalg.inv(lower)  # (K, d, d), V^-1 = root' root
        self.root, self.weight = root, np.swapaxes(root, 1, 2) @ root
        logdet = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        self.constant = -logdet - 0.5 * z.shape[1] * LOG_2PI

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        z, root, weight = self.z[rows], self.root[rows], self.weight[rows]
        out = np.repeat(self.constant[rows, None], len(theta), axis=1)  # (k, M)
        for i in range(self.dimension):
            square = (root[:, i] * z).sum(axis=1)[:, None] - root[:, i] @ theta.T
            square *= square
            square *= 0.5
            out -= square

        def tangent(q: Array) -> Tangent:
            k, d = z.shape
            precision = (q.T @ weight.reshape(k, d * d)).reshape(-1, d, d)
            pulled = np.einsum("kab,kb->ka", weight, z)
            ridge = q.T @ pulled - np.einsum("mab,mb->ma", precision, theta)
            return Tangent(ridge, ridge, precision)

        return out, tangent

    def plugin(self) -> Array:
        return self._covariance

    def take(self, index: Index) -> FixedFull:
        return FixedFull(self.z[index], self._covariance[index])


Precision = Callable[[Array], tuple[Array, Array]]


class Shared(Kernel):
    """V_k(theta) = Sigma(theta) / n_k with one function Sigma for all sites.

    `precision(theta)` returns P = Sigma^-1 (M, d, d) and its derivatives dP[m, a, b, c] = d P_ab / d theta_c.
    """

    def __init__(self, z: Array, n: Array, precision: Precision):
        self.z, self.n, self.precision = z, n, precision
        self.constant = 0.5 * z.shape[1] * (np.log(n) - LOG_2PI)

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        z, n = self.z[rows], self.n[rows]
        weight, derivative = self.precision(theta)
        lower = np.linalg.cholesky(weight)  # (M, d, d)
        out = np.zeros((len(z), len(theta)))
        for i in range(self.dimension):
            column = lower[:, :, i]  # (M, d)
            square = z @ column.T
            square -= (theta * column).sum(axis=1)
            square *= square
            out += square
        out *= -0.5 * n[:, None]
        out += self.constant[rows, None]
        out += np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)

        def tangent(q: Array) -> Tangent:
            k, d = z.shape
            square = (z[:, :, None] * z[:, None, :]).reshape(k, d * d)
            moment = q.T @ np.concatenate(
                [np.ones((k, 1)), n[:, None] * np.column_stack([np.ones(k), z, square])], axis=1
            )
            total, first = moment[:, 1], moment[:, 2 : 2 + d]  # sums of q n and of q n z
            centred = first - total[:, None] * theta
            cross = theta[:, :, None] * first[:, None, :]
            second = moment[:, 2 + d :].reshape(-1, d, d) - cross - np.swapaxes(cross, 1, 2)
            second += total[:, None, None] * theta[:, :, None] * theta[:, None, :]  # sum q n (z-theta)(z-theta)'
            ridge = np.einsum("mab,mb->ma", weight, centred)
            moving = moment[:, 0, None, None] * np.linalg.inv(weight) - second
            gradient = ridge + 0.5 * np.einsum("mabc,mab->mc", derivative, moving)
            return Tangent(gradient, ridge, total[:, None, None] * weight)

        return out, tangent

    def plugin(self) -> Array:
        return np.linalg.inv(self.precision(self.z)[0]) / self.n[:, None, None]

    def take(self, index: Index) -> Shared:
        return Shared(self.z[index], self.n[index], self.precision)
