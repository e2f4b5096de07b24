"""Mixture weights at fixed atoms: the convex part of nonparametric maximum likelihood.

maximise sum_k c_k log (L w)_k over the simplex, c_k >= 0 with sum 1. Each Newton step is the non-negative least-squares
problem min || S x - 2 ||^2_c + 2 sum x with S = L / (L w), restricted to the support and to the atoms that want to
enter it, reduced to a triangular system, followed by a line search.

Reference: Wang, 2007, "On fast computation of the non-parametric maximum likelihood estimate of a mixing distribution"
(constrained Newton method); Kim, Carbonetto, Stephens, Anitescu, 2020 (mixsqp); Kim, Park, 2011 (block pivoting).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.optimize import nnls

from pyrofl.empirical_bayes.kernels import Array

ENOUGH = 10_000  # sites that place a start


class Weights(NamedTuple):
    weights: Array  # (M,) on the simplex
    gap: float  # max_j sum_k c_k L_kj / f_k - 1 in nats a site: bounds what any weights on these atoms could gain
    steps: int
    marginal: Array  # (K,) f = L w


def solve_weights(
    likelihood: Array,
    start: Array | None = None,
    *,
    mass: Array | None = None,
    tolerance: float = 1e-9,
    max_steps: int = 100,
    entering: int = 400,
) -> Weights:
    """The maximum-likelihood weights of the columns of `likelihood` (K, M), each row up to a positive factor.

    `start` (M,) may lie on the boundary, even at a vertex: the gap runs over all atoms. Without it thirty EM steps
    from equal weights are taken. `mass` (K,) weighs the sites. At most `entering` atoms join the support a step.
    """
    L = likelihood
    sites, atoms = L.shape
    top = L.max(axis=1)
    if not (np.isfinite(top).all() and (top > 0).all()):
        bad = int(np.flatnonzero(~np.isfinite(L).all(axis=1) | ~(top > 0))[0])
        raise ValueError(
            f"site row {bad} of the likelihood holds no finite positive value; shift each row by its maximum"
        )
    c = np.full(sites, 1.0 / sites) if mass is None else mass / mass.sum()
    w = _first(L, c) if start is None else _mend(L, np.array(start, dtype=float), c, 1e-6 * top)
    for step in range(max_steps + 1):
        f = L @ w
        slope = L.T @ (c / f) - 1.0  # (M,) directional derivatives
        support = w > 0
        gap = float(slope.max())
        if (gap <= tolerance and np.abs(slope[support]).max() <= max(1e-6, tolerance)) or step == max_steps:
            break
        outside = np.flatnonzero((slope > 0.1 * tolerance) & ~support)
        if len(outside) > entering:
            outside = outside[np.argpartition(-slope[outside], entering)[:entering]]
        chosen = np.sort(np.concatenate([np.flatnonzero(support), outside]))
        S = L / f[:, None] if len(chosen) == atoms else np.take(L, chosen, axis=1) / f[:, None]
        moved = _newton(S, w[chosen], c)
        if moved is None:
            break  # no ascent left above rounding
        w[chosen] = moved
        w[w < 1e-15] = 0.0
        w /= w.sum()
    return Weights(w, gap, step, f)


def em_weights(likelihood: Array, *, mass: Array | None = None, steps: int = 100, start: Array | None = None) -> Array:
    """Weights after `steps` EM updates w_j <- w_j sum_k c_k L_kj / (L w)_k: a start and an oracle, slow."""
    sites, atoms = likelihood.shape
    c = np.full(sites, 1.0 / sites) if mass is None else mass / mass.sum()
    w = np.full(atoms, 1.0 / atoms) if start is None else np.array(start, dtype=float)
    for _ in range(steps):
        w *= likelihood.T @ (c / (likelihood @ w))
    return w / w.sum()


def _first(L: Array, c: Array) -> Array:
    """A sparse start: thirty EM steps on at most 20,000 sites, then the atoms with at least half an equal share."""
    some = slice(None, None, max(1, len(L) // ENOUGH))
    w = em_weights(L[some], mass=c[some], steps=30)
    return _mend(L, np.where(w < 0.5 / len(w), 0.0, w), c, 0.1 * (L @ w))


def _mend(L: Array, w: Array, c: Array, least: float | Array) -> Array:
    """Add its best atom for every site whose likelihood under `w` is not above `least`."""
    poor = np.flatnonzero(L @ w <= least)
    if len(poor):
        extra = np.bincount(L[poor].argmax(axis=1), weights=c[poor], minlength=len(w))
        w = w / max(w.sum(), 1e-300) + extra
    return w / w.sum()


def _newton(S: Array, w: Array, c: Array) -> Array | None:
    """One step on the columns of S = L / f, where S w = 1; None when nothing is gained. Overwrites S."""
    root = np.sqrt(c)
    S *= root[:, None]
    hessian = S.T @ S
    total = root @ S
    target = quadratic_minimum(hessian, 2.0 * total - 1.0)
    direction = target - w
    slope = (1.0 - total) @ direction
    ratio = (S @ direction) / root
    change, step = direction.sum(), 1.0
    while step > 1e-10:
        inner = 1.0 + step * ratio
        if inner.min() > 0 and step * change - c @ np.log(inner) <= 1e-4 * step * slope:
            return w + step * direction
        step *= 0.5
    return None


def quadratic_minimum(hessian: Array, linear: Array) -> Array:
    """argmin over x >= 0 of x'Hx/2 - b'x by block principal pivoting; by `scipy.optimize.nnls` if that cycles."""
    size = len(linear)
    H = hessian + (1e-11 * np.trace(hessian) / size) * np.eye(size)
    passive = np.ones(size, dtype=bool)
    fewest, tries = size + 1, 5
    for _ in range(60):
        x, dual = np.zeros(size), np.zeros(size)
        factor = scipy.linalg.cho_factor(H[np.ix_(passive, passive)], lower=True, check_finite=False)
        x[passive] = scipy.linalg.cho_solve(factor, linear[passive], check_finite=False)
        dual[~passive] = H[np.ix_(~passive, passive)] @ x[passive] - linear[~passive]
        wrong = (passive & (x < 0)) | (~passive & (dual < -1e-12))
        count = int(wrong.sum())
        if count == 0:
            return x
        if count < fewest:
            fewest, tries = count, 5
        elif tries > 0:
            tries -= 1
        else:
            break
        passive = passive ^ wrong
    root = scipy.linalg.cholesky(H, lower=True, check_finite=False)
    solved: NDArray[np.float64] = nnls(
        root.T, scipy.linalg.solve_triangular(root, linear, lower=True, check_finite=False), maxiter=50 * size
    )[0]
    return solved
