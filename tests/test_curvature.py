"""The diagonal of the Fisher information against Hessians, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build, conjugate
from support.conjugate import SITE
from torch import Tensor, nn
from torch.func import grad, jacrev

from pyrofl.bayesian import Bayesian
from pyrofl.curvature import fisher_diagonal, linear_layers
from pyrofl.data import Data
from pyrofl.guides import GUIDES, Normal
from pyrofl.likelihoods import LIKELIHOODS, distribution, information
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.tree import Tree


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


def by_rows(program: Program, theta: Tree, data: Data) -> Tree:
    """The definition, row by row, with the whole Jacobian of each."""
    total = {s: torch.zeros_like(theta[program.loc_name(s)]) for s in program.sites}
    for x in data.x[: data.rows]:
        F = information(program.kind, program.predict(theta, x.unsqueeze(0), None))[0]  # (K,)
        for s in program.sites:
            name = program.loc_name(s)
            at = lambda w, x=x, name=name: program.predict({**theta, name: w}, x.unsqueeze(0), None)[0]
            total[s] = total[s] + torch.tensordot(F, jacrev(at)(theta[name]).square(), 1)
    return total


class Twice(nn.Module):
    """A linear layer that is called twice, and one that is called once."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.head = nn.Linear(build.FEATURES, build.FEATURES), nn.Linear(build.FEATURES, build.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.again(x)))))


class Sequence(nn.Module):
    """A linear layer along a sequence, whose gradient adds up over positions before it is squared."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(1, 2), nn.Linear(2, build.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.each(x.unsqueeze(-1))).mean(1))


class Convolved(nn.Module):
    """A convolution, then a linear layer without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv1d(1, 2, 2), nn.Linear(2 * (build.FEATURES - 1), build.CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.unsqueeze(1))).flatten(1))


class Doubled(nn.Linear):
    """A linear layer by its class alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


@pytest.mark.parametrize(
    ("net", "factored"),
    [
        (lambda: build.Net(), {"body.0", "head"}),
        (lambda: build.Net(batch_norm=True), {"body.0", "head"}),
        (Twice, {"head"}),
        (Sequence, {"head"}),
        (Convolved, {"head"}),
        (lambda: nn.Sequential(Doubled(build.FEATURES, 4), nn.Tanh(), nn.Linear(4, build.CLASSES)), {"2"}),
    ],
    ids=["dense", "batch_norm", "twice", "sequence", "convolved", "doubled"],
)
@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_linear_layers_are_factored_where_that_is_exact(net: Any, factored: set[str], guide: str) -> None:
    data = build.rows(7)
    program = Program(Bayesian(net().double(), Gaussian()), data.x[:2], data.y[:2], guide=GUIDES[guide])
    assert linear_layers(program).keys() == factored
    theta = program.init(root(1))
    theta = {k: v if k in program.buffers else v + 0.3 for k, v in theta.items()}  # biases that are not 0
    found, expected = fisher_diagonal(program, theta, data, size=3), by_rows(program, theta, data)
    assert found.keys() == expected.keys()
    for site, value in expected.items():
        torch.testing.assert_close(found[site], value, rtol=1e-10, atol=1e-14)


def test_the_weights_of_linear_layers_are_not_spread_out_over_rows() -> None:
    """784 x 100 weights by ten classes and 160 rows would be a gigabyte of Jacobians."""
    x = torch.linspace(0, 1, 160).unsqueeze(1) * torch.linspace(-1, 1, 784)
    data = Data.of(x, torch.arange(160) % 10)
    net = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    program = Program(Bayesian(net, Gaussian()), data.x[:2], data.y[:2], guide=Normal)
    theta = program.init(root(1))
    with torch.profiler.profile(profile_memory=True) as seen:
        found = fisher_diagonal(program, theta, data)
    largest = max(abs(e.self_cpu_memory_usage) for e in seen.events())
    assert largest < 784 * 100 * 4 * 16, "as many numbers as one Jacobian of one row"
    assert float(found["net.0.weight"].sum()) > 0
