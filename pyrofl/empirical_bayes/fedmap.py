"""The upper level of FedMAP in closed form: the Gaussian prior that best explains the clients' MAP estimates.

With log-weights l_k: mu = sum_k softmax(l)_k theta_k and variance sum_k softmax(l)_k (theta_k - mu)^2, floored; the
variance is one number for all coordinates, one a tensor, or one a coordinate.

Reference: Zhang, Kreuter, Chen, Dittmer et al., 2024, "FedMAP: unlocking potential in personalized federated learning
through bi-level MAP optimization".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.special import softmax

from pyrofl.empirical_bayes.kernels import Array
from pyrofl.names import nearest

Weighting = Literal["rows", "mean_loglik", "total_loglik", "rows_times_likelihood"]
Sharing = Literal["isotropic", "tensor", "coordinate"]


class Upper(NamedTuple):
    mean: Array  # (P,)
    variance: Array  # (P,), equal entries where shared
    weights: Array  # (C,) on the simplex
    effective_clients: float  # 1 / sum of squared weights


def log_weights(kind: Weighting, *, rows: Array, mean_log_likelihood: Array) -> Array:
    """l_k of C clients from their sizes n_k and mean log-likelihoods (nats a row).

    `rows` log n_k; `mean_loglik` the mean; `total_loglik` n_k times the mean, the paper's product of densities, which
    gives nearly all weight to one client; `rows_times_likelihood` log n_k plus the mean.
    """
    known = {
        "rows": np.log(rows),
        "mean_loglik": np.asarray(mean_log_likelihood, dtype=float),
        "total_loglik": rows * mean_log_likelihood,
        "rows_times_likelihood": np.log(rows) + mean_log_likelihood,
    }
    if kind not in known:
        raise ValueError(f"unknown weighting {kind!r}{nearest(kind, known)}")
    return known[kind]


def upper_level(
    estimates: Array,
    log_weight: Array,
    *,
    sharing: Sharing = "isotropic",
    sizes: Sequence[int] = (),
    floor: float = 1e-6,
) -> Upper:
    """mu and variance from C personal estimates (C, P) and log-weights (C,).

    `sizes` are the lengths of the tensors that make up P, for `sharing="tensor"`.
    """
    theta, l = np.asarray(estimates, dtype=float), np.asarray(log_weight, dtype=float)
    if theta.ndim != 2 or l.shape != theta.shape[:1]:
        raise ValueError(f"estimates must be (C, P) and log-weights (C,), got {theta.shape} and {l.shape}")
    if sharing not in get_args(Sharing):
        raise ValueError(f"unknown sharing {sharing!r}{nearest(sharing, get_args(Sharing))}")
    if not np.isfinite(l).all():
        raise ValueError(
            f"client {int(np.flatnonzero(~np.isfinite(l))[0])}: log-weight {l[~np.isfinite(l)][0]} is not finite"
        )
    w = softmax(l)
    mu = w @ theta
    square = w @ (theta - mu) ** 2  # (P,)
    if sharing == "isotropic":
        square = np.full_like(square, square.mean())
    elif sharing == "tensor":
        if sum(sizes) != len(mu):
            raise ValueError(f"the tensors hold {sum(sizes)} numbers, the estimates {len(mu)}")
        parts = np.split(square, np.cumsum(sizes)[:-1])
        square = np.concatenate([np.full_like(part, part.mean()) for part in parts])
    return Upper(mu, np.maximum(square, floor), w, float(1.0 / (w @ w)))
