"""Temperature scaling: one number that makes a classifier less sure, or surer, without moving its choices much."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from .rows import labels

_WIDEST = math.log(100)  # of |log T| that is looked at


def temperature(logits: ArrayLike, y: ArrayLike) -> float:
    """T > 0 that minimises sum_i -log p_T(y_i) + (log T)^2 / 2 over validation rows.

    p_T(y) = mean_s softmax(logits_s / T)_y, with `logits` (S, B, K) of S posterior draws (log-probabilities are
    logits). The second term is a log-normal prior: it keeps T finite where every row is right, and T = 1 where
    there are no rows.

    Reference: Guo, Pleiss, Sun, Weinberger, 2017, without the prior.
    """
    given = np.asarray(logits, dtype=np.float64)
    if given.ndim != 3:
        raise ValueError(f"logits have shape (S, B, K), not {given.shape}")
    if not given.shape[1]:
        return 1.0
    code = labels(y, given.shape[2])

    def loss(log_t: float) -> float:
        log_p = log_softmax(given * math.exp(-log_t), axis=-1)[:, np.arange(len(code)), code]  # (S, B)
        return float(-(logsumexp(log_p, axis=0) - math.log(len(given))).sum() + log_t**2 / 2)

    found = minimize_scalar(loss, bounds=(-_WIDEST, _WIDEST), method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x)
