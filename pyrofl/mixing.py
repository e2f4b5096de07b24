"""How clients' models are mixed: the weights that one client gives to those of the others."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def first_order_weights(gain: Tensor, distance: Tensor, known: Tensor, rule: str) -> Tensor:
    """Weights (M,) of models by what each gains (nats a row) on the way to it: r = gain / distance.

    `rule` is "positive": max(0, r), scaled to add up to 1, all 0 where no model gains; or "softmax" of r. A model at
    distance 0 has r = 0; one that is not `known` has weight 0.

    Reference: Zhang, Sapra, Fidler, Yeung, Alvarez, 2021, equations 3 and 4.
    """
    r = torch.where(known & (distance > 0), gain / torch.where(distance > 0, distance, 1), 0)
    if rule == "softmax":
        return torch.softmax(torch.where(known, r, -torch.inf), 0)
    w = r.clamp_min(0)
    return w / torch.where(w.sum() > 0, w.sum(), 1)


def picked(
    affinity: NDArray[np.float64], heard: NDArray[np.bool_], count: int, explore: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """For each of K clients, `count` others that were heard of, (K, count): those of highest affinity, ties at random.

    Each place goes with probability `explore` to any other client instead; places without a client hold one's own.
    """
    rows = []
    for i in range(len(heard)):
        others = rng.permutation([j for j in range(len(heard)) if heard[j] and j != i]).astype(int)
        ranked = others[np.argsort(-affinity[i, others], kind="stable")]
        sure = count - rng.binomial(count, explore)
        row = [*ranked[:sure], *rng.permutation(ranked[sure:])[: count - sure]]
        rows.append([*row, *[i] * (count - len(row))])
    return np.array(rows, dtype=np.int64)


def attention(w: Tensor, heard: Tensor, kind: str, *, alpha: float, sigma: float) -> Tensor:
    """Weights (K, K) that clients with parameters w (K, P) give each other; rows add up to 1 by the diagonal.

    With d the squared distance of two clients that were heard of, `kind` is "median": alpha / (H - 1) exp(-d / s), s
    being sigma times the median of d, H their number; "absolute": alpha / sigma exp(-d / sigma); or "cosine": alpha
    times the softmax of sigma cos(w_i, w_j). The row of a client not heard of is the mean of those who were.

    Reference: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, 2021, equation 5 and section "HeurFedAMP".
    """
    pairs = heard & heard.unsqueeze(1) & ~torch.eye(len(w), dtype=torch.bool, device=w.device)
    if kind == "cosine":
        unit = torch.nn.functional.normalize(w)
        like = torch.where(pairs, sigma * unit @ unit.T, -torch.inf)
        share = alpha * torch.softmax(like, 1)  # NaN where there is no other client
    else:
        d = torch.cdist(w, w, compute_mode="donot_use_mm_for_euclid_dist").square()
        s, most = sigma, alpha / sigma
        if kind == "median" and bool(pairs.any()):
            s = sigma * max(float(d[pairs].median()), torch.finfo(d.dtype).tiny)
            most = alpha / (int(heard.sum()) - 1)
        share = most * torch.exp(-d / s)
    share = torch.where(pairs, share, 0.0)
    xi = share + torch.diag(1 - share.sum(1))
    return torch.where(heard.unsqueeze(1), xi, heard.double() / heard.sum())
