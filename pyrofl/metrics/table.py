"""All scores that apply: of one client, or of the rows of many clients together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..names import nearest
from .calibration import adaptive_ece, ece
from .classification import accuracy, auroc, balanced_accuracy, brier, entropy, selective_accuracy
from .density import nll
from .regression import coverage, crps, rmse
from .rows import average, two_classes
from .score import Score

_OF_CLASSES: dict[str, Callable[..., float | Score]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "selective_accuracy_80": partial(selective_accuracy, share=0.8),
    "auroc": auroc,
    "brier": brier,
    "ece": ece,
    "adaptive_ece": adaptive_ece,
}
_OF_NUMBERS: dict[str, Callable[..., float | Score]] = {
    "rmse": rmse,
    "crps": crps,
    "coverage_50": partial(coverage, level=0.5),
    "coverage_90": partial(coverage, level=0.9),
}
_ENTROPIES = {"entropy": "total", "entropy_aleatoric": "aleatoric", "entropy_epistemic": "epistemic"}
_ROW_AXIS = {"y": 0, "weights": 0, "log_likelihood": 1, "p": 1, "draws": 1}

KINDS = {
    "categorical": ("p", (*_OF_CLASSES, "nll", *_ENTROPIES)),
    "bernoulli": ("p", (*_OF_CLASSES, "nll", *_ENTROPIES)),
    "gaussian": ("draws", (*_OF_NUMBERS, "nll")),
    "poisson": ("draws", (*_OF_NUMBERS, "nll")),
}
"""Likelihood -> (the predictions it is scored by, the names of its scores)."""


def explained(
    kind: str,
    y: ArrayLike,
    *,
    log_likelihood: ArrayLike,
    p: ArrayLike | None = None,
    draws: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> dict[str, Score]:
    """Every score of one client that its likelihood allows, each a number or the reason why there is none.

    `categorical` takes p (S, B, K), `bernoulli` p (S, B) of class 1, `gaussian` and `poisson` take
    draws (S, B) of y. Row `weights` enter every score.
    """
    wanted, names = _known(kind)
    given = {"p": p, "draws": draws}[wanted]
    if given is None:
        raise TypeError(f"scores of the {kind} likelihood need `{wanted}`")
    if not len(np.asarray(y)):
        return {name: Score(None, "undefined: no rows") for name in names}
    if weights is not None and not np.any(weights):
        return {name: Score(None, "undefined: no row has weight") for name in names}
    out: dict[str, float | Score] = {}
    if wanted == "p":
        proba = np.asarray(two_classes(given) if kind == "bernoulli" else given)
        if proba.ndim != 3:
            raise ValueError(f"scores need every draw of p, not their mean: got shape {np.shape(given)}")
        out |= {name: score(proba, y, weights=weights) for name, score in _OF_CLASSES.items()}
        parts = entropy(proba)._asdict()
        out |= {name: average(parts[part], weights) for name, part in _ENTROPIES.items()}
    else:
        out |= {name: score(given, y, weights=weights) for name, score in _OF_NUMBERS.items()}
    if np.shape(log_likelihood)[1:] != np.shape(y):
        raise ValueError(f"log_likelihood {np.shape(log_likelihood)} must be (S, B) for y {np.shape(y)}")
    out["nll"] = nll(log_likelihood, weights=weights)
    return {name: v if isinstance(v := out[name], Score) else Score(v) for name in names}


def scores(
    kind: str,
    y: ArrayLike,
    *,
    log_likelihood: ArrayLike,
    p: ArrayLike | None = None,
    draws: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> dict[str, float | None]:
    """The numbers of `explained`; None where a score is undefined."""
    full = explained(kind, y, log_likelihood=log_likelihood, p=p, draws=draws, weights=weights)
    return {name: score.value for name, score in full.items()}


def pooled(kind: str, clients: Mapping[str, Mapping[str, ArrayLike]]) -> dict[str, Score]:
    """Scores over the rows of all clients together, each row counted once: not the mean over clients.

    `clients` maps a name to the arguments of `explained`, y among them. Clients may differ in models and
    rows, not in the number of draws.
    """
    if not clients:
        return {name: Score(None, "undefined: no rows") for name in _known(kind)[1]}
    first, arrays = next(iter(clients.items()))
    joined: dict[str, Any] = {}
    for key in arrays:
        parts = [np.asarray(of[key]) for of in clients.values()]
        for name, part in zip(clients, parts):
            if _ROW_AXIS[key] and len(part) != len(parts[0]):
                raise ValueError(
                    f"`{key}` of client {name!r} has {len(part)} draws and of {first!r} {len(parts[0])}: "
                    "draw equally often for all clients"
                )
        joined[key] = np.concatenate(parts, axis=_ROW_AXIS[key])
    return explained(kind, **joined)


def _known(kind: str) -> tuple[str, tuple[str, ...]]:
    if kind not in KINDS:
        raise ValueError(f"unknown likelihood {kind!r}{nearest(kind, KINDS)}")
    return KINDS[kind]
