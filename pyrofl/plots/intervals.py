"""Caterpillar plot: a score of every client with its interval, sorted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ..metrics.score import meaning
from .style import ALARM, PALE, PALETTE, QUIET, figure, name_rows, rows_height, tidy

Triple = tuple[float, float, float]


def caterpillar(
    clients: Mapping[str, Triple | None], metric: str, *, interval: str, pooled: float | None = None, width: float = 6.2
) -> Figure:
    """A score of each client with its interval, the worst on top in its own colour.

    `clients` holds (value, low, high) by name, or None where the score is undefined; those rows, and infinite
    ones, come last, in grey. `interval` names kind and level, such as "95% basic bootstrap". `pooled` is
    drawn beside the mean over clients. `width` is in inches.
    """
    known = {name: triple for name, triple in clients.items() if triple is not None and np.isfinite(triple).all()}
    if not known:
        raise ValueError(f"{metric} has no finite value at any of {len(clients)} clients: nothing to draw")
    about = meaning(metric)
    for name, (value, low, high) in known.items():
        if not low <= value <= high:
            raise ValueError(f"client {name!r}: {metric} {value} with interval ({low}, {high}) cannot be drawn")
    worst_first = sorted(known, key=lambda name: known[name][0], reverse=about.better == "lower")
    lacking = [name for name in clients if name not in known]
    value, low, high = np.array([known[name] for name in worst_first]).T  # each (C,)
    infinite = any(clients[name] is not None for name in lacking)
    row, C = np.arange(len(known)), len(clients)

    drawn = figure(width, rows_height(C) + 1.5)
    axes = tidy(drawn.add_subplot(), grid="x")
    many = C > 60
    colours = [ALARM if i == 0 and about.better else PALETTE[0] for i in row]
    axes.hlines(row, low, high, color=colours, linewidth=1.0 if many else 1.8, alpha=0.6)
    axes.scatter(value, row, color=colours, s=7 if many else 22, zorder=3)
    mean = float(value.mean())
    axes.axvline(mean, color=QUIET, linewidth=1, label=f"mean over {len(known)} clients {mean:.3g}")
    if pooled is not None:
        axes.axvline(pooled, color=QUIET, linewidth=1.2, linestyle=(0, (1, 1.5)), label=f"all rows pooled {pooled:.3g}")
    axes.plot([], [], color=PALETTE[0], marker="o", markersize=4, label=f"client, {interval} interval")
    if about.better:
        axes.plot(
            [],
            [],
            color=ALARM,
            marker="o",
            markersize=4,
            label="worst client" if not infinite else "worst finite client",
        )
    name_rows(axes, [*worst_first, *lacking])
    if lacking:
        axes.axhspan(len(known) - 0.5, C - 0.5, color=PALE, zorder=2)
        middle = (len(known) + C - 1) / 2
        text = f"undefined or infinite for {len(lacking)} of {C}"
        axes.text(0.5, middle, text, transform=axes.get_yaxis_transform(), ha="center", va="center", fontsize=8)
    axes.set_xlabel(about.title)
    drawn.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return drawn
