"""Scores of probabilistic predictions on plain arrays: for one client, over its rows; and over clients.

Shapes: S posterior draws, B rows, K classes. Class probabilities `p` are (S, B, K), or their mean (B, K);
predictions of numbers and counts are `draws` (S, B); `log_likelihood` (S, B) is log p(y_i | weights_s) in
nats. `weights` (B,) weigh the rows: `balanced_weights` for a test on all classes alike, `matched_weights` for
a test on a client's own label mix.
"""

from __future__ import annotations

from .calibration import Bins, Interval, adaptive_ece, ece, ece_interval, reliability
from .classification import (
    Entropy,
    accuracy,
    auroc,
    balanced_accuracy,
    brier,
    entropy,
    selective_accuracy,
)
from .clients import Difference, Summary, paired_difference, summary
from .density import log_predictive, nll
from .regression import coverage, crps, rmse
from .rows import balanced_weights, matched_weights, predictive, two_classes
from .score import SCORES, Meaning, Score, meaning
from .table import explained, pooled, scores

__all__ = [
    "SCORES",
    "Bins",
    "Difference",
    "Entropy",
    "Interval",
    "Meaning",
    "Score",
    "Summary",
    "accuracy",
    "adaptive_ece",
    "auroc",
    "balanced_accuracy",
    "balanced_weights",
    "brier",
    "coverage",
    "crps",
    "ece",
    "ece_interval",
    "entropy",
    "explained",
    "log_predictive",
    "matched_weights",
    "meaning",
    "nll",
    "paired_difference",
    "pooled",
    "predictive",
    "reliability",
    "rmse",
    "scores",
    "selective_accuracy",
    "summary",
    "two_classes",
]
