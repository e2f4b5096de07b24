"""The directional derivative of the log-likelihood, and its ascent in the parameter from many starts at once.

D(theta) = sum_k c_k phi_k(theta) / f_k - 1 says what a little mass at theta would gain, in nats a site. At a maximiser
D <= 0 everywhere; since the log-likelihood is concave, sup D bounds how far the present prior is from the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyrofl.empirical_bayes.blocks import split
from pyrofl.empirical_bayes.kernels import Array, Index, Kernel, Tangent

Blocks = Callable[[Callable[[slice], object], int, int], list]  # see blocks.threads


CEILING = 600.0  # log ratios are cut here: far beyond any D that matters, and the exponential stays finite
GROUP = 24  # starts that share a set of near sites
HOPE = 10.0  # a row whose D stays negative even after this many promised gains is given up


class Slope(NamedTuple):
    value: Array  # (M,) log(1 + D)
    gradient: Array  # (M, d) of value
    precision: Array  # (M, d, d) mean V_k^-1 of the sites that matter at each point


class Peaks(NamedTuple):
    points: Array  # (M, d)
    value: Array  # (M,) log(1 + D)
    scale: Array  # (M, d) local width: one over the root of the mean precision


def log_kernel(kernel: Kernel, theta: Array, blocks: Blocks) -> Array:
    """log phi_k(theta_j) for all sites, (K, M)."""
    out = np.empty((kernel.sites, len(theta)))

    def job(rows: slice) -> None:
        out[rows] = kernel.evaluate(theta, rows)[0]

    blocks(job, kernel.sites, len(theta) * kernel.width)
    return out


def own_log_likelihood(kernel: Kernel, blocks: Blocks) -> Array:
    """log phi_k(z_k) for every site, (K,)."""
    out = np.empty(kernel.sites)

    def job(rows: slice) -> None:
        out[rows] = np.diagonal(kernel.evaluate(kernel.z[rows], rows)[0])

    blocks(job, kernel.sites, 2048)
    return out


def derivative(kernel: Kernel, theta: Array, log_marginal: Array, mass: Array, blocks: Blocks) -> Array:
    """1 + D(theta_j) = sum_k c_k phi_k(theta_j) / f_k over all sites, (M,)."""
    floor = np.log(mass) - log_marginal

    def job(rows: slice) -> Array:
        q = kernel.evaluate(theta, rows)[0]
        q += floor[rows, None]
        np.minimum(q, CEILING, out=q)
        return np.exp(q, out=q).sum(axis=0)

    return np.sum(blocks(job, kernel.sites, len(theta) * kernel.width), axis=0)


@dataclass(frozen=True)
class Near:
    """log(1 + D) and its gradient from the sites that matter for a few points; the rest is left out."""

    kernel: Kernel
    sites: Index
    floor: Array  # (K,) log c_k - log f_k

    def tangent(self, theta: Array) -> tuple[Array, Tangent]:
        """sum_k q_kj (M,) and the tangent with q_kj = c_k phi_k(theta_j) / f_k."""
        total, sums = np.zeros(len(theta)), None
        for block in split(len(self.sites), len(theta) * self.kernel.width):
            rows = self.sites[block]
            q, tangent = self.kernel.evaluate(theta, rows)
            q += self.floor[rows, None]
            np.minimum(q, CEILING, out=q)
            np.exp(q, out=q)
            total += q.sum(axis=0)
            part = tangent(q)
            sums = part if sums is None else Tangent(*(a + b for a, b in zip(sums, part)))
        assert sums is not None
        return np.maximum(total, 1e-300), sums

    def __call__(self, theta: Array) -> Slope:
        total, sums = self.tangent(theta)
        return Slope(np.log(total), sums.gradient / total[:, None], sums.precision / total[:, None, None])


def ascend_all(
    kernel: Kernel,
    start: Array,
    share: Array,
    log_marginal: Array,
    mass: Array,
    blocks: Blocks,
    *,
    steps: int,
    tolerance: float,
) -> Peaks:
    """Ascend log(1 + D) from every row of `start`, group by group of neighbours, each with the sites near it.

    `share` (K, M) holds c_k phi_k(start_j) / f_k, or anything proportional to it in a column: a site counts as near
    when its share is not below `tolerance` / K of the column's sum. The values returned are summed over all sites.
    """
    groups = neighbours(start, GROUP)
    floor = np.log(mass) - log_marginal
    limit = tolerance / kernel.sites * share.sum(axis=0)

    def job(block: slice) -> tuple[Index, Peaks]:
        index = groups[block.start]
        near = np.flatnonzero((share[:, index] > limit[index]).any(axis=1))
        return index, ascend(Near(kernel, near, floor), start[index], steps=steps, tolerance=tolerance)

    points, scale = start.copy(), np.empty_like(start)
    for index, peaks in blocks(job, len(groups), 1 << 40):
        points[index], scale[index] = peaks.points, peaks.scale
    total = derivative(kernel, points, log_marginal, mass, blocks)
    return Peaks(points, np.log(np.maximum(total, 1e-300)), scale)


def neighbours(points: Array, size: int) -> list[Index]:
    """Groups of at most `size` points near each other, by halving along the longest side."""
    todo, done = [np.arange(len(points))], []
    while todo:
        index = todo.pop()
        if len(index) <= size:
            done.append(index)
            continue
        side = int(np.ptp(points[index], axis=0).argmax())
        index = index[np.argsort(points[index, side], kind="stable")]
        todo += [index[: len(index) // 2], index[len(index) // 2 :]]
    return done


def ascend(evaluate: Callable[[Array], Slope], start: Array, *, steps: int, tolerance: float = 1e-7) -> Peaks:
    """Maximise log(1 + D) from each row of `start` by BFGS, all rows at once; never ends below the start.

    The first metric is the mean precision at the start (its step is the mean-shift step), and no step is longer than
    two of those widths. A row stops when its next step promises less than `tolerance`, or too little to
    bring D above zero.
    """
    theta = start.copy()
    rows, d = theta.shape
    value, gradient, precision = evaluate(theta)
    diagonal = np.maximum(np.diagonal(precision, axis1=1, axis2=2), 1e-300)
    precision = precision + 1e-9 * diagonal.max(axis=1)[:, None, None] * np.eye(d)
    inverse = np.linalg.inv(precision)
    length = np.ones(rows)
    live = np.arange(rows)
    for _ in range(steps):
        direction = np.einsum("bij,bj->bi", inverse[live], gradient[live])
        promise = (direction * gradient[live]).sum(axis=1)
        going = (promise * length[live] > tolerance) & (value[live] + HOPE * promise > 0.0)
        live, direction, promise = live[going], direction[going], promise[going]
        if len(live) == 0:
            break
        width = np.sqrt(np.maximum(np.einsum("bi,bij,bj->b", direction, precision[live], direction), 1e-300))
        reach = length[live] * np.minimum(1.0, 2.0 / width)
        move = direction * reach[:, None]
        tried = evaluate(theta[live] + move)
        better = tried.value >= value[live] + 1e-4 * reach * promise
        _update(inverse, live, move, gradient[live] - tried.gradient, better)
        hit = live[better]
        theta[hit] += move[better]
        value[hit], gradient[hit], length[hit] = tried.value[better], tried.gradient[better], 1.0
        length[live[~better]] *= 0.25
    return Peaks(theta, value, 1.0 / np.sqrt(diagonal))


def _update(inverse: Array, live: Array, move: Array, change: Array, better: Array) -> None:
    """The BFGS update of the inverse Hessians of the rows that moved and saw negative curvature."""
    inner = (move * change).sum(axis=1)
    good = better & (inner > 1e-14)
    at, s, y, rho = live[good], move[good], change[good], 1.0 / inner[good]
    hy = np.einsum("bij,bj->bi", inverse[at], y)
    outer = hy[:, :, None] * s[:, None, :]
    stretch = (1.0 + (y * hy).sum(axis=1) * rho) * rho
    inverse[at] += stretch[:, None, None] * s[:, :, None] * s[:, None, :]
    inverse[at] -= rho[:, None, None] * (outer + np.swapaxes(outer, 1, 2))
