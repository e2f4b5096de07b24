"""The log score, from pointwise log-likelihoods, so that no probability is ever rounded to 0."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from .rows import Floats, average, row_weights
from .score import Score


def log_predictive(log_likelihood: ArrayLike) -> Floats:
    """Log posterior predictive density of each row, log mean_s p_s(y_i): (S, B) -> (B,), in nats."""
    ll = np.asarray(log_likelihood, dtype=np.float64)
    if ll.ndim != 2 or not ll.size:
        raise ValueError(f"the pointwise log-likelihood has shape (S, B) with S, B >= 1, not {ll.shape}")
    bad = np.isnan(ll) | (ll == np.inf)
    if bad.any():
        draw, row = np.argwhere(bad)[0]
        raise ValueError(f"the log-likelihood of row {row} under draw {draw} is {ll[draw, row]}")
    return logsumexp(ll, axis=0) - math.log(len(ll))


def nll(log_likelihood: ArrayLike, *, weights: ArrayLike | None = None) -> Score:
    """Negative log posterior predictive density in nats per row: -mean_i log mean_s p_s(y_i).

    Infinite only where every draw gives a row probability 0; the note then names the row.
    """
    log_p = log_predictive(log_likelihood)
    w = row_weights(weights, len(log_p))
    impossible = np.flatnonzero((log_p == -np.inf) & (w > 0))
    if len(impossible):
        more = f" (and {len(impossible) - 1} more)" if len(impossible) > 1 else ""
        return Score(math.inf, f"infinite: row {impossible[0]}{more} has probability 0 under every draw")
    return Score(-average(log_p[w > 0], w[w > 0]))
