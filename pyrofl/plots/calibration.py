"""Reliability diagram, drawn from the tables that the calibration error is computed from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import norm

from ..metrics.calibration import Bins
from .style import QUIET, figure, look, plain, tidy


def wilson(share: np.ndarray, rows: np.ndarray, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Interval for a share of so many rows.

    Reference: Wilson, 1927.
    """
    z = norm.ppf((1 + level) / 2)
    centre = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return centre - half, centre + half


def reliability_diagram(tables: Mapping[str, Bins], *, level: float = 0.95) -> Figure:
    """Accuracy against confidence for each model, and below how often each confidence was given.

    On the diagonal a model is right as often as it says; below it, it is over-confident. Bars are Wilson
    intervals, areas of the markers grow with the rows behind them.
    """
    if not tables:
        raise ValueError("no table to draw: pass {name: reliability(p, y)}")
    drawn = figure(5.2, 6.0 + 0.2 * len(tables))
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    tidy(upper, grid="both"), tidy(lower)
    upper.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=(0, (4, 3)))
    upper.text(0.98, 0.02, "over-confident", ha="right", fontsize=8, color=QUIET)
    upper.text(0.02, 0.96, "under-confident", fontsize=8, color=QUIET)
    uneven = any(not np.allclose(np.diff(table.edges), table.edges[1] - table.edges[0]) for table in tables.values())
    keys = []
    for position, (name, table) in enumerate(tables.items()):
        style, full = look(position), table.weight > 0
        colour, x, y = style["color"], table.confidence[full], table.accuracy[full]
        x = x + 0.004 * (position - (len(tables) - 1) / 2)  # bars of equal bins side by side
        low, high = wilson(y, np.maximum(table.rows[full], 1), level=level)
        upper.vlines(x, low, high, color=colour, linewidth=1.1, alpha=0.55)
        upper.plot(x, y, color=colour, linestyle=style["linestyle"], linewidth=1, alpha=0.7)
        area = 8 + 130 * table.weight[full]
        upper.scatter(x, y, s=area, color=colour, marker=style["marker"], clip_on=False, zorder=3)
        keys.append(Line2D([], [], label=f"{plain(name)}: ECE {table.ece:.3f}", **style))
        wide = np.maximum(np.diff(table.edges), 1e-3)
        height = table.weight / wide if uneven else table.weight
        edges = np.append(table.edges[0], table.edges[0] + np.cumsum(wide))
        lower.stairs(height, edges, color=colour, linestyle=style["linestyle"], linewidth=1.4)
        lower.stairs(height, edges, color=colour, fill=True, alpha=0.1)
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy (share of rows that are right)")
    lower.set(ylim=(0, None), xlabel="confidence (probability of the predicted class)")
    lower.set_ylabel("density of rows" if uneven else "share of rows")
    title = f"bars: {level:.0%} Wilson intervals"
    drawn.legend(handles=keys, loc="outside upper center", fontsize=8, frameon=False, title=title, title_fontsize=8)
    return drawn
