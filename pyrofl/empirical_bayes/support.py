"""The present support of the prior: atoms, their likelihood columns and weights, and how they are bettered."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from pyrofl.empirical_bayes.kernels import Array, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.pool import Pool
from pyrofl.empirical_bayes.search import CEILING, Blocks, Peaks, ascend_all, log_kernel, own_log_likelihood
from pyrofl.empirical_bayes.weights import solve_weights

EXACT = 1e-9  # nats a site: weights solved to here are solved
LONELY = 100  # badly explained observations that are looked at in a step
FIRST = 1000  # pool points whose weights start the search


class Support:
    """Atoms, their likelihood columns (each row up to exp(shift_k)) and their weights."""

    def __init__(self, kernel: Kernel, mass: Array, pool: Pool, capacity: int, blocks: Blocks, guess: Mixture | None):
        self.kernel, self.mass, self.pool, self.blocks = kernel, mass, pool, blocks
        self.columns = max(8, capacity // kernel.sites)
        self.shift = pool.shift.copy()
        self.notes: tuple[str, ...] = ()
        self.gap = 1.0
        self.own = own_log_likelihood(kernel, blocks) if pool.partial else None
        if guess is None:
            first = pool.first(min(FIRST, self.columns))
            self.atoms, self.likelihood = pool.points[first], pool.likelihood[:, first]
            self._solve(None, 1e-3 if len(pool.points) > 200 else EXACT)
        else:
            self.atoms, self.likelihood = guess.atoms[:0], np.empty((kernel.sites, 0))
            self._join(guess.atoms[: self.columns])
            self._solve(guess.weights[: self.columns], 1e-3)

    def _solve(self, start: Array | None, tolerance: float) -> None:
        solved = solve_weights(self.likelihood, start, mass=self.mass, tolerance=tolerance)
        keep = solved.weights > 1e-10 * solved.weights.max()
        self.atoms, self.likelihood = self.atoms[keep], self.likelihood[:, keep]
        self.weights = solved.weights[keep] / solved.weights[keep].sum()
        self.marginal = self.likelihood @ self.weights
        self.gap_atoms = solved.gap

    @property
    def log_marginal(self) -> Array:
        log: Array = np.log(self.marginal) + self.shift
        return log

    @property
    def log_likelihood(self) -> float:
        return float(self.mass @ self.log_marginal)

    def look(self, tolerance: float) -> tuple[Peaks, float, str]:
        """Ascend D from every atom and from its local maxima over the pool."""
        log_marginal = self.log_marginal
        fine = 1e-3 * max(tolerance, min(0.1 * self.gap, 0.01))
        chosen = self.pool.maxima(log_marginal, self.mass)
        starts = self.pool.points[chosen]
        common = (log_marginal, self.mass, self.blocks)
        share = self.likelihood * (self.mass / self.marginal)[:, None]
        parts = [ascend_all(self.kernel, self.atoms, share, *common, steps=6, tolerance=fine)]
        if len(starts):
            share = self.pool.share(chosen, log_marginal, self.mass)
            parts.append(ascend_all(self.kernel, starts, share, *common, steps=15, tolerance=fine))
        text = f"BFGS ascent from {len(self.atoms)} atoms and from the {len(starts)} local maxima of D among "
        text += self.pool.text
        lonely = self.lonely(log_marginal)
        if len(lonely):
            floor = np.log(self.mass) - log_marginal
            share = log_kernel(self.kernel, lonely, self.blocks) + floor[:, None]
            share = np.exp(np.minimum(share, CEILING))
            parts.append(ascend_all(self.kernel, lonely, share, *common, steps=15, tolerance=fine))
            text += f", and from the {len(lonely)} worst explained observations"
        peaks = Peaks(*(np.concatenate([part[i] for part in parts]) for i in range(3)))
        gap = float(np.expm1(peaks.value.max()))
        self.gap = gap
        return peaks, gap, text

    def lonely(self, log_marginal: Array) -> Array:
        """At most 100 observations whose own site alone makes D large there; none when the pool holds them all."""
        if self.own is None:
            return self.atoms[:0]
        alone = np.log(self.mass) + self.own - log_marginal
        worst = np.argsort(-alone, kind="stable")[:LONELY]
        return np.unique(self.kernel.z[worst[alone[worst] > np.log(0.3)]], axis=0)

    def improve(self, peaks: Peaks, gap: float, tolerance: float) -> bool:
        """Offer the peaks and the centres of clusters to the weight problem; False when nothing was gained."""
        before = self.log_likelihood
        good = peaks.value > 0.05 * min(gap, tolerance)
        points = _distinct(peaks.points[good], peaks.value[good], peaks.scale[good])
        centres = _centres(self.atoms, self.weights, peaks.scale[: len(self.atoms)])
        room = self.columns - len(self.atoms)
        if len(points) + len(centres) > room:
            self.notes = (f"memory holds {self.columns} atoms at once, so the best candidates went first",)
            points, centres = points[: max(room, 1)], centres[: max(room - len(points), 0)]
        offered = np.concatenate([points, centres])
        self._join(offered)
        start = np.concatenate([self.weights, np.zeros(len(offered))])
        self._solve(start, max(EXACT, 1e-2 * min(gap, 1.0)) if gap > 10 * tolerance else EXACT)
        return self.log_likelihood > before + 1e-13 * max(1.0, abs(before))

    def _join(self, points: Array) -> None:
        """Add columns; where a site's likelihood is beyond what its row can hold, the row is scaled anew."""
        log = log_kernel(self.kernel, points, self.blocks)
        rise = np.maximum(0.0, (log - self.shift[:, None]).max(axis=1) - 300.0)
        self.shift += rise
        self.likelihood *= np.exp(-rise)[:, None]
        log -= self.shift[:, None]
        self.likelihood = np.concatenate([self.likelihood, np.exp(log, out=log)], axis=1)
        self.atoms = np.concatenate([self.atoms, points])

    def polish(self) -> bool:
        """Solve the weights of the present atoms to the end, gap_atoms <= 1e-8; False when they were already."""
        if self.gap_atoms <= EXACT:
            return False
        self._solve(self.weights, EXACT)
        return True


def _distinct(points: Array, value: Array, scale: Array) -> Array:
    """Points in falling order of value, without those within a fiftieth of a width of a better one."""
    order = np.argsort(-value, kind="stable")
    points, scale = points[order], scale[order]
    if len(points) < 2:
        return points
    unit = np.median(scale, axis=0)
    tree, seen, kept = cKDTree(points / unit), np.zeros(len(points), dtype=bool), []
    for i, radius in enumerate(0.02 * (scale / unit).min(axis=1)):
        if not seen[i]:
            kept.append(i)
            seen[tree.query_ball_point(points[i] / unit, radius)] = True
    return points[kept]


def _centres(atoms: Array, weights: Array, scale: Array) -> Array:
    """The weighted centre of every cluster of two or more atoms within 0.3 widths of its heaviest."""
    unit = np.median(scale, axis=0)
    tree, used, centres = cKDTree(atoms / unit), np.zeros(len(atoms), dtype=bool), []
    for i in np.argsort(-weights, kind="stable"):
        if used[i]:
            continue
        near = tree.query_ball_point(atoms[i] / unit, 0.3 * (scale[i] / unit).min())
        near = [j for j in near if not used[j]]
        used[near] = True
        if len(near) > 1:
            centres.append(weights[near] @ atoms[near] / weights[near].sum())
    return np.array(centres).reshape(-1, atoms.shape[1])
