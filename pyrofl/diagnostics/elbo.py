"""Whether training has settled: the trend of the negative ELBO over the last rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import theilslopes

_FEWEST = 6  # rounds in the window


class Trend(NamedTuple):
    """Slope of the loss in nats per row and round with its interval, over `rounds` rounds."""

    slope: float | None
    low: float | None
    high: float | None
    rounds: int
    verdict: str


def elbo_trend(loss: Sequence[float], *, part: float = 0.5, tolerance: float = 0.01, level: float = 0.95) -> Trend:
    """Theil-Sen slope of -ELBO / n over the last `part` of the rounds, with its confidence interval at `level`.

    "settled" where the interval holds 0, or where another window as long would change the loss by less than `tolerance`
    nats a row; else "still falling" or "rising".

    Reference: Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968.
    """
    values = np.asarray(loss, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"the loss is one number a round, (T,), got shape {values.shape}")
    window = values[len(values) - max(round(part * len(values)), min(_FEWEST, len(values))) :]
    T = len(window)
    if not np.isfinite(window).all():
        return Trend(None, None, None, T, "undefined: a loss is not finite")
    if T < _FEWEST:
        return Trend(None, None, None, T, f"undefined: {T} rounds, at least {_FEWEST} are needed")
    slope, _, low, high = (float(v) for v in theilslopes(window, np.arange(T), alpha=level))
    if low <= 0 <= high or abs(slope) * T < tolerance:
        return Trend(slope, low, high, T, "settled")
    return Trend(slope, low, high, T, "still falling" if slope < 0 else "rising")
