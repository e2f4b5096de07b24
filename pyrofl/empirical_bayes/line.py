"""Thousands of one-dimensional problems at once: one prior a coordinate, the `coordinate` case of network heads.

Every problem has its own sites, errors and prior; all are solved side by side: weights by a primal-dual interior
point, atoms by Newton ascent of D from the atoms and from the local maxima of D on a grid.

Shapes: B problems, K sites of each, G grid points, A atoms (padded with weight 0).

Reference: Koenker, Mizera, 2014, "Convex optimization, shape constraints, compound decisions, and empirical Bayes
rules" (interior points for the weights).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyrofl.empirical_bayes.blocks import threads
from pyrofl.empirical_bayes.kernels import LOG_2PI, Array

GRID = 32
CHUNK = 50  # problems side by side


@dataclass(frozen=True)
class Lines:
    """The priors of B problems, and the posterior means and variances of their sites."""

    atoms: Array  # (B, A)
    weights: Array  # (B, A), zero where padded
    log_likelihood: Array  # (B,) nats a site
    gap_atoms: Array  # (B,) nats a site
    gap: Array  # (B,) nats a site: the largest D found from the atoms and from a grid
    mean: Array  # (B, K)
    variance: Array  # (B, K)


def npmle_lines(
    estimates: ArrayLike,
    variance: ArrayLike,
    *,
    tolerance: float = 1e-4,
    max_steps: int = 12,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Lines:
    """Solve B problems with estimates (B, K) and variances (B, K); infinity marks a site that a problem lacks.

    `progress` is called with (problems done, problems).
    """
    z, V = np.asarray(estimates, dtype=float), np.asarray(variance, dtype=float)
    if z.ndim != 2 or z.shape != V.shape:
        raise ValueError(f"estimates and variances must both be (B, K), got {z.shape} and {V.shape}")
    known = np.isfinite(V)
    wrong = ~(known & np.isfinite(z) & (V > 0) | np.isposinf(V))
    if wrong.any():
        b, k = np.argwhere(wrong)[0]
        raise ValueError(f"problem {b}, site {k}: estimate {z[b, k]}, variance {V[b, k]}; variances must be positive")
    if not known.any(axis=1).all():
        raise ValueError(f"problem {int(np.flatnonzero(~known.any(axis=1))[0])} has no site with finite variance")
    done = [0]

    def job(block: slice) -> Lines:
        part = _solve(np.where(known, z, 0.0)[block], np.where(known, 1.0 / V, 0.0)[block], tolerance, max_steps)
        done[0] += len(part.mean)
        if progress is not None:
            progress(done[0], len(z))
        return part

    with threads(workers) as blocks:
        parts = blocks(job, len(z), (1 << 17) // CHUNK)
    width = max(part.atoms.shape[1] for part in parts)
    pad = lambda a: np.pad(a, ((0, 0), (0, width - a.shape[1])))
    names = ("log_likelihood", "gap_atoms", "gap", "mean", "variance")
    rest = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    atoms, weights = (np.concatenate([pad(getattr(part, n)) for part in parts]) for n in ("atoms", "weights"))
    return Lines(atoms, weights, **rest)


def _solve(z: Array, P: Array, tolerance: float, max_steps: int) -> Lines:
    """`P` (B, K) are precisions, zero where a site is missing."""
    mass = (P > 0) / (P > 0).sum(axis=1, keepdims=True)
    low = np.where(P > 0, z, np.inf).min(axis=1)
    high = np.where(P > 0, z, -np.inf).max(axis=1)
    grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, GRID)
    log = _log(z, P, grid)
    shift = log.max(axis=2)
    columns = np.exp(log - shift[:, :, None])  # (B, K, G)
    unit = 1.0 / np.sqrt(np.maximum(P, 0.0).max(axis=1))
    atoms, weights = _prune(grid, interior(columns, mass, 1e-9), unit)
    live = np.arange(len(z))
    out_atoms, out_weights = [np.empty(0)] * len(z), [np.empty(0)] * len(z)
    gap, gap_atoms = np.full(len(z), np.inf), np.full(len(z), np.inf)
    for step in range(max_steps + 1):
        here = weights > 0
        L = np.exp(_log(z[live], P[live], atoms) - shift[live, :, None]) * here[:, None]
        weights = interior(L, mass[live], 1e-11)
        f = np.einsum("bka,ba->bk", L, weights)
        at = np.einsum("bka,bk->ba", L, mass[live] / f).max(axis=1) - 1.0
        log_f = np.log(f) + shift[live]
        D = np.einsum("bkg,bk->bg", columns[live], mass[live] / f) - 1.0
        ends = np.pad(D, ((0, 0), (1, 1)), constant_values=-np.inf)
        peak = np.where((ends[:, :-2] <= D) & (ends[:, 2:] <= D), D, -np.inf)
        best = np.argsort(-peak, axis=1)[:, :8]
        starts = np.concatenate([atoms, np.take_along_axis(grid[live], best, axis=1)], axis=1)
        found, value = _ascend(z[live], P[live], mass[live], log_f, starts)
        gap[live], gap_atoms[live] = np.maximum(value.max(axis=1), at), at
        for i, b in enumerate(live):
            out_atoms[b], out_weights[b] = atoms[i, here[i]], weights[i, here[i]]
        going = gap[live] > tolerance
        if not going.any() or step == max_steps:
            break
        live, atoms, weights, found, value = live[going], atoms[going], weights[going], found[going], value[going]
        peaks, good = _distinct(found, value, value > 0.01 * tolerance, unit[live])
        offered = np.concatenate([atoms, peaks], axis=1)
        usable = np.concatenate([weights > 0, good], axis=1)
        L = np.exp(_log(z[live], P[live], offered) - shift[live, :, None]) * usable[:, None]
        atoms, weights = _prune(offered, interior(L, mass[live], 1e-9) * usable, unit[live])
    return _finish(z, P, mass, out_atoms, out_weights, gap, gap_atoms)


def _log(z: Array, P: Array, theta: Array) -> Array:
    """log phi (B, K, A); zero where the site is missing."""
    gap = z[:, :, None] - theta[:, None]
    gap *= gap
    gap *= -0.5 * P[:, :, None]
    gap += np.where(P > 0, 0.5 * (np.log(np.where(P > 0, P, 1.0)) - LOG_2PI), 0.0)[:, :, None]
    return gap


def interior(L: Array, mass: Array, tolerance: float, *, max_steps: int = 60) -> Array:
    """argmax sum_k c_k log (L w)_k on the simplex for B problems at once: L (B, K, A), columns of zeros are ignored.

    Primal-dual: w > 0, s = 1 - L'(c / f) > 0, w s = mu, mu to zero; stops when the mean of w s is below `tolerance`.
    """
    problems, _, atoms = L.shape
    w = np.full((problems, atoms), 1.0 / atoms)
    s = np.full((problems, atoms), 1.0)
    diagonal = np.arange(atoms)
    root = np.sqrt(mass)
    for _ in range(max_steps):
        f = (L @ w[:, :, None])[:, :, 0]
        S = L * (root / f)[:, :, None]
        slope = 1.0 - np.einsum("bka,bk->ba", S, root)
        mu = (w * s).sum(axis=1, keepdims=True)
        if mu.max() < tolerance and (-slope).max() < 10 * tolerance + 1e-12:
            break
        mu *= 0.05 / atoms
        H = np.swapaxes(S, 1, 2) @ S
        H[:, diagonal, diagonal] += s / w + 1e-12
        dw = np.linalg.solve(H, (mu / w - slope)[:, :, None])[:, :, 0]
        ds = (mu - s * dw) / w - s
        w = w + _reach(w, dw) * dw
        s = np.maximum(s + _reach(s, ds) * ds, 1e-300)
    w = np.where(L.max(axis=1) > 0, w, 0.0)
    shares: Array = w / w.sum(axis=1, keepdims=True)
    return shares


def _reach(x: Array, move: Array) -> Array:
    """The longest step up to one that keeps x positive, less a two-hundredth, (B, 1)."""
    return np.minimum(1.0, 0.995 / np.maximum((-move / x).max(axis=1, keepdims=True), 1e-300))


def _ascend(z: Array, P: Array, mass: Array, log_f: Array, theta: Array) -> tuple[Array, Array]:
    """Newton (or, where D is not concave, mean-shift) steps on log(1 + D); returns points and D there, (B, A)."""
    theta = theta.copy()
    best, value = theta.copy(), np.full(theta.shape, -np.inf)
    floor = np.log(np.maximum(mass, 1e-300)) - log_f
    for _ in range(5):
        q = np.exp(np.minimum(_log(z, P, theta) + floor[:, :, None], 600.0))
        q *= (mass > 0)[:, :, None]
        total = np.maximum(q.sum(axis=1), 1e-300)
        better = total > value
        best, value = np.where(better, theta, best), np.where(better, total, value)
        pull = P[:, :, None] * (z[:, :, None] - theta[:, None])
        first = (q * pull).sum(axis=1) / total
        weight = (q * P[:, :, None]).sum(axis=1) / total
        curvature = (q * pull**2).sum(axis=1) / total - weight - first**2
        width = 1.0 / np.sqrt(np.maximum(weight, 1e-300))
        move = np.where(curvature < -0.05 * weight, -first / np.minimum(curvature, -1e-300), first * width**2)
        theta = theta + np.clip(move, -width, width)
    return best, value - 1.0


def _distinct(points: Array, value: Array, good: NDArray[np.bool_], unit: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Of the good points within a hundredth of the smallest error of each other the best, packed to the left."""
    order = np.argsort(np.where(good, points, np.inf), axis=1)
    points, good = np.take_along_axis(points, order, axis=1), np.take_along_axis(good, order, axis=1)
    value = np.take_along_axis(value, order, axis=1)
    far = np.diff(points, axis=1) > 0.01 * unit[:, None]
    group = np.cumsum(np.pad(far, ((0, 0), (1, 0))), axis=1)  # (B, A), rising
    best = np.lexsort((-value, group, ~good), axis=1)  # group by group, the best of each first
    group, good = np.take_along_axis(group, best, axis=1), np.take_along_axis(good, best, axis=1)
    first = good & (np.diff(group, axis=1, prepend=-1) > 0)
    keep = np.argsort(~first, axis=1, kind="stable")[:, : max(1, int(first.sum(axis=1).max()))]
    chosen = np.take_along_axis(best, keep, axis=1)
    return np.take_along_axis(points, chosen, axis=1), np.take_along_axis(first, keep, axis=1)


