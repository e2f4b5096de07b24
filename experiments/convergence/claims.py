"""Single steps of the derivation of Theorems 1 and 2, each tried on numbers."""

from __future__ import annotations

import numpy as np
from scipy import special, stats

from .bounds import Constants, theorem2_rate
from .problems import Problem
from .quadratic import fixed_point


def first_allowed_round(c: Constants) -> int:
    """The first k at which eta_k = 16 / (mu k + L) keeps the proof's own condition eta_k <= 1 / (4 L): 63 L/mu."""
    return int(np.ceil(63 * c.kappa - 1e-9))


def induction_ratio(c: Constants, rounds: int) -> float:
    """Y_K (K + omega) over theta^2 Phi / (4 theta mu - 1), where Y_{k+1} = (1 - mu eta_k) Y_k + eta_k^2 Phi exactly.

    The induction claims at most 1 for constant Phi, once Y_0 is forgotten; here Y is 0 at the first allowed k.
    """
    start = first_allowed_round(c)
    y = 0.0
    for eta in theorem2_rate(np.arange(start, start + rounds), c):
        y = (1 - c.mu * eta) * y + eta**2
    return float(y * (start + rounds + c.kappa) / (16 / (15 * c.mu**2)))


def variance_of_average(sigma2: float, clients: int) -> float:
    """E||(1/N) sum_n e_n||^2 of independent e_n with E||e_n||^2 = sigma^2, exactly, from two-point errors."""
    heads = stats.binom(clients, 0.5)
    return float(sigma2 * heads.expect(lambda h: (2 * h - clients) ** 2) / clients**2)


def drift(eta: float, steps: int, b: float) -> float:
    """(1/N) sum_n ||wbar - w_n||^2 of two clients with gradients b and -b, after `steps` steps from one point."""
    w = np.zeros(2)
    for _ in range(steps):
        w = w - eta * np.array([b, -b])
    return float(np.square(w - w.mean()).mean())


def local_slopes(problem: Problem) -> tuple[float, float]:
    """At w*: (mean ||grad F_n||^2, 2 L mean (F_n - F*)). The first is said to be at most the second."""
    w = problem.minimum
    measured = float(np.square(problem.gradients(w)).sum(-1).mean())
    return measured, float(2 * problem.smoothness * (problem.values(w) - problem.value(w)).mean())


def floor_without_noise(problem: Problem, eta: float, steps: int) -> float:
    """F - F* where a constant rate ends with full batches (linear problems)."""
    return float(problem.value(fixed_point(problem, eta, steps)) - problem.value(problem.minimum))


def series() -> dict[str, tuple[float, float]]:
    """The series of Theorem 1's proof: (value, the constant it is bounded by)."""
    return {
        "sum log k / k^2": (-_zeta_slope(2.0), 1.0),
        "sum 1 / k^1.5": (float(special.zeta(1.5)), 3.0),
        "sum log k / k^1.5": (-_zeta_slope(1.5), 4.0),
    }


def _zeta_slope(s: float, h: float = 1e-4) -> float:
    return float((special.zeta(s + h) - special.zeta(s - h)) / (2 * h))
