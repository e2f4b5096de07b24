"""Scores of probabilistic predictions on plain arrays: for one client, over its rows; and over clients.

Shapes: S posterior draws, B rows, K classes. Class probabilities `p` are (S, B, K), or their mean (B, K);
predictions of numbers and counts are `draws` (S, B); `log_likelihood` (S, B) is log p(y_i | weights_s) in
nats. `weights` (B,) weigh the rows: `balanced_weights` for a test on all classes alike, `matched_weights` for
a test on a client's own label mix.
"""

from __future__ import annotations

from .by_row import by_row
from .calibration import Bins, Interval, adaptive_ece, confidence_interval, ece, ece_interval, reliability
from .classification import (
    Entropy,
    accuracy,
    auroc,
    balanced_accuracy,
    brier,
    entropy,
    ood_auroc,
    selective_accuracy,
)
from .clients import Difference, Summary, paired_difference, summary
from .density import log_predictive, nll
from .isotonic import Isotonic, isotonic
from .regression import coverage, crps, pit, rmse
from .rows import balanced_weights, matched_weights, predictive, two_classes
from .score import SCORES, Meaning, Score, meaning
from .table import explained, pooled, scores
from .temperature import temperature

__all__ = [
    "SCORES",
    "Bins",
    "Difference",
    "Entropy",
    "Interval",
    "Isotonic",
    "Meaning",
    "Score",
    "Summary",
    "accuracy",
    "adaptive_ece",
    "auroc",
    "balanced_accuracy",
    "balanced_weights",
    "brier",
    "by_row",
    "confidence_interval",
    "coverage",
    "crps",
    "ece",
    "ece_interval",
    "entropy",
    "explained",
    "isotonic",
    "log_predictive",
    "matched_weights",
    "meaning",
    "nll",
    "ood_auroc",
    "paired_difference",
    "pit",
    "pooled",
    "predictive",
    "reliability",
    "rmse",
    "scores",
    "selective_accuracy",
    "summary",
    "temperature",
    "two_classes",
]
