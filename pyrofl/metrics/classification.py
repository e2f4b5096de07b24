"""Scores of class probabilities: p (S, B, K) for S posterior draws, or their mean (B, K); labels y (B,)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr
from sklearn.metrics import roc_auc_score

from .rows import Floats, average, forecast, predictive, row_weights
from .score import Score


def accuracy(p: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Share of rows whose most probable class is the label; of equally probable classes the first counts."""
    mean, code = forecast(p, y)
    return average((mean.argmax(axis=1) == code).astype(np.float64), weights)


def balanced_accuracy(p: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Mean over the classes present of their recall; 1/K is what guessing reaches, whatever the class mix."""
    mean, code = forecast(p, y)
    w = row_weights(weights, len(code))
    total = np.bincount(code, w)  # (K,)
    hit = np.bincount(code, w * (mean.argmax(axis=1) == code))
    return float(np.mean(hit[total > 0] / total[total > 0]))


def brier(p: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Squared distance of the probabilities from the outcome: mean_i sum_k (p_ik - [y_i = k])^2.

    Between 0 and 2. For two classes it is halved, which is the (p - y)^2 of binary outcomes, between 0 and 1.

    Reference: Brier, 1950.
    """
    mean, code = forecast(p, y)
    outcome = np.eye(mean.shape[1])[code]  # (B, K)
    squared = np.square(mean - outcome).sum(axis=1)
    return average(squared / 2 if mean.shape[1] == 2 else squared, weights)


def auroc(p: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> Score:
    """Area under the ROC curve of class 1; with K > 2, of each class present against the rest, averaged.

    Undefined where the rows (of positive weight) hold one class only.
    """
    mean, code = forecast(p, y)
    w = row_weights(weights, len(code))
    mean, code, w = mean[w > 0], code[w > 0], w[w > 0]
    present = np.unique(code)
    if len(present) == 1:
        return Score(None, f"undefined: one class (all {len(code)} rows are class {present[0]})")
    events = [1] if mean.shape[1] == 2 else present
    areas = [roc_auc_score(code == k, mean[:, k], sample_weight=w) for k in events]
    return Score(float(np.mean(areas)))


def selective_accuracy(p: ArrayLike, y: ArrayLike, *, share: float = 0.8, weights: ArrayLike | None = None) -> float:
    """Accuracy on the `share` of rows of which the model is surest (largest class probability).

    Rows that tie at the border enter in part: the result is the mean over all ways to break the tie.

    Reference: El-Yaniv and Wiener, 2010, accuracy at a given coverage.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    mean, code = forecast(p, y)
    w = row_weights(weights, len(code))
    _, rank = np.unique(-mean.max(axis=1), return_inverse=True)  # 0 for the surest rows; ties share a rank
    size = np.bincount(rank, w)  # weight of each rank
    hit = np.bincount(rank, w * (mean.argmax(axis=1) == code))
    wanted = share * w.sum()
    before = np.cumsum(size) - size
    taken = np.clip(wanted - before, 0, size)
    return float(np.sum(taken * np.divide(hit, size, out=np.zeros_like(hit), where=size > 0)) / wanted)


class Entropy(NamedTuple):
    """Entropy of each row's predictive distribution in nats: total = aleatoric + epistemic, each (B,)."""

    total: Floats
    aleatoric: Floats
    epistemic: Floats


def entropy(p: ArrayLike) -> Entropy:
    """How uncertain the prediction of each row is, and how much of that is not knowing the weights.

    H[mean_s p_s] = mean_s H[p_s] + I(y; weights), where H[p] = -sum_k p_k log p_k. Takes all draws, (S, B,
    K): the mean alone cannot be split.

    Reference: Depeweg et al., 2018; Houlsby et al., 2011 (the second term, BALD).
    """
    p = np.asarray(p)
    if p.ndim != 3:
        raise ValueError(f"the entropy is split with the draws, (S, B, K), got shape {p.shape}")
    total = entr(predictive(p)).sum(axis=-1)  # (B,)
    within = np.zeros(p.shape[1])
    for draw in p:  # one draw at a time: no second copy of all of them
        within += entr(draw.astype(np.float64)).sum(axis=-1) / len(p)
    aleatoric = np.minimum(within, total)  # Jensen's inequality, kept under rounding
    return Entropy(total, aleatoric, total - aleatoric)


def ood_auroc(inside: ArrayLike, outside: ArrayLike) -> Score:
    """How well predictive entropy tells rows of another data set from test rows: the area under the ROC curve.

    `inside` (B,) and `outside` (B',) are entropies of single rows, of any of the three kinds. 1: every foreign row
    is the more uncertain one; 1/2: entropy tells nothing.

    Reference: Hendrycks and Gimpel, 2017.
    """
    a, b = (np.asarray(v, dtype=np.float64) for v in (inside, outside))
    if not len(a) or not len(b):
        return Score(None, "undefined: no rows of its own, or no foreign ones")
    foreign = np.repeat([0, 1], [len(a), len(b)])
    return Score(float(roc_auc_score(foreign, np.concatenate([a, b]))))