def _prune(atoms: Array, weights: Array, unit: Array) -> tuple[Array, Array]:
    """Merge atoms within three hundredths of the smallest error, drop those without weight, pack to the left."""
    order = np.argsort(np.where(weights > 1e-8, atoms, np.inf), axis=1)
    atoms, weights = np.take_along_axis(atoms, order, axis=1), np.take_along_axis(weights, order, axis=1)
    weights = np.where(weights > 1e-8, weights, 0.0)
    problems, width = atoms.shape
    close = np.diff(atoms, axis=1) <= 0.03 * unit[:, None]
    group = np.concatenate([np.zeros((problems, 1), dtype=int), np.cumsum(~close, axis=1)], axis=1)  # (B, A)
    flat = (group + width * np.arange(problems)[:, None]).ravel()
    total = np.bincount(flat, weights.ravel(), problems * width).reshape(problems, width)
    moment = np.bincount(flat, (weights * atoms).ravel(), problems * width).reshape(problems, width)
    keep = int((total > 0).sum(axis=1).max())
    order = np.argsort(-total, axis=1, kind="stable")[:, :keep]
    total = np.take_along_axis(total, order, axis=1)
    moment = np.take_along_axis(moment, order, axis=1)
    centre = np.where(total > 0, moment / np.where(total > 0, total, 1.0), 0.0)
    return centre, total / total.sum(axis=1, keepdims=True)


def _finish(z: Array, P: Array, mass: Array, atoms: list[Array], weights: list[Array], gap: Array, at: Array) -> Lines:
    width = max(map(len, atoms))
    a, w = np.zeros((len(z), width)), np.zeros((len(z), width))
    for b, (own, share) in enumerate(zip(atoms, weights)):
        order = np.argsort(own)
        a[b, : len(own)], w[b, : len(own)] = own[order], share[order]
    log = _log(z, P, a) + np.log(np.maximum(w, 1e-300))[:, None]
    top = log.max(axis=2)
    r = np.exp(log - top[:, :, None])
    total = r.sum(axis=2)
    r /= total[:, :, None]
    mean: NDArray[np.float64] = np.einsum("bka,ba->bk", r, a)
    second = np.einsum("bka,ba->bk", r, a**2)
    value = (mass * (np.log(total) + top)).sum(axis=1)
    return Lines(a, w, value, at, gap, mean, np.maximum(second - mean**2, 0.0))
