"""Rows of one client: their checked probabilities, labels and weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SUM_TOLERANCE = 5e-3  # float16 softmax of a thousand classes stays within it


def predictive(p: ArrayLike) -> Floats:
    """Posterior predictive class probabilities, the mean over draws: (S, B, K) or (B, K) -> (B, K)."""
    p = np.asarray(p)
    if p.ndim not in (2, 3) or p.shape[-1] < 2:
        raise ValueError(f"class probabilities have shape (S, B, K) or (B, K) with K >= 2, not {p.shape}")
    mean = p.mean(axis=0, dtype=np.float64) if p.ndim == 3 else p.astype(np.float64)  # (B, K)
    total = mean.sum(axis=-1)  # (B,)
    negative = np.any(p < 0, axis=(0, 2) if p.ndim == 3 else 1)  # (B,)
    unsound = negative | ~(np.abs(total - 1) <= _SUM_TOLERANCE)  # written so that NaN is unsound
    if unsound.any():
        row = int(np.argmax(unsound))
        why = "a negative entry" if negative[row] else f"the sum {total[row]:.6g}"
        raise ValueError(
            f"row {row} holds no class probabilities: it has {why}; "
            "pass the softmax of the network's outputs, not the outputs"
        )
    return np.clip(mean / total[:, None], 0, 1)


def two_classes(p: ArrayLike) -> NDArray[np.floating]:
    """Probability of class 1, (S, B) or (B,), as that of classes 0 and 1: (S, B, 2) or (B, 2)."""
    p = np.asarray(p)
    if p.ndim not in (1, 2):
        raise ValueError(f"Bernoulli probabilities have shape (S, B) or (B,), not {p.shape}")
    return np.stack([1 - p, p], axis=-1)


def labels(y: ArrayLike, classes: int) -> Integers:
    """Class codes 0..K-1 as int64 (B,)."""
    y = np.asarray(y)
    if y.ndim != 1:
        raise ValueError(f"labels have shape (B,), not {y.shape}")
    odd = ~np.isin(y, np.arange(classes))
    if odd.any():
        row = int(np.argmax(odd))
        raise ValueError(f"row {row} has label {y[row]}, outside the model's classes 0..{classes - 1}")
    return y.astype(np.int64)


def forecast(p: ArrayLike, y: ArrayLike) -> tuple[Floats, Integers]:
    """Checked pair of predictive probabilities (B, K) and labels (B,)."""
    mean = predictive(p)
    codes = labels(y, mean.shape[1])
    same_rows(len(mean), len(codes))
    return mean, codes


def same_rows(predicted: int, observed: int) -> None:
    if predicted != observed:
        raise ValueError(f"{predicted} rows were predicted and {observed} observed: they must be the same rows")
    if not observed:
        raise ValueError("no rows to score: leave the client out, or report the score as undefined")


def row_weights(weights: ArrayLike | None, rows: int) -> Floats:
    """Weights (B,) as given, or ones."""
    if weights is None:
        return np.ones(rows)
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (rows,):
        raise ValueError(f"weights have shape {w.shape}, expected one for each row: ({rows},)")
    if not np.isfinite(w).all() or (w < 0).any() or not w.any():
        raise ValueError("weights must be finite, not negative and not all zero")
    return w


def average(values: Floats, weights: ArrayLike | None) -> float:
    """sum_i w_i v_i / sum_i w_i."""
    return float(np.average(values, weights=row_weights(weights, len(values))))


def balanced_weights(y: ArrayLike) -> Floats:
    """Weights that give every class present the same total: w_i proportional to 1/n_{y_i}, with mean 1."""
    _, code, count = np.unique(np.asarray(y), return_inverse=True, return_counts=True)
    return len(code) / (len(count) * count[code])


def matched_weights(y: ArrayLike, proportions: ArrayLike) -> Floats:
    """Weights that make common test rows look like a client's own label mix: w_i = p_k(y_i) / p_test(y_i).

    `proportions` (K,) are the client's class counts or shares p_k. A class that the client has and the test
    rows lack cannot be matched and is an error.
    """
    share = np.asarray(proportions, dtype=np.float64)
    if share.ndim != 1 or not np.isfinite(share).all() or (share < 0).any() or not share.any():
        raise ValueError(f"proportions are (K,) counts or shares of the classes, not negative, not all zero: {share}")
    share = share / share.sum()
    code = labels(y, len(share))
    test = np.bincount(code, minlength=len(share)) / max(len(code), 1)  # (K,)
    missing = np.flatnonzero((share > 0) & (test == 0))
    if len(missing):
        raise ValueError(
            f"class {missing[0]} is {share[missing[0]]:.1%} of the client's rows and no test row has it: "
            "use the client's own test rows, or test rows of all its classes"
        )
    return share[code] / test[code]
