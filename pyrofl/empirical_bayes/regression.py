"""Kernels of regressions with one linear predictor a row (logistic, Poisson): V_k(theta) = inverse Fisher information.

F_k(theta) = sum_i w(x_i'theta) x_i x_i' + ridge I over the site's own rows, V_k = F_k^-1, or its diagonal. Only sums
of w over pairs x_a x_b and of w' over triples x_a x_b x_c are needed, so a block costs one exponential a row and two
matrix products. Sites in the order of their sizes run faster: a block is cut to its largest site.

Shapes: K sites, N rows (padded with zero rows), d coefficients, M points, k sites of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import combinations_with_replacement

import numpy as np

from pyrofl.empirical_bayes.kernels import LOG_2PI, Array, Index, Kernel, Rows, Tangent

Curvature = Callable[[Array], tuple[Array, Array]]  # eta -> Fisher weight w(eta) of one row, and its derivative
Square = list[list[Array]]  # a symmetric d x d matrix of arrays (k, M)


def _sum(terms: Iterable[Array]) -> Array:
    total: Array = reduce(np.add, terms)
    return total


class Regression(Kernel):
    """`rows` (K, N, d) are the design rows, `curvature` the Fisher weight of one row as a function of its predictor."""

    def __init__(self, z: Array, rows: Array, curvature: Curvature, *, ridge: float = 0.0, diagonal: bool = False):
        self.z, self.rows, self.curvature, self.ridge, self.diagonal = z, rows, curvature, ridge, diagonal
        d = z.shape[1]
        self.pairs = {pair: i for i, pair in enumerate(combinations_with_replacement(range(d), 2))}
        self.triples = {triple: i for i, triple in enumerate(combinations_with_replacement(range(d), 3))}
        self.second = np.stack([rows[:, :, a] * rows[:, :, b] for a, b in self.pairs], axis=1)  # (K, pairs, N)
        self.third = np.stack([rows[:, :, a] * rows[:, :, b] * rows[:, :, c] for a, b, c in self.triples], axis=1)
        used = (rows != 0).any(axis=2)
        self.size = np.where(used.any(axis=1), rows.shape[1] - used[:, ::-1].argmax(axis=1), 1)  # rows of each site
        self.width = max(int(np.ceil(self.size.mean())), len(self.triples))

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        d, top = self.dimension, int(self.size[rows].max())
        weight, slope = self.curvature(self.rows[rows, :top] @ theta.T)  # (k, N, M)
        sums = self.second[rows, :, :top] @ weight  # (k, pairs, M)
        F: Square = [[sums[:, self.pairs[min(a, b), max(a, b)]] for b in range(d)] for a in range(d)]
        for a in range(d):
            F[a][a] += self.ridge
        V, logdet = invert(F)
        delta = [self.z[rows, a, None] - theta[:, a] for a in range(d)]  # d arrays (k, M)
        pulled = [_sum(F[a][b] * delta[b] for b in range(d)) for a in range(d)]  # F (z - theta)
        if self.diagonal:
            log = _sum(-0.5 * (delta[a] ** 2 / V[a][a] + np.log(V[a][a])) for a in range(d))
        else:
            log = 0.5 * logdet - 0.5 * _sum(pulled[a] * delta[a] for a in range(d))
        log = log - 0.5 * d * LOG_2PI

        def tangent(q: Array) -> Tangent:
            moved = self.third[rows, :, :top] @ slope  # (k, triples, M) = dF_ab / dtheta_c
            if self.diagonal:
                pull = [0.5 * (delta[i] ** 2 / V[i][i] - 1.0) / V[i][i] for i in range(d)]
                weigh = lambda a, b: -_sum(V[a][i] * pull[i] * V[i][b] for i in range(d))  # d log phi / d F_ab
                fixed = [delta[a] / V[a][a] for a in range(d)]
                entry = lambda a, b: (q / V[a][a]).sum(axis=0) if a == b else np.zeros(len(theta))
            else:
                weigh = lambda a, b: 0.5 * (V[a][b] - delta[a] * delta[b])
                fixed = pulled
                entry = lambda a, b: (q * F[a][b]).sum(axis=0)
            gradient = np.zeros_like(theta)
            for a, b in self.pairs:
                form = weigh(a, b) * q * (1.0 if a == b else 2.0)
                for c in range(d):
                    i, j, k = sorted((a, b, c))
                    gradient[:, c] += np.einsum("km,km->m", form, moved[:, self.triples[i, j, k]])
            ridge = np.stack([np.einsum("km,km->m", q, fixed[a]) for a in range(d)], axis=1)
            precision = np.array([[entry(a, b) for b in range(d)] for a in range(d)])  # (d, d, M)
            return Tangent(gradient + ridge, ridge, np.moveaxis(precision, 2, 0))

        return log, tangent

    def plugin(self) -> Array:
        weight = self.curvature((self.rows @ self.z[:, :, None])[:, :, 0])[0]
        information = np.einsum("kn,kna,knb->kab", weight, self.rows, self.rows) + self.ridge * np.eye(self.dimension)
        inverse = np.linalg.inv(information)
        return inverse * np.eye(self.dimension) if self.diagonal else inverse

    def take(self, index: Index) -> Regression:
        return Regression(self.z[index], self.rows[index], self.curvature, ridge=self.ridge, diagonal=self.diagonal)


def invert(A: Square) -> tuple[Square, Array]:
    """Inverse and log determinant of many positive-definite matrices at once, by Cholesky over arrays."""
    d = len(A)
    lower: list[list[Array]] = [[] for _ in range(d)]
    for a in range(d):
        for b in range(a + 1):
            rest = A[a][b] - _sum(lower[a][c] * lower[b][c] for c in range(b)) if b else A[a][b]
            if a == b:
                lower[a].append(np.sqrt(np.maximum(rest, 1e-12 * A[a][a] + 1e-290)))
            else:
                lower[a].append(rest / lower[b][b])
    logdet = 2.0 * _sum(np.log(lower[a][a]) for a in range(d))
    inverse: list[list[Array]] = []  # of the lower factor
    for a in range(d):
        own = 1.0 / lower[a][a]
        inverse.append([-_sum(lower[a][c] * inverse[c][b] for c in range(b, a)) * own for b in range(a)] + [own])
    out: Square = [
        [_sum(inverse[c][a] * inverse[c][b] for c in range(max(a, b), d)) for b in range(d)] for a in range(d)
    ]
    return out, logdet
