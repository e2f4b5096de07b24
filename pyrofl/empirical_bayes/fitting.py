"""Penalised maximum likelihood of one-predictor and multinomial regressions, many small clients at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyrofl.empirical_bayes.kernels import Array


def newton_jeffreys(
    rows: Array,
    outcomes: Array,
    mean: Callable[[Array], Array],
    curvature: Callable[[Array], tuple[Array, Array]],
    ridge: float,
    *,
    steps: int = 60,
) -> Array:
    """argmax log-likelihood + log det F(theta) / 2 - ridge |theta|^2 / 2 for each of K clients, (K, d).

    Fisher scoring on the modified score sum_i x_i (y_i - mu_i + h_i w'_i / (2 w_i)), with leverages h; steps longer
    than 2 are cut. Finite under separation and with zero counts. Rows of zeros are padding.

    Reference: Firth, 1993, "Bias reduction of maximum likelihood estimates".
    """
    clients, _, d = rows.shape
    theta = np.zeros((clients, d))
    eye = np.eye(d)
    for _ in range(steps):
        eta = np.einsum("knd,kd->kn", rows, theta)
        weight, slope = curvature(eta)
        information = np.einsum("kn,kna,knb->kab", weight, rows, rows) + ridge * eye
        scale = np.trace(information, axis1=1, axis2=2)[:, None, None]
        inverse = np.linalg.inv(information + 1e-10 * scale * eye)
        hat = np.einsum("kna,kab,knb->kn", rows, inverse, rows)
        score = np.einsum("kn,knd->kd", outcomes - mean(eta) + 0.5 * hat * slope, rows) - ridge * theta
        move = np.einsum("kab,kb->ka", inverse, score)
        length = np.abs(move).max(axis=1)
        theta += move * np.minimum(1.0, 2.0 / np.maximum(length, 1e-300))[:, None]
        if length.max() < 1e-10:
            break
    return theta


def newton_multinomial(x: Array, y: Array, classes: int, ridge: float, *, steps: int = 100) -> Array:
    """argmax multinomial log-likelihood - ridge |theta|^2 / 2, flattened class by class, ((classes - 1) q,)."""
    rows, q = x.shape
    theta = np.zeros((classes - 1, q))
    target = np.eye(classes)[y][:, 1:]
    for _ in range(steps):
        eta = np.concatenate([np.zeros((rows, 1)), x @ theta.T], axis=1)
        p = np.exp(eta - eta.max(axis=1, keepdims=True))
        p = (p / p.sum(axis=1, keepdims=True))[:, 1:]
        blocks = p[:, :, None] * np.eye(classes - 1) - p[:, :, None] * p[:, None, :]
        information = np.einsum("nab,nc,nd->acbd", blocks, x, x).reshape(theta.size, theta.size)
        score = ((target - p).T @ x - ridge * theta).ravel()
        move = np.linalg.solve(information + ridge * np.eye(theta.size), score)
        length = np.abs(move).max()
        theta += (move * min(1.0, 2.0 / max(length, 1e-300))).reshape(theta.shape)
        if length < 1e-10:
            break
    return theta.ravel()
