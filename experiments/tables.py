"""Markdown tables of results, and paired differences as they stand in them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pyrofl.metrics import paired_difference


def markdown(frame: pd.DataFrame) -> str:
    """A table as Markdown text, without its index."""
    lines = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    lines += [list(map(str, row)) for row in frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def test_per_train(test: float) -> float:
    """Test rows for every row that is dealt for training, where `test` is the share of test rows."""
    return test / (1 - test)


def points(a: Mapping[int, float], b: Mapping[int, float], *, overlap: float = 0.0) -> str:
    """a - b of scores by seed, in points, with the 95% t interval over the seeds that both have."""
    return gap(*({s: 100 * v for s, v in scores.items()} for scores in (a, b)), digits=1, overlap=overlap)


def gap(a: Mapping[int, float], b: Mapping[int, float], *, digits: int, overlap: float = 0.0) -> str:
    """a - b of values by seed, in their own unit, with the 95% t interval over the seeds that both have.

    `overlap`: test rows for every training row, where the seeds deal the same rows anew (see `paired_difference`).
    """
    seeds = a.keys() & b.keys()
    found = paired_difference({s: a[s] for s in seeds}, {s: b[s] for s in seeds}, overlap=overlap)
    if found.mean is None:
        return ""
    said = lambda v: f"{v:+.{digits}f}"
    if found.interval is None:
        return said(found.mean)
    return f"{said(found.mean)} ({said(found.interval.low)} to {said(found.interval.high)})"
