"""Committees: predictive distributions of several models as one, between their mixture and their product."""

from __future__ import annotations

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor


def combined(log_p: Tensor, share: Tensor, beta: float) -> Tensor:
    """log of prod_k p_k^beta (sum_k pi_k p_k)^(1 - beta) / Z, (U, K), from log p_k (C, U, K) and pi (C,)."""
    product = log_p.sum(0)
    mixture = torch.logsumexp(log_p + share.to(log_p).log().reshape(-1, 1, 1), 0)
    return torch.log_softmax(beta * product + (1 - beta) * mixture, -1)


def fitted(log_p: Tensor, share: Tensor, y: Tensor) -> float:
    """The beta in [0, 1] under which the labels y (L,) are likeliest."""

    def loss(beta: float) -> float:
        return nll_and_accuracy(combined(log_p, share, beta), y)[0]

    inner = float(minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-6}).x)
    return min((0.0, 1.0, inner), key=loss)


def nll_and_accuracy(log_p: Tensor, y: Tensor) -> tuple[float, float]:
    """(mean of -log p(y) in nats a row, part of the rows whose likeliest class is y) of log p (L, K), y (L,)."""
    nll = -log_p.gather(1, y.unsqueeze(1)).mean()
    return float(nll), float((log_p.argmax(1) == y).double().mean())
