"""Points where the directional derivative is watched all the time: their likelihoods are computed once and kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pyrofl.empirical_bayes.kernels import Array, Kernel
from pyrofl.empirical_bayes.search import Blocks, log_kernel


@dataclass(frozen=True)
class Pool:
    points: Array  # (P, d)
    likelihood: Array  # (K, P), row k up to exp(shift_k)
    shift: Array  # (K,) the largest log-likelihood of each site over the pool
    neighbours: NDArray[np.intp]  # (P, n) nearest points of each point
    text: str
    partial: bool = False  # whether observations were left out

    def first(self, count: int) -> NDArray[np.intp]:
        """At most `count` of the points, spread over the pool; each site keeps a point that explains it if it can."""
        size = len(self.points)
        return np.unique(np.linspace(0, size - 1, min(count, size)).round().astype(np.intp))

    def maxima(self, log_marginal: Array, mass: Array) -> NDArray[np.intp]:
        """Which points have a D not below that of any neighbour; those far below zero are left out."""
        ratio = np.log(mass) - log_marginal + self.shift
        derivative = self.likelihood.T @ np.exp(np.minimum(ratio, 600.0)) - 1.0  # (P,)
        peak = derivative >= derivative[self.neighbours].max(axis=1) - 1e-12
        return np.flatnonzero(peak & (derivative > -0.5))

    def share(self, index: NDArray[np.intp], log_marginal: Array, mass: Array) -> Array:
        """c_k phi_k(theta_j) / f_k of the chosen points, (K, n)."""
        ratio = np.exp(np.minimum(np.log(mass) - log_marginal + self.shift, 600.0))
        own: Array = self.likelihood[:, index] * ratio[:, None]
        return own


def make_pool(kernel: Kernel, atoms: Array | None, entries: int, blocks: Blocks) -> Pool:
    """The given atoms, or all distinct observations; at most `entries` numbers in the likelihood matrix.

    Where not all observations fit, every so-many-th in the order of their coordinates is taken, whatever the order of
    the rows. On the line half of the points are quantiles and half an even grid.
    """
    limit = max(8, entries // kernel.sites)
    if atoms is not None:
        points, text, partial = atoms, f"{len(atoms)} given points", True
        if len(points) > limit:
            gib = len(points) * kernel.sites * 8 / 0.35 / 2**30
            raise ValueError(f"{len(points)} atoms for {kernel.sites} sites need memory={gib:.1f} GiB")
    else:
        points = np.unique(kernel.z, axis=0)  # (U, d), sorted
        text, partial = f"{len(points)} observations", False
        if len(points) > limit or (kernel.dimension == 1 and kernel.sites > 2000):
            size = min(limit, 400) if kernel.dimension == 1 else limit
            index = np.linspace(0, len(points) - 1, size // 2 if kernel.dimension == 1 else size)
            points, all_points = points[np.unique(index.round().astype(int))], points
            text, partial = f"{len(points)} of {len(all_points)} observations", True
            if kernel.dimension == 1:
                grid = np.linspace(all_points[0, 0], all_points[-1, 0], size // 2)
                points = np.unique(np.concatenate([points, grid[:, None]]), axis=0)
                text += f" and an even grid of {size // 2}"
    log = log_kernel(kernel, points, blocks)
    shift = log.max(axis=1)
    log -= shift[:, None]
    scale = np.maximum(np.std(kernel.z, axis=0), 1e-300)
    near = min(len(points), 3 if kernel.dimension == 1 else 9)
    neighbours = np.asarray(cKDTree(points / scale).query(points / scale, k=near)[1]).reshape(len(points), near)
    return Pool(points, np.exp(log, out=log), shift, neighbours, text, partial)
