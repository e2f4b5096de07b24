"""Reliability without bins: how often the predicted class is right, as a monotone function of the confidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.isotonic import IsotonicRegression

from .rows import Floats, same_rows


class Isotonic(NamedTuple):
    """A reliability curve on the grid `confidence` (G,), and the error scores that follow from it.

    `accuracy` (G,) is the recalibrated probability of being right, `low` and `high` (G,) the band in which the
    curve of a calibrated model would lie. Brier scores of the event "the predicted class is right":
    `miscalibration` is what recalibration would save, `discrimination` what knowing the confidence saves.
    """

    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    level: float
    miscalibration: float
    discrimination: float


def isotonic(
    confidence: ArrayLike,
    right: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = 200,
    points: int = 101,
) -> Isotonic:
    """Pool-adjacent-violators fit of `right` (B,) on `confidence` (B,), with a consistency band.

    The band holds the central `level` of the curves of outcomes drawn from the confidences themselves: a curve
    that leaves it contradicts calibration. miscalibration = S(confidence) - S(curve) and discrimination =
    S(mean) - S(curve), with S the mean squared error; both are never negative.

    Reference: Dimitriadis, Gneiting, Jordan, 2021 (CORP); Broecker and Smith, 2007, consistency bands.
    """
    c, r = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    same_rows(len(c), len(r))
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    grid = np.linspace(c.min(), c.max(), points)

    def fitted(outcome: Floats) -> IsotonicRegression:
        return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(c, outcome)

    curve = fitted(r)
    error = float(np.mean(np.square(curve.predict(c) - r)))
    by_chance = np.stack([fitted((rng.random(len(c)) < c).astype(float)).predict(grid) for _ in range(resamples)])
    low, high = np.quantile(by_chance, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Isotonic(
        grid,
        curve.predict(grid),
        low,
        high,
        level,
        float(np.mean(np.square(c - r))) - error,
        float(np.mean(np.square(r.mean() - r))) - error,
    )
