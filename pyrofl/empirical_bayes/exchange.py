"""One exchange of the federated estimate: the server sends atoms, the sites answer with their covariances there.

Down: atoms (M, d). Up, once: z_k and n_k; up, every time: V_k at the atoms, (M, d) or (M, d, d). No row of data
travels. The server solves the weights exactly and moves each atom to its ridgeline point
a_j = (sum_k r_kj V_kj^-1)^-1 sum_k r_kj V_kj^-1 z_k, covariances held fixed; then it asks again.

This is the alternating algorithm of Chang, Auddy and Paul. It ignores how V moves with the atom, so it need not
raise the likelihood: keep the best iterate, as `alternating` does. `npmle` climbs through V_k(theta) instead.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pyrofl.empirical_bayes.blocks import threads
from pyrofl.empirical_bayes.kernels import LOG_2PI, Array, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.search import Near, log_kernel
from pyrofl.empirical_bayes.sites import as_kernel, site_mass
from pyrofl.empirical_bayes.weights import solve_weights


class Exchange(NamedTuple):
    weights: Array  # (M,) at the atoms that were sent
    atoms: Array  # (m, d) the next atoms: those with weight, moved
    posterior_mean: Array  # (K, d) at the atoms that were sent
    log_likelihood: float  # nats a site
    gap_atoms: float  # nats a site


def log_normal(gap: Array, variance: Array) -> Array:
    """log N(gap; 0, V) for gaps z_k - a_j (K, M, d) and V_kj (K, M, d) or (K, M, d, d): (K, M), in nats."""
    if variance.ndim == 3:
        log: Array = -0.5 * (gap**2 / variance + np.log(variance) + LOG_2PI).sum(axis=2)
        return log
    solved = np.linalg.solve(variance, gap[..., None])[..., 0]
    square: Array = (gap * solved).sum(axis=2) + np.linalg.slogdet(variance)[1] + gap.shape[2] * LOG_2PI
    return -0.5 * square


def exchange(z: Array, atoms: Array, variance: Array, *, mass: Array | None = None) -> Exchange:
    """The server's half: estimates (K, d), atoms (M, d), and V_k at the atoms, (K, M, d) or (K, M, d, d)."""
    (sites, d), points = z.shape, len(atoms)
    if variance.shape not in ((sites, points, d), (sites, points, d, d)):
        raise ValueError(f"variance must be {(sites, points, d)} or {(sites, points, d, d)}, got {variance.shape}")
    log = log_normal(z[:, None] - atoms, variance)
    shift = log.max(axis=1)
    solved = solve_weights(np.exp(log - shift[:, None]), mass=mass)
    share = np.full(sites, 1.0 / sites) if mass is None else mass / mass.sum()
    r = np.exp(log - shift[:, None]) * solved.weights / solved.marginal[:, None]
    keep = solved.weights > 1e-10 * solved.weights.max()
    q = r[:, keep] * share[:, None]
    precision = (
        np.linalg.inv(variance[:, keep]) if variance.ndim == 4 else (1.0 / variance[:, keep])[..., None] * np.eye(d)
    )
    total = np.einsum("kj,kjab->jab", q, precision)
    pulled = np.einsum("kj,kjab,kb->ja", q, precision, z)
    moved = np.linalg.solve(total, pulled[..., None])[..., 0]
    return Exchange(solved.weights, moved, r @ atoms, float(share @ (np.log(solved.marginal) + shift)), solved.gap)


def alternating(
    estimates: ArrayLike | Kernel,
    covariance: ArrayLike | None = None,
    *,
    counts: ArrayLike | None = None,
    atoms: ArrayLike | None = None,
    max_steps: int = 20,
    tolerance: float = 1e-6,
    workers: int | None = None,
) -> Mixture:
    """The same exchange with all sites at hand; returns the best iterate.

    Stops when a step gains less than `tolerance` nats a site. Nothing is searched, so there is no `gap`.
    """
    begin = time.perf_counter()
    kernel = as_kernel(estimates, covariance)
    mass = site_mass(counts, kernel.sites)
    points = (
        np.unique(kernel.z, axis=0) if atoms is None else np.asarray(atoms, dtype=float).reshape(-1, kernel.dimension)
    )
    best, status = None, f"stopped after {max_steps} steps"
    with threads(workers) as blocks:
        for step in range(max_steps + 1):
            done = step
            log = log_kernel(kernel, points, blocks)
            shift = log.max(axis=1)
            log -= shift[:, None]
            solved = solve_weights(np.exp(log, out=log), mass=mass)
            log_marginal = np.log(solved.marginal) + shift
            value = float(mass @ log_marginal)
            gain = value - best.log_likelihood if best is not None else np.inf
            keep = solved.weights > 1e-10 * solved.weights.max()
            if gain > 0:
                weights = solved.weights[keep] / solved.weights[keep].sum()
                best = Mixture(points[keep], weights, log_likelihood=value, gap_atoms=solved.gap, kernel=kernel)
            if gain < tolerance:
                status = f"converged: the last step gained {gain:.1e} nats a site"
                break
            points = points[keep]
            tangent = Near(kernel, np.arange(kernel.sites), np.log(mass) - log_marginal).tangent(points)[1]
            points = points + np.linalg.solve(tangent.precision, tangent.ridge[..., None])[..., 0]
    assert best is not None
    text = "none: the alternation is not guided by the derivative"
    seconds = time.perf_counter() - begin
    return replace(best, status=status, search=text, steps=done, seconds=seconds)
