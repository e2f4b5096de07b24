"""Multi-seed agreement: whether runs that differ by their seed alone reach the same posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Moments = Mapping[str, tuple[ArrayLike, ArrayLike]]  # site -> (mean, standard deviation)


class Agreement(NamedTuple):
    """Of all pairs of runs and all weights: gaps between posterior means, in posterior standard deviations."""

    sites: dict[str, float]  # largest gap of the site
    median: float
    largest: float
    apart: float  # share of weights more than `limit` apart
    verdict: str


def agreement(posteriors: Sequence[Moments], *, limit: float = 1.0) -> Agreement:
    """d = |m_a - m_b| / sqrt((s_a^2 + s_b^2) / 2): "agree" where at most 5% of all weights are over `limit` apart.

    Runs on the same rows only differ by optimisation, so d should be far below 1. Networks with interchangeable hidden
    units have many equally good posteriors: compare their predictions instead, as {"p": (mean, sd)} of the same rows.
    """
    if len(posteriors) < 2:
        raise ValueError(f"agreement needs at least two runs, got {len(posteriors)}")
    names = list(posteriors[0])
    gaps: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for a, b in combinations(range(len(posteriors)), 2):
        if posteriors[a].keys() != posteriors[b].keys():
            raise ValueError(f"runs {a} and {b} have different sites: they must be of one model")
        for name in names:
            (m, s), (n, t) = (tuple(np.asarray(v, np.float64) for v in posteriors[k][name]) for k in (a, b))
            if m.shape != n.shape:
                raise ValueError(f"site {name!r} has shape {m.shape} in run {a} and {n.shape} in run {b}")
            spread = np.sqrt((s**2 + t**2) / 2)
            with np.errstate(divide="ignore", invalid="ignore"):
                gaps[name].append(np.where(m == n, 0.0, np.abs(m - n) / spread).ravel())
    flat = np.concatenate([g for of_site in gaps.values() for g in of_site])
    apart = float((flat > limit).mean())
    verdict = "agree" if apart <= 0.05 else "disagree"
    largest = {name: float(max(g.max() for g in of_site)) for name, of_site in gaps.items()}
    return Agreement(largest, float(np.median(flat)), float(flat.max()), apart, verdict)
