"""The synthetic federation of the FedMAP paper: one problem, seen by every client through its own affine map."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from pyrofl.data import Dataset
from pyrofl.random import fold, generator, root

CLIENTS, FEATURES, INFORMATIVE = 10, 30, 4


def synthetic(
    *,
    scenario: Literal["features", "quantity", "labels"] = "features",
    rows: int = 2000,
    affine: bool = True,
    seed: int = 0,
) -> Dataset:
    """Ten clients with two classes; x is (N, 30).

    Four informative coordinates: class 0 is N(0, 2 I), class 1 is r u with u uniform on the sphere and r ~ N(8, 2), a
    shell around class 0. Twenty-six more are N(0, 9) noise. All are rotated by one random orthogonal matrix; then
    client i = 0..9 sees x A_i + b_i, A_i of N(0, 1) entries and b_i ~ N(0, 25 (i + 1)^2 I). `affine = false` leaves out
    this last step, so that all clients share their features. N(m, v) has variance v.

    "features": every client has `rows` rows, half of each class. "quantity": clients 6 to 10 have a quarter of them.
    "labels": 85% of the rows of clients 6 to 10 are of class 0.

    Reference: Zhang, Kreuter, Chen, Dittmer et al., 2024, appendix.
    """
    if rows < 8:
        raise ValueError(f"rows must be at least 8, got {rows}")
    key = fold(root(seed), "fedmap")
    rng = generator(fold(key, "rotation"))
    rotation = np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
    xs, ys = [], []
    for i in range(CLIENTS):
        rng, late = generator(fold(key, "client", i)), i >= CLIENTS // 2
        n = rows // 4 if scenario == "quantity" and late else rows
        ones = round(n * (0.15 if scenario == "labels" and late else 0.5))
        y = np.repeat([0, 1], [n - ones, ones])
        x = rng.normal(size=(n, INFORMATIVE)) * np.sqrt(2)
        direction = rng.normal(size=(ones, INFORMATIVE))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        x[y == 1] = direction * rng.normal(8, np.sqrt(2), size=(ones, 1))
        x = np.concatenate([x, 3 * rng.normal(size=(n, FEATURES - INFORMATIVE))], 1) @ rotation
        if affine:
            x = x @ rng.normal(size=(FEATURES, FEATURES)) + 5 * (i + 1) * rng.normal(size=FEATURES)
        xs.append(x)
        ys.append(y)
    site = torch.from_numpy(np.repeat(np.arange(CLIENTS), [len(y) for y in ys]))
    names = tuple(f"client {i + 1}" for i in range(CLIENTS))
    x, y = torch.from_numpy(np.concatenate(xs)).float(), torch.from_numpy(np.concatenate(ys))
    return Dataset(x, y, "bernoulli", ("0", "1"), site, names)
