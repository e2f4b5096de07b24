"""Shrink a table of estimates: prior, posterior means and credible intervals of every site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.stats import norm
from torch import Tensor

from pyrofl.empirical_bayes.adamix import adamix
from pyrofl.empirical_bayes.counts import Counts
from pyrofl.empirical_bayes.crossfit import FoldProgress
from pyrofl.empirical_bayes.gaussian import gaussian_prior
from pyrofl.empirical_bayes.kernels import Array, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.npmle import Progress, npmle
from pyrofl.empirical_bayes.posterior import Posterior
from pyrofl.empirical_bayes.sites import as_kernel
from pyrofl.empirical_bayes.smoothing import smoothed
from pyrofl.empirical_bayes.table import Table, TableError
from pyrofl.names import nearest

PriorName = Literal["npmle", "gaussian", "mixture"]
LARGEST = 1e150  # whose square is a number
ROUNDING = 1e-8  # a standard error below this share of the spread is rounding, not sampling


@dataclass(frozen=True)
class Sites:
    """K sites on one coordinate: names, what they report, and their likelihoods."""

    table: Table  # the rows that are left, in the same order
    names: tuple[str, ...]
    raw: Array  # (K,) on the scale of the report
    kernel: Kernel  # on the scale of the prior
    rate: Callable[[Array], Array] | None = None  # from the prior's scale to the report's
    scale: str = "estimate"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shrunk:
    sites: Sites
    prior: Mixture
    level: float
    mean: Array  # (K,)
    low: Array  # (K,)
    high: Array  # (K,)
    prior_weight: Array  # (K,) 1 - posterior variance / sampling variance, within 0 and 1
    notes: tuple[str, ...]


def sites_of(
    table: Table,
    *,
    estimate: str | None = None,
    se: str | None = None,
    events: str | None = None,
    trials: str | None = None,
    exposure: str | None = None,
    id: str | None = None,
    drop_missing: bool = False,
) -> Sites:
    """The sites of a table: `estimate` with `se`, or `events` with `trials` or with `exposure`."""
    pair = (estimate, se) if events is None else (events, trials if trials is not None else exposure)
    extra = (
        [name for name in (estimate, se) if name]
        if events is not None
        else [name for name in (trials, exposure) if name]
    )
    if None in pair or extra or (trials is not None and exposure is not None):
        raise TableError("give --estimate with --se, or --events with --trials, or --events with --exposure")
    used = [str(name) for name in pair]
    notes: list[str] = []
    if drop_missing:
        gone = table.missing(used)
        table = table.without(gone)
        notes.append(f"{len(gone)} of {len(gone) + len(table.rows)} rows left out for missing values")
        if not table.rows:
            raise TableError(f"{table.path}: every row has a missing value in {' or '.join(used)}")
    first, second = (np.array(table.numbers(name)) for name in used)
    names = tuple(table.text(id)) if id is not None else tuple(f"row {line}" for line in table.lines)
    refuse = lambda bad, what: _refuse(table, bad, what)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        notes.append(f"{len(twice)} names of {id!r} stand in several rows each, such as {twice[0]!r}")
    if events is None:
        refuse(~np.isfinite(first), f"{used[0]!r} is not finite")
        refuse(np.abs(first) > LARGEST, f"{used[0]!r} is beyond {LARGEST:g}: use another unit")
        refuse(second < 0, f"standard error {used[1]!r} is negative")
        spread = max(float(np.ptp(first)), float(np.abs(first).max()), 1e-300)
        tiny = (second > 0) & (second < ROUNDING * spread)
        for k in np.flatnonzero(tiny):
            notes.append(
                f"{names[k]}: standard error {second[k]:.2g} is rounding; its estimate is kept, as if it were exact"
            )
        error = np.where(tiny, 0.0, second)
        try:
            kernel = as_kernel(first, error**2)
        except ValueError as fault:  # of the table as a whole: its rows were looked at above
            raise TableError(f"{table.path}: {fault}") from fault
        return Sites(table, names, first, kernel, notes=tuple(notes))
    refuse((first < 0) | (first != np.round(first)), f"{used[0]!r} is not a count")
    refuse(~(second > 0) | ~np.isfinite(second), f"{used[1]!r} is not positive")
    if trials is not None:
        refuse((second != np.round(second)) | (first > second), f"{used[0]!r} of {used[1]!r} is not r out of n")
    counts = Counts(first, second, binomial=trials is not None)
    scale = "probability" if trials is not None else "rate"
    return Sites(table, names, first / second, counts, counts.rate, scale, tuple(notes))


def shrink_sites(
    sites: Sites,
    *,
    prior: PriorName = "npmle",
    stored: Mixture | None = None,
    level: float = 0.95,
    key: Tensor | None = None,
    progress: Callable[[Progress], None] | None = None,
    fold_progress: FoldProgress | None = None,
) -> Shrunk:
    """Estimate the prior, or take a `stored` one, and report every site's posterior.

    The nonparametric prior is widened by `smoothed`, so that its intervals cover; `progress` is called after every step
    of its search, `fold_progress` after every fold of the widening. Sites whose estimate is exact, or without any
    information, do not shape a Gaussian or a mixture prior.
    """
    if stored is not None:
        fit = stored
    elif prior == "npmle":
        fit = smoothed(npmle(sites.kernel, progress=progress), key=key, progress=fold_progress)
    elif prior in get_args(PriorName):
        fit = gaussian_prior(sites.kernel) if prior == "gaussian" else adamix(sites.kernel, key=key)
    else:
        raise ValueError(f"unknown prior {prior!r}{nearest(prior, get_args(PriorName))}")
    if sites.rate is not None and fit.spread is not None:
        fit = discretised(fit)
    posterior = Posterior(fit, sites.kernel)
    low, high = (end[:, 0] for end in posterior.interval(level))
    mean = posterior.mean[:, 0]
    variance = np.diagonal(sites.kernel.plugin(), axis1=1, axis2=2)[:, 0]
    ratio = np.where(variance > 0, posterior.standard_deviation[:, 0] ** 2 / np.where(variance > 0, variance, 1.0), 1.0)
    weight = np.clip(1.0 - ratio, 0.0, 1.0)
    if sites.rate is not None:
        low, high = sites.rate(low), sites.rate(high)
        mean = Posterior(fit, sites.kernel, sites.rate).mean[:, 0]
    notes = (*sites.notes, *fit.notes)
    return Shrunk(sites, fit, level, mean, low, high, weight, notes)


def discretised(prior: Mixture, *, points: int = 400) -> Mixture:
    """A one-dimensional prior with Gaussian components as equally likely quantiles, for exact count likelihoods."""
    assert prior.spread is not None and prior.dimension == 1
    quantiles = norm.ppf((np.arange(points) + 0.5) / points)
    atoms = prior.atoms + np.sqrt(prior.spread[:, :, 0]) * quantiles  # (M, points)
    return replace(prior, atoms=atoms.reshape(-1, 1), weights=np.repeat(prior.weights / points, points), spread=None)


def _refuse(table: Table, bad: Array, what: str) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        rows = ", ".join(str(table.lines[i]) for i in where[:8]) + (" ..." if len(where) > 8 else "")
        raise TableError(f"{table.path}: {what}, row {rows}")
