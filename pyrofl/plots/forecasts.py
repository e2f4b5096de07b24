"""How far forecasts can be believed: isotonic reliability of classes; coverage and PIT of numbers and counts."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from ..metrics.isotonic import Isotonic
from .style import PALE, PALETTE, QUIET, figure, tidy

_WIDE = 4.6  # inches: read on a phone without zooming


def isotonic_curve(curve: Isotonic, confidence: ArrayLike) -> Figure:
    """Share of rows that are right against confidence, without bins, with the band of a calibrated model.

    Below: how often each confidence was given.
    """
    drawn = figure(_WIDE, 4.9)
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=[3.6, 1])
    tidy(upper, grid="both"), tidy(lower)
    upper.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=(0, (4, 3)))
    band = f"{curve.level:.0%} band of a calibrated model"
    upper.fill_between(curve.confidence, curve.low, curve.high, color=QUIET, alpha=0.22, linewidth=0, label=band)
    upper.plot(curve.confidence, curve.accuracy, color=PALETTE[0], linewidth=2, label="isotonic fit")
    start = max(0.0, np.floor(10 * float(curve.confidence[0]) - 0.5) / 10)
    upper.set(xlim=(start, 1), ylim=(0, 1.02), ylabel="share of rows that are right")
    upper.legend(loc="lower right", frameon=False, fontsize=8)
    lower.hist(np.asarray(confidence), bins=np.linspace(0, 1, 31), color=PALETTE[0], alpha=0.7)
    lower.set(xlabel="confidence in the predicted class", ylabel="rows")
    return drawn


def pit_histogram(pit: ArrayLike, *, bins: int = 10) -> Figure:
    """Where observations fall in their forecasts; flat is calibrated. Grey: 95% range of each bar for a flat one."""
    u = np.asarray(pit)
    drawn = figure(_WIDE, 3.0)
    axes = tidy(drawn.add_subplot())
    share, edges = np.histogram(u, bins=bins, range=(0, 1))
    half = 1.96 * np.sqrt((1 - 1 / bins) * bins / len(u))
    axes.axhspan(max(1 - half, 0), 1 + half, color=PALE, zorder=0)
    axes.stairs(share * bins / len(u), edges, fill=True, color=PALETTE[0], alpha=0.75)
    axes.axhline(1, color=QUIET, linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="probability integral transform", ylabel="density of rows")
    return drawn


def coverage_curve(pit: ArrayLike) -> Figure:
    """Share of observations inside the central interval of each level, by the PIT; the diagonal is calibrated."""
    reach = np.sort(np.abs(2 * np.asarray(pit) - 1))
    level = np.linspace(0, 1, 101)
    share = np.searchsorted(reach, level, side="right") / len(reach)
    half = 1.96 * np.sqrt(level * (1 - level) / len(reach))
    drawn = figure(_WIDE, 3.6)
    axes = tidy(drawn.add_subplot(), grid="both")
    band = "95% range of a calibrated model"
    low, high = np.maximum(level - half, 0), np.minimum(level + half, 1)
    axes.fill_between(level, low, high, color=QUIET, alpha=0.22, linewidth=0, label=band)
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=(0, (4, 3)))
    axes.plot(level, share, color=PALETTE[0], linewidth=2, label="observed")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel="share of observations inside")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    return drawn


def selective_curve(confidence: ArrayLike, right: ArrayLike) -> Figure:
    """Accuracy on the surest share of rows: what is gained by passing the others on to someone else."""
    order = np.argsort(-np.asarray(confidence), kind="stable")
    kept = np.arange(1, len(order) + 1)
    drawn = figure(_WIDE, 3.0)
    axes = tidy(drawn.add_subplot(), grid="both")
    axes.plot(kept / len(order), np.cumsum(np.asarray(right)[order]) / kept, color=PALETTE[0], linewidth=2)
    axes.set(xlim=(0, 1), ylim=(None, 1.01), xlabel="share of rows kept, the surest first", ylabel="accuracy")
    return drawn
