"""Federated averaging of linear regressions with full batches, in closed form: the oracle of the rest."""

from __future__ import annotations

import numpy as np

from .problems import Problem


def own_minima(problem: Problem) -> np.ndarray:
    """Each client's own minimum, (N, d): w_n* = -H_n^-1 grad F_n(0)."""
    at_zero = problem.gradients(np.zeros(problem.x.shape[2]))
    return -np.linalg.solve(problem.curvatures, at_zero[..., None])[..., 0]


def shrinkage(problem: Problem, eta: float, steps: int) -> np.ndarray:
    """(I - eta H_n)^T of each client, (N, d, d): what T steps leave of w - w_n*."""
    one = np.eye(problem.x.shape[2]) - eta * problem.curvatures
    return np.linalg.matrix_power(one, steps)


def path(problem: Problem, start: np.ndarray, rates: np.ndarray, steps: int) -> np.ndarray:
    """The server's models, (K + 1, d): w <- (1/N) sum_n w_n* + (I - eta H_n)^T (w - w_n*)."""
    own, found = own_minima(problem), [start]
    for eta in rates:
        left = np.einsum("nij,nj->ni", shrinkage(problem, float(eta), steps), found[-1] - own)
        found.append((own + left).mean(0))
    return np.array(found)


def fixed_point(problem: Problem, eta: float, steps: int) -> np.ndarray:
    """Where a constant rate ends, (d,); not w* unless steps = 1 or clients agree."""
    gone = np.eye(problem.x.shape[2]) - shrinkage(problem, eta, steps)
    return np.linalg.solve(gone.mean(0), np.einsum("nij,nj->i", gone, own_minima(problem)) / len(gone))
