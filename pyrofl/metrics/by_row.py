"""What is kept of each row's prediction: a few numbers, from which curves and intervals are drawn later."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .classification import entropy
from .density import log_predictive
from .regression import pit
from .rows import Floats, forecast, two_classes


def by_row(
    kind: str,
    y: ArrayLike,
    *,
    log_likelihood: ArrayLike,
    p: ArrayLike | None = None,
    draws: ArrayLike | None = None,
    rng: np.random.Generator,
) -> dict[str, Floats]:
    """Name -> (B,): `y`, `nll`; of classes `confidence`, `right`, `entropy`, `epistemic`; of numbers `mean`, `pit`.

    Arguments as for `scores`; `rng` breaks ties of the probability integral transform.
    """
    out = {"y": np.asarray(y, dtype=np.float64), "nll": -log_predictive(log_likelihood)}
    if kind in ("categorical", "bernoulli"):
        given = np.asarray(p)
        proba = two_classes(given) if kind == "bernoulli" else given
        mean, code = forecast(proba, y)
        parts = entropy(proba)
        return {
            **out,
            "confidence": mean.max(axis=1),
            "right": (mean.argmax(axis=1) == code).astype(np.float64),
            "entropy": parts.total,
            "epistemic": parts.epistemic,
        }
    d = np.asarray(draws, dtype=np.float64)
    return {**out, "mean": d.mean(axis=0), "pit": pit(d, y, rng=rng)}
