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


def points(a: Mapping[int, float], b: Mapping[int, float]) -> str:
    """a - b of scores by seed, in points, with the 95% t interval over the seeds that both have."""
    seeds = a.keys() & b.keys()
    gap = paired_difference({s: 100 * a[s] for s in seeds}, {s: 100 * b[s] for s in seeds})
    if gap.mean is None or gap.interval is None:
        return "" if gap.mean is None else f"{gap.mean:+.1f}"
    return f"{gap.mean:+.1f} ({gap.interval.low:+.1f} to {gap.interval.high:+.1f})"
