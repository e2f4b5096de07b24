"""A prior on the server's and the clients' side of the wire: mixtures as tensors of a fixed shape, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .mixture import Mixture


def filled(prior: Mixture, slots: int, like: Tensor) -> dict[str, Tensor]:
    """`atoms` (slots, d), `weights` (slots,) and, where it has some, `spreads` (slots, d, d) of a prior.

    Empty slots hold the first atom at weight 0. Dtype and device are those of `like`.
    """
    m = len(prior.weights)
    places = np.concatenate([np.arange(m), np.zeros(slots - m, dtype=int)])
    values = {"atoms": prior.atoms[places], "weights": np.where(np.arange(slots) < m, prior.weights[places], 0.0)}
    if prior.spread is not None:
        values["spreads"] = prior.spread[places]
    return {k: torch.as_tensor(v, dtype=like.dtype, device=like.device) for k, v in values.items()}


def component(weights: Tensor, uniform: Tensor) -> Tensor:
    """The component (1,) of a mixture with these weights (M,) that a number in [0, 1) picks."""
    w = weights.double()
    return (w.cumsum(0) < uniform * w.sum()).sum().clamp_max(len(w) - 1).reshape(1)


def to_numpy(v: Tensor) -> Any:
    """A tensor as an array of float64."""
    return v.detach().cpu().double().numpy()
