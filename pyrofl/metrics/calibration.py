"""Calibration of the most probable class: one table of bins that the number and the figure share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rows import Floats, Integers, forecast, row_weights, same_rows


class Bins(NamedTuple):
    """A reliability table of M bins of the confidence; the last bin is closed on both sides.

    `edges` (M + 1,), `rows` in each (M,), `weight` share of all weight (M,), and the weighted means
    `confidence` and `accuracy` (M,), which are NaN in bins without weight. The `rows` add up to B.
    """

    edges: Floats
    rows: Integers
    weight: Floats
    confidence: Floats
    accuracy: Floats

    @property
    def ece(self) -> float:
        """sum_m weight_m |accuracy_m - confidence_m|; empty bins weigh 0."""
        filled = self.weight > 0
        return float(np.sum(self.weight[filled] * np.abs(self.accuracy - self.confidence)[filled]))


class Interval(NamedTuple):
    low: float
    high: float
    level: float
    kind: str


def _place(confidence: Floats, *, bins: int, adaptive: bool) -> tuple[Floats, NDArray[np.intp]]:
    """(edges (M + 1,), bin of each row (B,)). Never more bins than rows; equal confidences share a bin."""
    if bins < 1:
        raise ValueError(f"a table needs at least one bin, got {bins}")
    grid = np.linspace(0, 1, min(bins, len(confidence)) + 1)
    edges = np.unique(np.quantile(confidence, grid)) if adaptive else grid
    if len(edges) == 1:  # all rows are equally sure
        edges = np.repeat(edges, 2)
    place = np.searchsorted(edges, confidence, side="right") - 1
    return edges, np.clip(place, 0, len(edges) - 2)


def reliability(
    p: ArrayLike, y: ArrayLike, *, bins: int = 15, adaptive: bool = False, weights: ArrayLike | None = None
) -> Bins:
    """How often the most probable class is right, against how sure the model was.

    Bins have equal width on [0, 1], or with `adaptive` hold equally many rows. There are at most as many bins
    as rows.
    """
    mean, code = forecast(p, y)
    w = row_weights(weights, len(code))
    sure = mean.max(axis=1)
    edges, place = _place(sure, bins=bins, adaptive=adaptive)
    M = len(edges) - 1
    total = np.bincount(place, w, M)

    def within(values: Floats) -> Floats:
        return np.divide(np.bincount(place, w * values, M), total, out=np.full(M, np.nan), where=total > 0)

    right = (mean.argmax(axis=1) == code).astype(np.float64)
    return Bins(edges, np.bincount(place, minlength=M), total / w.sum(), within(sure), within(right))


def ece(p: ArrayLike, y: ArrayLike, *, bins: int = 15, weights: ArrayLike | None = None) -> float:
    """Expected calibration error, bins of equal width: sum_m (n_m/n) |accuracy_m - confidence_m|.

    It is biased upwards: chance gaps count as errors, the more so the fewer rows. `ece_interval` accounts for
    it.

    Reference: Naeini, Cooper, Hauskrecht, 2015; Guo et al., 2017.
    """
    return reliability(p, y, bins=bins, weights=weights).ece


def adaptive_ece(p: ArrayLike, y: ArrayLike, *, bins: int = 15, weights: ArrayLike | None = None) -> float:
    """Expected calibration error over bins that hold equally many rows.

    Reference: Nguyen and O'Connor, 2015; Nixon et al., 2019.
    """
    return reliability(p, y, bins=bins, adaptive=True, weights=weights).ece


def ece_interval(
    p: ArrayLike,
    y: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    bins: int = 15,
    resamples: int = 1000,
    weights: ArrayLike | None = None,
) -> Interval:
    """Interval for the calibration error of `ece`, by two resamplings of the rows.

    Rows are drawn with replacement and the quantiles mirrored at the estimate (basic bootstrap), because
    resampled errors are too large by about as much as the estimate is: percentiles never reach down to the
    true value of a calibrated model. The lower end is 0 where outcomes drawn from the confidences themselves
    would give an error as large, that is, where calibration is not rejected at (1 - level)/2; the upper end
    is never below the estimate.

    Reference: Davison and Hinkley, 1997, basic bootstrap; Broecker and Smith, 2007, consistency resampling.
    """
    mean, code = forecast(p, y)
    right = (mean.argmax(axis=1) == code).astype(np.float64)
    return confidence_interval(
        mean.max(axis=1), right, rng=rng, level=level, bins=bins, resamples=resamples, weights=weights
    )


def confidence_interval(
    confidence: ArrayLike,
    right: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    bins: int = 15,
    resamples: int = 1000,
    weights: ArrayLike | None = None,
) -> Interval:
    """`ece_interval` from the confidence in each predicted class (B,) and whether it was right (B,)."""
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    sure, right = (np.asarray(v, dtype=np.float64) for v in (confidence, right))
    same_rows(len(sure), len(right))
    n = len(sure)
    w = row_weights(weights, n)
    edges, place = _place(sure, bins=bins, adaptive=False)

    def error(rows: NDArray[np.intp], right: Floats) -> float:
        gap = np.bincount(place[rows], w[rows] * (right - sure[rows]), len(edges) - 1)
        return float(np.abs(gap).sum() / max(w[rows].sum(), np.finfo(float).tiny))

    everyone = np.arange(n)
    estimate = error(everyone, right)
    picks = (rng.integers(n, size=n) for _ in range(resamples))
    again = [error(rows, right[rows]) for rows in picks]
    by_chance = [error(everyone, (rng.random(n) < sure).astype(np.float64)) for _ in range(resamples)]
    tail = (1 - level) / 2
    top, bottom = np.quantile(again, [tail, 1 - tail])
    calibrated = estimate <= np.quantile(by_chance, 1 - tail)
    low = 0.0 if calibrated else min(max(2 * estimate - float(bottom), 0.0), estimate)
    high = min(max(2 * estimate - float(top), estimate), 1.0)
    return Interval(low, high, level, "basic bootstrap")
