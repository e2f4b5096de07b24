"""Posterior-to-prior contraction: what the data added to the prior, weight by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Moments = Mapping[str, tuple[ArrayLike, ArrayLike]]  # site -> (mean, standard deviation)


class Contraction(NamedTuple):
    """Of all weights where it is defined: the median, the share that the data hardly informed, the share wider than
    their prior. All three are NaN where it is defined for none.
    """

    sites: dict[str, np.ndarray]  # 1 - (posterior sd / prior sd)^2, in the site's shape
    median: float
    idle: float  # share below 0.1: the posterior is almost the prior
    wider: float  # share below -0.1: the posterior is wider than the prior


def contraction(posterior: Moments, prior: Moments) -> Contraction:
    """c = 1 - sd_posterior^2 / sd_prior^2: 1 where the data decide, 0 where the prior does, negative where wider.

    Both moments are of the same space, constrained or not. It is NaN, and left out, for weights whose prior has no
    spread or no finite variance, such as a Cauchy or a horseshoe: their prior sd is inf or NaN.

    Reference: Betancourt, "Calibrating model-based inferences and decisions", 2018, section 4.
    """
    sites = {}
    for name, (_, sd) in posterior.items():
        if name not in prior:
            raise ValueError(f"site {name!r} has no prior moments; there are {', '.join(prior)}")
        now, before = (np.asarray(v, dtype=np.float64) for v in (sd, prior[name][1]))
        if now.shape != before.shape:
            raise ValueError(f"site {name!r}: the posterior has shape {now.shape}, the prior {before.shape}")
        with np.errstate(divide="ignore", invalid="ignore"):
            sites[name] = np.where((before > 0) & np.isfinite(before), 1 - (now / before) ** 2, np.nan)
    flat = np.concatenate([v.ravel() for v in sites.values()]) if sites else np.empty(0)
    flat = flat[np.isfinite(flat)]
    if not len(flat):
        return Contraction(sites, np.nan, np.nan, np.nan)
    return Contraction(sites, float(np.median(flat)), float((flat < 0.1).mean()), float((flat < -0.1).mean()))
