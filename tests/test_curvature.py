"""The diagonal of the Fisher information against Hessians, and by hand."""

from __future__ import annotations

import pytest
import torch
from support import build, conjugate
from support.conjugate import SITE
from torch import nn
from torch.func import grad, jacrev

from pyrofl.bayesian import Bayesian
from pyrofl.curvature import fisher_diagonal
from pyrofl.data import Data
from pyrofl.guides import Normal
from pyrofl.likelihoods import LIKELIHOODS, distribution
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.random import root


def test_of_a_gaussian_mean_it_is_the_number_of_rows_by_the_noise() -> None:
    program, (client,) = conjugate.program(), conjugate.federation((7,)).clients
    found = fisher_diagonal(program, program.init(root(1)), client.train, size=3)
    assert found[SITE].item() == pytest.approx(7 / conjugate.SIGMA**2, rel=1e-12)


@pytest.mark.parametrize(("kind", "outputs"), [("categorical", 3), ("bernoulli", 1), ("poisson", 1)])
def test_of_a_linear_model_it_is_the_diagonal_of_the_hessian(kind: str, outputs: int) -> None:
    data = build.rows(9, classes=2)
    data = data if kind == "categorical" else data._replace(y=data.y.double())
    net = nn.Sequential(nn.Linear(build.FEATURES, outputs)).double()
    program = Program(Bayesian(net, Gaussian(), LIKELIHOODS[kind]()), data.x[:2], data.y[:2], guide=Normal)
    theta = program.init(root(1))
    name = program.loc_name("net.0.weight")

    def cost(w: torch.Tensor) -> torch.Tensor:
        out = program.predict({**theta, name: w}, data.x, None)
        return -distribution(program.kind, out, validate_args=False).log_prob(data.y).sum()

    H = jacrev(grad(cost))(theta[name]).reshape(theta[name].numel(), -1)
    found = fisher_diagonal(program, theta, data)["net.0.weight"]
    torch.testing.assert_close(found.flatten(), H.diagonal(), rtol=1e-9, atol=1e-12)


def test_padding_and_the_size_of_chunks_do_not_matter() -> None:
    program, data = build.program(), build.rows(7)
    theta = program.init(root(1))
    padded = Data(
        torch.cat([data.x, torch.full((2, build.FEATURES), torch.nan)]), torch.cat([data.y, data.y[:2]]), data.n
    )
    whole, pieces = fisher_diagonal(program, theta, data), fisher_diagonal(program, theta, padded, size=4)
    for site, value in whole.items():
        torch.testing.assert_close(pieces[site], value, rtol=1e-12, atol=1e-14)
