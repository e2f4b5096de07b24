"""The clients' posteriors: how far apart they are, and how wide in each layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from .style import PALETTE, figure, name_rows, rows_height, tidy


def disagreement(distance: ArrayLike, *, names: Sequence[str]) -> Figure:
    """Distances between clients' posteriors (C, C), with similar clients side by side (average linkage)."""
    d = np.asarray(distance, dtype=np.float64)
    if d.shape != (len(names), len(names)) or len(names) < 2:
        raise ValueError(f"distances have shape {d.shape}, and {len(names)} clients were named: two or more are needed")
    order = leaves_list(linkage(squareform(d, checks=False), method="average"))
    size = min(max(2.2, rows_height(len(names))), 3.4)
    drawn = figure(4.6, size + 0.9)
    axes = tidy(drawn.add_subplot(), grid=None)
    shown = d[np.ix_(order, order)]
    image = axes.imshow(shown, cmap="viridis", vmin=0, aspect="auto", interpolation="nearest")
    name_rows(axes, [names[i] for i in order], height=size)
    axes.set_xticks([])
    axes.set_xlabel("clients in the same order")
    drawn.colorbar(image, ax=axes, label="Wasserstein-2 distance", aspect=22)
    return drawn


def layers(width: ArrayLike, snr: ArrayLike, *, sites: Sequence[str]) -> Figure:
    """Posterior width and signal-to-noise ratio of each site: median over clients, and the range of the middle 80%.

    `width` and `snr` are (C, sites); NaN for clients without a model. A ratio below 1 means that the data have not
    settled the sign of most of the site's weights.
    """
    drawn = figure(4.6, min(2 * rows_height(len(sites)), 10) + 1.6)
    panels = drawn.subplots(2, 1)
    for axes, values, label in zip(panels, (width, snr), ("posterior scale (median of the site)", "|mean| / scale")):
        v = np.asarray(values, dtype=np.float64)
        v = v[~np.isnan(v).all(axis=1)]
        low, middle, high = np.quantile(v, [0.1, 0.5, 0.9], axis=0)
        tidy(axes, grid="x")
        row = np.arange(len(sites))
        axes.hlines(row, low, high, color=PALETTE[0], linewidth=2.4, alpha=0.5)
        axes.scatter(middle, row, color=PALETTE[0], s=20, zorder=3)
        name_rows(axes, sites)
        axes.set_xlim(0, 1.06 * max(float(high.max()), 1e-12))
        axes.set_xlabel(label)
    return drawn
