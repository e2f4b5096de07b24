"""Scores across clients: the mean, the spread, the worst client, and differences between two methods."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from scipy.stats import t as student

from .calibration import Interval
from .score import meaning


class Summary(NamedTuple):
    """One score over clients, each client counted once. None where no client, or only one, has a value."""

    mean_over_clients: float | None
    spread_over_clients: float | None  # standard deviation between clients, divisor C - 1
    worst: float | None
    worst_client: str | None  # the first of equals; None for a score that is neither good nor bad
    defined: int  # clients with a value
    undefined: int  # clients without


def summary(metric: str, values: Mapping[str, float | None]) -> Summary:
    """Mean, spread and worst client of one score; clients where it is undefined are counted, not averaged.

    An infinite value (a client whose labels the model calls impossible) makes mean and spread infinite.
    """
    better = meaning(metric).better
    known = {client: value for client, value in values.items() if value is not None}
    if any(math.isnan(v) for v in known.values()):
        client = next(c for c, v in known.items() if math.isnan(v))
        raise ValueError(f"{metric} of client {client!r} is NaN: an undefined score is None")
    worst_client = None
    if known and better:
        worst_client = (min if better == "higher" else max)(known, key=known.__getitem__)
    numbers = np.array(list(known.values()))
    finite = bool(np.isfinite(numbers).all())
    spread = (float(numbers.std(ddof=1)) if finite else math.inf) if len(known) > 1 else None
    return Summary(
        mean_over_clients=float(numbers.mean()) if known else None,
        spread_over_clients=spread,
        worst=known[worst_client] if worst_client is not None else None,
        worst_client=worst_client,
        defined=len(known),
        undefined=len(values) - len(known),
    )


Unit = TypeVar("Unit", bound=Hashable)


class Difference(NamedTuple):
    """Mean of a - b over the units both have, with its interval; None and a note where there is none."""

    mean: float | None
    interval: Interval | None
    pairs: int
    note: str = ""


def paired_difference(
    a: Mapping[Unit, float | None],
    b: Mapping[Unit, float | None],
    *,
    kind: Literal["t", "bootstrap"] = "t",
    level: float = 0.95,
    overlap: float = 0.0,
    rng: np.random.Generator | None = None,
    resamples: int = 10_000,
) -> Difference:
    """Difference of two methods on the same units (seeds, or clients): mean of a_u - b_u and its interval.

    `t`: mean +- t_{n-1} s sqrt(1/n + overlap). `bootstrap`: percentiles of the means of resampled units, for 10 units
    or more. Units must be independent: to compare over seeds and clients, average over clients first and pair
    the seeds. Seeds that deal the same rows anew into training and test rows are not: for them `overlap` is the number
    of test rows for every training row (0.25 with a fifth for testing), and the interval is about more than these rows.

    Reference: Nadeau, Bengio, "Inference for the Generalization Error", 2003, the corrected resampled t-test.
    """
    odd = sorted(map(str, a.keys() ^ b.keys()))
    if odd:
        raise ValueError(f"{len(odd)} units were scored under one method only, the first is {odd[0]}")
    if kind not in ("t", "bootstrap"):
        raise ValueError(f"unknown interval {kind!r}: 't' or 'bootstrap'")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if overlap < 0 or (overlap and kind != "t"):
        raise ValueError(f"overlap must be at least 0, and 0 with a bootstrap, got {overlap}")
    pairs = [(u, x, y) for u, x in a.items() if x is not None and (y := b[u]) is not None]
    note = f"{len(a) - len(pairs)} of {len(a)} units are undefined" if len(pairs) < len(a) else ""
    for unit, x, y in pairs:
        if not math.isfinite(x - y):
            return Difference(None, None, len(pairs), f"undefined: {unit} has {x} against {y}")
    if not pairs:
        return Difference(None, None, 0, "undefined: no unit has both scores")
    gap = np.array([x - y for _, x, y in pairs])  # (n,)
    mean, n = float(gap.mean()), len(gap)
    if n < 2:
        return Difference(mean, None, n, note or "no interval: one unit only")
    if kind == "t":
        half = float(student.ppf((1 + level) / 2, n - 1)) * float(gap.std(ddof=1)) * math.sqrt(1 / n + overlap)
        how = f"paired t, {n - 1} df" + (f", rows dealt anew (overlap {overlap:.3g})" if overlap else "")
        return Difference(mean, Interval(mean - half, mean + half, level, how), n, note)
    if rng is None:
        raise ValueError("a bootstrap needs rng, a numpy Generator: pyrofl.random.generator(key) makes one")
    means = gap[rng.integers(n, size=(resamples, n))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Difference(mean, Interval(float(low), float(high), level, "percentile bootstrap"), n, note)
