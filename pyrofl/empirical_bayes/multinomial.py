"""Kernels of multinomial logistic models: an intercept alone (shared Sigma), or a regression on the site's rows.

One row contributes A(eta) kron x x' to the Fisher information, A = diag(p) - p p', p the probabilities of all classes
but the first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyrofl.empirical_bayes.kernels import LOG_2PI, Array, Index, Kernel, Rows, Tangent


def probabilities(eta: Array) -> Array:
    """Class probabilities of the non-reference classes (..., classes - 1) from their log odds."""
    top = np.maximum(eta.max(axis=-1, keepdims=True), 0.0)
    raised = np.exp(eta - top)
    p: Array = raised / (np.exp(-top) + raised.sum(axis=-1, keepdims=True))
    return p


def category_precision(theta: Array) -> tuple[Array, Array]:
    """P = diag(p) - p p' (M, d, d) and dP_ab/dtheta_c (M, d, d, d) of one categorical row with log odds theta."""
    p = np.maximum(probabilities(theta), 1e-100)
    eye = np.eye(theta.shape[1])
    outer = p[:, :, None] * p[:, None, :]
    weight = p[:, :, None] * eye - outer
    first = weight  # dp_a/dtheta_c = p_a (1[a=c] - p_c)
    derivative = first[:, :, None, :] * eye[:, :, None]
    derivative = derivative - first[:, :, None, :] * p[:, None, :, None] - p[:, :, None, None] * first[:, None, :, :]
    return weight, derivative


class MultinomialRegression(Kernel):
    """Full Fisher information of a multinomial regression on `rows` (K, N, q), padded with zero rows."""

    def __init__(self, z: Array, rows: Array, classes: int, ridge: float):
        if z.shape[1] != (classes - 1) * rows.shape[2]:
            raise ValueError(
                f"{classes} classes and {rows.shape[2]} columns need {(classes - 1) * rows.shape[2]} coefficients, "
                f"got {z.shape[1]}"
            )
        self.z, self.rows, self.classes, self.ridge = z, rows, classes, ridge
        self.width = rows.shape[1] * (classes - 1) ** 2 + z.shape[1] ** 2

    def _blocks(self, theta: Array, rows: Rows) -> tuple[Array, Array]:
        """p (k, M, N, C) and A (k, M, N, C, C), C = classes - 1."""
        coefficients = theta.reshape(len(theta), self.classes - 1, -1)
        p = probabilities(np.einsum("knq,mcq->kmnc", self.rows[rows], coefficients))
        return p, p[..., None] * np.eye(self.classes - 1) - p[..., None] * p[..., None, :]

    def information(self, theta: Array, rows: Rows) -> Array:
        """F_k(theta_j) + ridge I, (k, M, d, d)."""
        return self._pack(self._blocks(theta, rows)[1], self.rows[rows])

    def _pack(self, A: Array, x: Array) -> Array:
        d = self.dimension
        full = np.einsum("kmnab,knc,knd->kmacbd", A, x, x, optimize=True)
        return full.reshape(*full.shape[:2], d, d) + self.ridge * np.eye(d)

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        x, z, c = self.rows[rows], self.z[rows], self.classes - 1
        p, A = self._blocks(theta, rows)
        information = self._pack(A, x)
        delta = z[:, None] - theta[None]  # (k, M, d)
        pulled = np.einsum("kmab,kmb->kma", information, delta)
        log = (
            0.5 * np.linalg.slogdet(information)[1]
            - 0.5 * (pulled * delta).sum(axis=2)
            - 0.5 * self.dimension * LOG_2PI
        )

        def tangent(q: Array) -> Tangent:
            inverse = np.linalg.inv(information).reshape(*log.shape, c, -1, c, x.shape[2])
            u = np.einsum("kmcq,knq->kmnc", delta.reshape(*log.shape, c, -1), x)
            hat = np.einsum("knp,kmapbq,knq->kmnab", x, inverse, x, optimize=True)
            M = 0.5 * (hat - u[..., :, None] * u[..., None, :])
            own = np.diagonal(M, axis1=3, axis2=4)
            Mp = np.einsum("kmnab,kmnb->kmna", M, p)
            moving = p * (
                own - (p * own).sum(axis=-1, keepdims=True) - 2.0 * (Mp - (p * Mp).sum(axis=-1, keepdims=True))
            )
            gradient = np.einsum("km,kmnc,knq->mcq", q, moving, x, optimize=True).reshape(theta.shape)
            ridge = np.einsum("km,kma->ma", q, pulled)
            return Tangent(gradient + ridge, ridge, np.einsum("km,kmab->mab", q, information))

        return log, tangent

    def plugin(self) -> Array:
        return np.concatenate(
            [np.linalg.inv(self.information(self.z[k : k + 1], slice(k, k + 1))[0]) for k in range(self.sites)]
        )

    def take(self, index: Index) -> MultinomialRegression:
        return MultinomialRegression(self.z[index], self.rows[index], self.classes, self.ridge)
