"""A small federation with known truth: a generalised linear model with client effects and shifted inputs."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..data import Dataset
from ..random import fold, generator, normal, root, uniform
from ..suggest import choose


def synthetic(
    *,
    likelihood: Literal["bernoulli", "gaussian", "poisson"] = "bernoulli",
    sites: int = 5,
    rows: int = 100,
    features: int = 3,
    spread: float = 0.5,
    shift: float = 0.5,
    scale: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """`rows` rows for each of `sites` natural clients from a generalised linear model.

    Client k has x ~ N(m_k, I) with m_k ~ N(0, shift^2 I), and the linear predictor eta = b_k + x w_k with the
    coefficients of `coefficients`. The targets are Bernoulli(sigmoid(eta)), N(eta, scale^2) or
    Poisson(exp(min(eta, 10))).
    """
    choose(likelihood, ("bernoulli", "gaussian", "poisson"), "likelihood of the synthetic set")
    if sites < 1 or rows < 1 or features < 1:
        raise ValueError(f"sites, rows and features must be at least 1, got {sites}, {rows}, {features}")
    for name, value in (("spread", spread), ("shift", shift), ("scale", scale)):
        if not 0 <= value < math.inf:
            raise ValueError(f"data.{name} must be 0 or positive, and finite, got {value}")
    key = fold(root(seed), "synthetic")
    truth = coefficients(sites=sites, features=features, spread=spread, seed=seed)
    centers = shift * normal(fold(key, "centers"), (sites, 1, features), torch.float64)
    x = centers + normal(fold(key, "x"), (sites, rows, features), torch.float64)
    eta = truth[:, :1] + torch.einsum("knd,kd->kn", x, truth[:, 1:])  # (sites, rows)
    if likelihood == "bernoulli":
        y = (uniform(fold(key, "y"), eta.shape, torch.float64) < torch.sigmoid(eta)).long()
    elif likelihood == "gaussian":
        y = (eta + scale * normal(fold(key, "y"), eta.shape, torch.float64)).float()
    else:
        rate = eta.clamp(max=10).exp().numpy()
        y = torch.from_numpy(generator(fold(key, "y")).poisson(rate)).float()
    site = torch.arange(sites).repeat_interleave(rows)
    return Dataset(
        x.reshape(-1, features).float(),
        y.reshape(-1),
        likelihood,
        ("0", "1") if likelihood == "bernoulli" else (),
        site,
        tuple(f"client{k}" for k in range(sites)),
    )


def coefficients(*, sites: int = 5, features: int = 3, spread: float = 0.5, seed: int = 0) -> Tensor:
    """The true (b_k, w_k) of each client of `synthetic`, (sites, 1 + features) float64.

    A common vector of absolute size 1 with alternating signs (and intercept 0) plus N(0, spread^2) for each
    client.
    """
    common = torch.tensor([0.0] + [(-1.0) ** j for j in range(features)], dtype=torch.float64)
    own = normal(fold(root(seed), "synthetic", "coefficients"), (sites, 1 + features), torch.float64)
    return common + spread * own
