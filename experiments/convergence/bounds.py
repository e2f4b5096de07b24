"""What the theorems promise, as functions of the constants they name.

The published text of the first paper's formulas survives only as an extraction that flattens fractions and roots; where
that leaves more than one reading, all are here.

References: Rahman, Nguyen, 2026, Theorems 1 and 2; Li, Huang, Yang, Wang, Zhang, "On the convergence of FedAvg on
non-IID data", 2020, Theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Reading = Literal["(eta + 1)/eta^2", "eta + 1/eta^2"]
READINGS: dict[Reading, Callable[[np.ndarray], np.ndarray]] = {
    "(eta + 1)/eta^2": lambda eta: (eta + 1) / eta**2,  # what equation 76 needs: eta^2 Phi = 4 (1 + 1/eta) eta T B^2
    "eta + 1/eta^2": lambda eta: eta + 1 / eta**2,
}
# E||grad F(z_K)||^2 falls at least like this, by Theorem 1
RATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a/sqrt(K)": lambda k: k**-0.5,
    "a/k": lambda k: 1 / np.log(k),
    "a/sqrt(k)": lambda k: np.log(k) / k**0.5,
}


@dataclass(frozen=True)
class Constants:
    """L, mu, Gamma of a problem; sigma_n^2 and B^2 of a run; T local steps; E||w_0 - w*||^2 and F(w_0) - F*."""

    L: float
    mu: float
    gamma: float
    noise: np.ndarray  # (N,)
    slope: float
    steps: int
    distance: float
    gap: float

    @property
    def kappa(self) -> float:
        """L / mu."""
        return self.L / self.mu


def phi(eta: np.ndarray, c: Constants, reading: Reading) -> np.ndarray:
    """Phi_k = 4 ((eta_k + 1)/eta_k^2) T B^2 + sigma_g^2 / N^2, with sigma_g^2 the largest of the clients'."""
    return 4 * READINGS[reading](np.asarray(eta)) * c.steps * c.slope + c.noise.max() / len(c.noise) ** 2


def theorem2_rate(k: np.ndarray, c: Constants, shift: float | None = None) -> np.ndarray:
    """eta_k = 4 theta / (k + omega) for k = 0, 1, ..., with theta = 4/mu and omega = L/mu, or `shift`."""
    return 16 / (c.mu * (np.asarray(k) + (c.kappa if shift is None else shift)))


def theorem2(
    k: np.ndarray, c: Constants, reading: Reading, *, shift: float | None = None, frozen: bool = False
) -> np.ndarray:
    """L / (2 (K + omega)) [16 Phi_K / (15 mu^2) + (omega + 1) E||w_0 - w*||^2] after K = `k` rounds.

    `frozen` keeps Phi at its first value, as the induction in the proof does.
    """
    k, omega = np.asarray(k, dtype=float), c.kappa if shift is None else shift
    size = phi(theorem2_rate(0 * k if frozen else k, c, shift), c, reading)
    return c.L / (2 * (k + omega)) * (16 * size / (15 * c.mu**2) + (omega + 1) * c.distance)


def theorem1(rates: np.ndarray, c: Constants) -> float:
    """[2 (F(w_1) - min F) + L sigma^2 sum eta_k^2] / sum eta_k: equation 59 for a point estimate, where C_1 = 0."""
    return float((2 * c.gap + c.L * c.noise.max() * np.square(rates).sum()) / rates.sum())


def li_b(c: Constants) -> float:
    """sum_n sigma_n^2 / N^2 + 6 L Gamma + 8 (T - 1)^2 G^2, for N clients of equal weight, with G^2 = B^2."""
    return float(c.noise.sum() / len(c.noise) ** 2 + 6 * c.L * c.gamma + 8 * (c.steps - 1) ** 2 * c.slope)


def li_rate(step: np.ndarray, c: Constants) -> np.ndarray:
    """2 / (mu (gamma + t)) of step t = 0, 1, ... with gamma = max(8 L/mu, T)."""
    return 2 / (c.mu * (max(8 * c.kappa, c.steps) + np.asarray(step)))


def li(steps: np.ndarray, c: Constants) -> np.ndarray:
    """(L/mu) / (gamma + t) [2 B / mu + mu gamma / 2 E||w_0 - w*||^2] after t = `steps` steps at `li_rate`."""
    g = max(8 * c.kappa, c.steps)
    return c.kappa / (g + np.asarray(steps)) * (2 * li_b(c) / c.mu + c.mu * g / 2 * c.distance)


def li_iterated(rates: np.ndarray, c: Constants) -> np.ndarray:
    """(L/2) D_k after k = 0..K rounds, with D <- (1 - mu eta) D + eta^2 B at each of T steps a round.

    This inequality, from which `li` follows, holds for any rates that never rise and are at most 1 / (4 L); for others
    the bound is NaN.
    """
    bound, b = [c.distance], li_b(c)
    for eta in rates:
        d = bound[-1] if eta <= 1 / (4 * c.L) * (1 + 1e-12) else np.nan
        for _ in range(c.steps):
            d = (1 - c.mu * eta) * d + eta**2 * b
        bound.append(d)
    return c.L / 2 * np.array(bound)
