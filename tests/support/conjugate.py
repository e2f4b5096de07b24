"""A Gaussian mean, y ~ N(mu, SIGMA^2) with mu ~ N(0, TAU^2), held by clients: everything has a closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Client, Data, Federation
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import Bernoulli
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.priors import Flat, Gaussian
from pyrofl.program import Program

SIGMA, TAU, SITE = 0.8, 1.5, "net.0.weight"


def federation(rows: Sequence[int]) -> Federation:
    """Clients of unequal sizes, whose means differ."""
    made = []
    for i, n in enumerate(rows):
        y = torch.from_numpy(np.random.default_rng([5, i]).normal(1.0 + i, SIGMA, n))
        data = Data.of(torch.ones(n, 1, dtype=torch.float64), y)
        made.append(Client(f"site{i}", data, data))
    return Federation(tuple(made), "gaussian")


def program(*, guide: str = "normal", tau: float | None = TAU, **options: float) -> Program:
    """The model as a network of one weight on the input 1; without `tau` the prior is flat."""
    x = torch.ones(2, 1, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    prior = Flat() if tau is None else Gaussian(tau)
    return Program(Bayesian(net, prior, Noise(SIGMA)), x, x[:, 0], guide=GUIDES[guide], **options)


def likelihood(data: Data) -> tuple[float, float]:
    """(h, J) of the likelihood of a client's rows as a function of mu."""
    return float(data.y.sum()) / SIGMA**2, len(data.y) / SIGMA**2


def posterior(clients: Sequence[Client]) -> tuple[float, float]:
    """(mean, standard deviation) of mu given all rows."""
    h, J = (sum(part) for part in zip(*(likelihood(c.train) for c in clients), strict=True))
    J += TAU**-2
    return h / J, J**-0.5


def logistic() -> Program:
    """One weight on one input, and a label: not conjugate."""
    x = torch.ones(2, 1, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    return Program(Bayesian(net, Gaussian(TAU), Bernoulli()), x, x[:, 0], guide=GUIDES["normal"])
