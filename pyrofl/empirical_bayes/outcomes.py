"""Kernels of regressions with one linear predictor a row, exact: the likelihood of a site's outcomes themselves.

log phi_k(theta) = sum_i y_i x_i'theta - b(x_i'theta) + const over the site's own rows, b' the mean and b'' the Fisher
weight (canonical links: logistic, Poisson). A site without events is an ordinary site here, where its estimate lies at
infinity; the estimates z, which are penalised, only place the search.

Shapes: K sites, N rows (padded with zero rows), d coefficients, M points, k sites of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from pyrofl.empirical_bayes.kernels import Array, Index, Kernel, Rows, Tangent


class Canonical(Protocol):
    """An exponential family of outcomes with its natural parameter as predictor."""

    @property
    def ridge(self) -> float: ...

    def cumulant(self, eta: Array) -> Array: ...

    def mean(self, eta: Array) -> Array: ...

    def curvature(self, eta: Array) -> tuple[Array, Array]: ...

    def log_base(self, y: Array) -> Array: ...


class Outcomes(Kernel):
    """`rows` (K, N, d) and `y` (K, N), both padded with zeros; `z` (K, d) are estimates."""

    normal = False

    def __init__(self, z: Array, rows: Array, y: Array, family: Canonical):
        self.z, self.rows, self.y, self.family = z, rows, y, family
        used = (rows != 0).any(axis=2)
        self.size = np.where(used.any(axis=1), rows.shape[1] - used[:, ::-1].argmax(axis=1), 1)  # rows of each site
        self.statistic = np.einsum("kn,knd->kd", y, rows)
        self.constant = (family.log_base(y) * used).sum(axis=1)
        self.width = max(int(np.ceil(self.size.mean())), 1)

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        top, d = int(self.size[rows].max()), self.dimension
        x = self.rows[rows, :top]
        eta = x @ theta.T  # (k, N, M)
        padding = (top - self.size[rows]) * float(self.family.cumulant(np.zeros(1))[0])
        log = self.statistic[rows] @ theta.T - self.family.cumulant(eta).sum(axis=1)
        log += (self.constant[rows] + padding)[:, None]

        def tangent(q: Array) -> Tangent:
            flat, points = x.reshape(-1, d), len(theta)
            pulled = (self.family.mean(eta) * q[:, None]).reshape(-1, points)
            gradient = q.T @ self.statistic[rows] - pulled.T @ flat
            weight = (self.family.curvature(eta)[0] * q[:, None]).reshape(-1, points)
            square = (flat[:, :, None] * flat[:, None, :]).reshape(-1, d * d)
            return Tangent(gradient, gradient, (weight.T @ square).reshape(points, d, d))

        return log, tangent

    def plugin(self) -> Array:
        weight = self.family.curvature(np.einsum("knd,kd->kn", self.rows, self.z))[0]
        information = np.einsum("kn,kna,knb->kab", weight, self.rows, self.rows)
        return np.linalg.inv(information + self.family.ridge * np.eye(self.dimension))

    def take(self, index: Index) -> Outcomes:
        return Outcomes(self.z[index], self.rows[index], self.y[index], self.family)
