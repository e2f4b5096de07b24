"""The two figures of a shrunken table: the caterpillar of all sites, and the estimated prior."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr

from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.shrinkage import Shrunk
from pyrofl.plots.style import ALARM, PALETTE, QUIET, figure, name_rows, rows_height, tidy


def caterpillar(shrunk: Shrunk) -> Figure:
    """Raw and shrunken estimate of every site with its credible interval, the largest on top."""
    order = np.argsort(-shrunk.mean, kind="stable")
    row, count = np.arange(len(order)), len(order)
    drawn = figure(6.2, rows_height(count) + 1.5)
    axes = tidy(drawn.add_subplot(), grid="x")
    thin = count > 60
    axes.hlines(row, shrunk.low[order], shrunk.high[order], color=PALETTE[0], linewidth=1.0 if thin else 1.8, alpha=0.6)
    axes.scatter(shrunk.mean[order], row, color=PALETTE[0], s=7 if thin else 22, zorder=3, label="shrunken")
    axes.scatter(shrunk.sites.raw[order], row, color=ALARM, marker="|", s=20 if thin else 50, zorder=2, label="raw")
    axes.plot([], [], color=PALETTE[0], alpha=0.6, label=f"{shrunk.level:.0%} credible interval")
    name_rows(axes, [shrunk.sites.names[i] for i in order])
    axes.set_xlabel(shrunk.sites.scale)
    drawn.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return drawn


def prior_figure(shrunk: Shrunk) -> Figure:
    """The distribution function of the estimated prior, and the raw estimates as ticks below it."""
    drawn = figure(6.2, 3.2)
    axes = tidy(drawn.add_subplot())
    points, height = distribution(shrunk.prior)
    link = shrunk.sites.rate
    axes.step(points if link is None else link(points), height, where="post", color=PALETTE[0], label="prior")
    raw = shrunk.sites.raw[np.isfinite(shrunk.sites.raw)]
    axes.plot(raw, np.full(len(raw), -0.04), "|", color=QUIET, markersize=6, label="raw estimates")
    axes.set_xlabel(shrunk.sites.scale)
    axes.set_ylabel("prior probability below")
    axes.set_ylim(-0.08, 1.03)
    drawn.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return drawn


def distribution(prior: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Points (P,) and the prior's distribution function there, for one coordinate."""
    atoms = prior.atoms[:, 0]
    if prior.spread is None:
        order = np.argsort(atoms, kind="stable")
        return atoms[order], np.cumsum(prior.weights[order])
    width = np.sqrt(np.maximum(prior.spread[:, 0, 0], 1e-300))
    points = np.linspace((atoms - 4 * width).min(), (atoms + 4 * width).max(), 400)
    return points, ndtr((points[:, None] - atoms) / width) @ prior.weights
