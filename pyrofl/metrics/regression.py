"""Scores of numbers and counts: draws (S, B) of the posterior predictive, observations y (B,)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .rows import Floats, average, same_rows
from .score import Score


def _pair(draws: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    d, observed = np.asarray(draws, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if d.ndim != 2 or observed.ndim != 1:
        raise ValueError(f"draws have shape (S, B) and y (B,), not {d.shape} and {observed.shape}")
    same_rows(d.shape[1], len(observed))
    for name, bad in (("draw", ~np.isfinite(d).all(axis=0)), ("observation", ~np.isfinite(observed))):
        if bad.any():
            raise ValueError(f"row {int(np.argmax(bad))} has a {name} that is not finite")
    return d, observed


def rmse(draws: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Root mean squared error of the predictive mean, in units of y."""
    d, observed = _pair(draws, y)
    return math.sqrt(average(np.square(d.mean(axis=0) - observed), weights))


def crps(draws: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> Score:
    """Continuous ranked probability score: mean_i E|x - y_i| - E|x - x'|/2, in units of y.

    The second mean runs over distinct pairs of draws, so that the estimate does not depend on S on average
    (and may be a little below 0). With one draw it is undefined. Costs O(S log S) a row.

    Reference: Gneiting and Raftery, 2007, equation 21; Ferro, 2014, the fair version.
    """
    d, observed = _pair(draws, y)
    S = len(d)
    if S < 2:
        return Score(None, "undefined: the spread of the forecast needs 2 draws, there is 1")
    z = np.sort(d - observed, axis=0)  # (S, B); shifted first, so that large values lose no digits
    rank = 2 * np.arange(1, S + 1) - S - 1
    between = rank @ z / (S * (S - 1))  # (B,) = E|x - x'|/2
    return Score(average(np.abs(z).mean(axis=0) - between, weights))


def coverage(draws: ArrayLike, y: ArrayLike, *, level: float, weights: ArrayLike | None = None) -> Score:
    """Share of observations inside the central predictive interval of the given level, ends included.

    The ends are quantiles at p(S + 1), for which the expected coverage equals the level at every S that can
    reach it; with fewer draws than 2/(1 - level) - 1 the score is undefined. Counts fall on the ends: expect
    the level or more.

    Reference: Hyndman and Fan, 1996, quantile definition 6.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    d, observed = _pair(draws, y)
    needed = math.ceil(2 / (1 - level) - 1 - 1e-9)
    if len(d) < needed:
        return Score(None, f"undefined: a {level:.0%} interval needs {needed} draws, there are {len(d)}")
    tail = (1 - level) / 2
    low, high = np.quantile(d, [tail, 1 - tail], axis=0, method="weibull")
    return Score(average(((low <= observed) & (observed <= high)).astype(np.float64), weights))


def pit(draws: ArrayLike, y: ArrayLike, *, rng: np.random.Generator) -> Floats:
    """Probability integral transform of each row, (B,): where the observation falls among its S draws, in (0, 1).

    u_i = (#{draws < y_i} + v_i (#{draws = y_i} + 1)) / (S + 1) with v_i ~ U(0, 1). Uniform if observations and
    draws are exchangeable, for counts as well; heaped in the middle if the forecast is too wide, at the ends if it
    is too narrow.

    Reference: Dawid, 1984; Czado, Gneiting, Held, 2009, the randomised version.
    """
    d, observed = _pair(draws, y)
    below, equal = (d < observed).sum(axis=0), (d == observed).sum(axis=0)
    return (below + rng.random(len(observed)) * (equal + 1)) / (len(d) + 1)
