"""Pareto k-hat of a guide: how far the importance weights p / q are from having a mean and a variance."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..arviz import adapter

_EXACT = 1e-6  # nats: log p - log q of an exact guide is constant, up to rounding


class Khat(NamedTuple):
    """k-hat, the largest value that is good enough at this number of draws, and what that means."""

    value: float | None
    good: float
    verdict: str


def khat(log_p: ArrayLike, log_q: ArrayLike) -> Khat:
    """Shape k of a generalised Pareto fitted to the largest importance ratios p / q over draws from q.

    Below min(1 - 1 / log10 S, 0.7) the guide is close enough for importance weights to correct it; from 1 the ratios
    have no mean and nothing computed with them means anything. It says nothing on modes that the guide never visits.
    log_p may miss a constant. Where log p - log q is constant, to 1e-6 nats, the guide is exact and k-hat is 0.

    Reference: Yao, Vehtari, Simpson, Gelman, "Yes, but did it work?: evaluating variational inference", 2018, section
    3; Vehtari et al., "Pareto Smoothed Importance Sampling", 2024 (the threshold).
    """
    p, q = (np.asarray(v, dtype=np.float64).ravel() for v in (log_p, log_q))
    if p.shape != q.shape:
        raise ValueError(f"log_p has {len(p)} draws and log_q {len(q)}: they must be of the same draws")
    S = len(p)
    good = min(1 - 1 / math.log10(S), 0.7) if S > 1 else 0.0
    if S < adapter.FEWEST:
        return Khat(None, good, f"undefined: {S} draws, at least {adapter.FEWEST} are needed")
    ratios = p - q
    if not np.isfinite(ratios).all():
        s = int(np.argmin(np.isfinite(ratios)))
        return Khat(None, good, f"undefined: log p - log q is {ratios[s]} at draw {s}")
    if np.ptp(ratios) < _EXACT:
        return Khat(0.0, good, "the guide is the posterior")
    _, k = adapter.psis(ratios)
    return Khat(k, good, _verdict(k, good))


def _verdict(k: float, good: float) -> str:
    if k < good:
        return "good"
    return "poor: correct with care" if k < 1 else "bad: far from the posterior"
