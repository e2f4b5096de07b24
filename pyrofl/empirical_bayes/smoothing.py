"""Widen a discrete prior just enough to predict new sites: intervals that cover.

The maximum-likelihood prior is discrete and fits the sites it has seen, so its posteriors are too narrow: their means
are good, their intervals are not. Each atom becomes a small Gaussian cloud, h local standard errors wide; h is chosen
by the log-likelihood of held-out sites: the widest cloud about as good as the best. The hundredth of the sites that the
width matters most to, at least one, has no say: a single far-off site would widen the prior of all others.

The cloud is again a discrete prior, so covariances that move with the parameter stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from pyrofl.empirical_bayes.crossfit import Estimator, FoldProgress, fold_priors
from pyrofl.empirical_bayes.kernels import Array
from pyrofl.empirical_bayes.lattice import lattice_note
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.random import fold, root

FEW = 40
ODD = 0.01  # share of sites that have no say in it
WIDTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.1, 1.35, 1.7, 2.1, 2.7)


def smoothed(
    fit: Mixture,
    *,
    key: Tensor | None = None,
    folds: int | None = None,
    points: int = 32,
    widths: Sequence[float] = WIDTHS,
    errors: float | None = None,
    estimator: Estimator | None = None,
    progress: FoldProgress | None = None,
) -> Mixture:
    """`fit` with its atoms widened by cross-validation over its sites; `points` atoms for each of its atoms.

    `folds` is 4, and one a site where there are at most 40 of them: then no chance enters. Taken is the widest cloud
    whose held-out log-likelihood is within `errors` (paired) standard errors of the best: 2, or 1 for so few sites.
    `estimator` refits the prior on the training part of each fold (default: `npmle` to 1e-3 nats a site). `progress` is
    called with (folds done, folds).
    """
    kernel = fit.kernel
    if kernel is None:
        raise ValueError("a stored prior keeps no sites, so its width cannot be chosen: smooth it before saving")
    folds = min(folds or (kernel.sites if kernel.sites <= FEW else 4), kernel.sites)
    if folds < 2:
        return replace(fit, notes=(*fit.notes, "one site: the width of the prior cannot be chosen"))
    held_out = np.full((len(widths), kernel.sites), -np.inf)  # log density, in nats
    key = fold(root(0) if key is None else key, "smoothing")
    for part, test in fold_priors(kernel, folds, key, estimator, progress):
        for i, h in enumerate(widths):
            held_out[i, test] = cloud(part, h, points).posterior(kernel.take(test)).log_marginal
    held_out = np.maximum(held_out, -1e6)[:, ~kernel.exact]
    if held_out.shape[1] < 3:
        return replace(fit, notes=(*fit.notes, "fewer than three sites with errors: the prior was not widened"))
    held_out = without_the_odd(held_out)
    errors = (1.0 if kernel.sites <= FEW else 2.0) if errors is None else errors
    best = int(held_out.mean(axis=1).argmax())
    loss = held_out[best] - held_out  # (widths, K)
    error = loss.std(axis=1) / np.sqrt(held_out.shape[1])
    chosen = max(i for i in range(len(widths)) if loss[i].mean() <= errors * error[i] or i == best)
    text = f"each atom widened by {widths[chosen]:g} standard errors, chosen by {folds}-fold held-out likelihood"
    out = cloud(fit, widths[chosen], points)
    posterior = out.posterior(kernel)
    return replace(
        out,
        log_likelihood=float(posterior.log_marginal.mean()),
        gap=float("nan"),
        gap_atoms=float("nan"),
        notes=(*fit.notes, *lattice_note(kernel), text),
    )


def without_the_odd(held_out: Array) -> Array:
    """Log densities (widths, K) less the share ODD of the sites, at least one, that the width matters most to."""
    matters = np.ptp(held_out, axis=0)
    few = int(np.ceil(ODD * len(matters)))
    return held_out[:, np.argsort(matters, kind="stable")[:-few]]


def cloud(prior: Mixture, width: float, points: int) -> Mixture:
    """Each atom replaced by `points` equal ones, spread like a Gaussian `width` local standard errors wide."""
    if width == 0.0:
        return prior
    scale = width * local_error(prior)  # (M, d)
    shape = standard_points(points, prior.dimension)
    atoms = (prior.atoms[:, None] + scale[:, None] * shape).reshape(-1, prior.dimension)
    return replace(prior, atoms=atoms, weights=np.repeat(prior.weights / points, points))


def local_error(prior: Mixture) -> Array:
    """Root mean sampling variance of the sites that belong to each atom, (M, d)."""
    assert prior.kernel is not None
    variance = np.diagonal(prior.kernel.plugin(), axis1=1, axis2=2)
    known: NDArray[np.bool_] = np.isfinite(variance.sum(axis=1))
    total, weight = np.zeros_like(prior.atoms), np.zeros(len(prior.atoms))
    for part in prior.sites.components():
        r = part.responsibility[known[part.rows]]
        total += r.T @ variance[part.rows][known[part.rows]]
        weight += r.sum(axis=0)
    return np.sqrt(total / np.maximum(weight, 1e-300)[:, None])


def standard_points(count: int, dimension: int) -> Array:
    """`count` points (count, d) spread like a standard normal, mean 0 and variance 1 exactly; nothing random.

    Reference: Roberts, 2018, the additive recurrence with the generalised golden ratio.
    """
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / (dimension + 1))
    step = ratio ** -np.arange(1.0, dimension + 1)
    uniform = (0.5 + np.arange(1, count + 1)[:, None] * step) % 1.0
    if dimension == 1:
        uniform = (np.arange(count)[:, None] + 0.5) / count
    x = norm.ppf(uniform)
    x = x - x.mean(axis=0)
    scaled: Array = x / np.sqrt((x**2).mean(axis=0))
    return scaled
