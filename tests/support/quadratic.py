"""Linear regression with known noise: a quadratic loss, whose gradient, Hessian and minima have closed forms."""

from __future__ import annotations

import numpy as np
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import Gaussian
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.tree import Tree

NOISE = 0.5
SITES = ("net.head.weight", "net.head.bias")


class Linear(PyroModule):
    """Two features -> one number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def regression(guide: str = "delta", prior: str = "flat") -> Program:
    """y ~ N(x w + b, 0.5^2)."""
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        net = Linear()
    x = torch.zeros(2, 2, dtype=torch.float64)
    return Program(Bayesian(net, PRIORS[prior](), Gaussian(NOISE)), x, x[:, 0], guide=GUIDES[guide])


def lines(n: int, seed: int = 0) -> Data:
    """n rows of a line of the seed's own, and noise."""
    rng = np.random.default_rng([seed, n])
    x, slope = torch.tensor(rng.normal(size=(n, 2))), torch.tensor(rng.normal(size=2))
    return Data.of(x, x @ slope + 0.3 + NOISE * torch.tensor(rng.normal(size=n)))


def vector(program: Program, theta: Tree) -> Tensor:
    """Weights, then bias, (3,)."""
    return torch.cat([theta[program.loc_name(s)].flatten() for s in SITES])


def tree(program: Program, b: Tensor) -> Tree:
    """The inverse of `vector`."""
    weight, bias = (program.loc_name(s) for s in SITES)
    return {weight: b[:2].reshape(1, 2), bias: b[2:]}


def design(data: Data) -> Tensor:
    return torch.cat([data.x, torch.ones(data.rows, 1, dtype=torch.float64)], 1)


def hessian(data: Data) -> Tensor:
    """Of the mean of -log p(y | x) over the rows, (3, 3)."""
    X = design(data)
    return X.T @ X / (data.rows * NOISE**2)


def gradient(data: Data, b: Tensor) -> Tensor:
    """Of the mean of -log p(y | x) over the rows at b, (3,)."""
    X = design(data)
    return X.T @ (X @ b - data.y) / (data.rows * NOISE**2)
