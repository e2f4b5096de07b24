"""A client's own estimate: penalised maximum likelihood and Fisher information against closed forms and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support import build
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.estimate import Estimator
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import KINDS, Gaussian, Likelihood, distribution, information
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.tree import Ravel, only


class Line(nn.Module):
    """A generalised linear model of three features."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(build.FEATURES, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def linear(kind: str) -> Program:
    with torch.random.fork_rng(devices=[]):
        net = Line(3 if kind == "categorical" else 1).double()
    x = torch.zeros(2, build.FEATURES, dtype=torch.float64)
    y = torch.zeros(2, dtype=torch.int64 if kind == "categorical" else torch.float64)
    likelihood: str | Likelihood = Gaussian(0.5) if kind == "gaussian" else kind
    return Program(Bayesian(net, PRIORS["flat"](), likelihood), x, y, guide=GUIDES["delta"])


def targets(kind: str, n: int = 30) -> Data:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, build.FEATURES))
    eta = 0.4 + x @ np.array([1.0, -1.0, 0.5])
    y = {
        "categorical": rng.integers(0, 3, n),
        "bernoulli": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "gaussian": eta + 0.5 * rng.normal(size=n),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
    }[kind]
    return Data.of(torch.tensor(x), torch.tensor(y))


def estimator(kind: str, *, ridge: float = 0.1, **options: Any) -> Estimator:
    program = linear(kind)
    ravel = Ravel(only(program.theta0, program.trainable))
    return Estimator(program, ravel, {}, targets(kind, **options), ridge)


def zero(e: Estimator) -> Tensor:
    return torch.zeros(sum(e.ravel.sizes), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_the_information_is_the_hessian_where_links_are_canonical(kind: str) -> None:
    e = estimator(kind)
    theta = 0.3 * torch.arange(len(zero(e)), dtype=torch.float64) - 0.4
    torch.testing.assert_close(e.precision(theta), jacrev(jacrev(e.objective))(theta), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_the_minimum_that_scipy_finds(kind: str) -> None:
    e = estimator(kind)
    f = lambda t: float(e.objective(torch.tensor(t)))
    slope = lambda t: grad(e.objective)(torch.tensor(t)).numpy()
    found = minimize(f, zero(e).numpy(), jac=slope, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    z = e.fit(zero(e), steps=30)
    torch.testing.assert_close(z, torch.tensor(found.x), rtol=1e-4, atol=1e-5)
    assert float(e.objective(z)) <= found.fun + 1e-10


def test_a_gaussian_model_in_closed_form() -> None:
    e = estimator("gaussian", ridge=2.0)
    X = torch.cat([e.data.x, torch.ones(30, 1, dtype=torch.float64)], 1)
    order = [e.program.path(n) for n in e.ravel.names]
    X = X if order[0].endswith("weight") else X[:, [3, 0, 1, 2]]
    precision = X.T @ X / 0.25 + 2 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(e.precision(zero(e)), precision)
    torch.testing.assert_close(e.fit(zero(e), steps=1), torch.linalg.solve(precision, X.T @ e.data.y / 0.25))


def test_separable_rows_have_a_finite_estimate() -> None:
    e = estimator("bernoulli", ridge=1e-3)
    rows = Data.of(e.data.x, (e.data.x[:, 0] > 0).double())
    e = Estimator(e.program, e.ravel, {}, rows, 1e-3)
    z = e.fit(zero(e), steps=60)
    gradient = grad(e.objective)(z)
    assert float(gradient.abs().max()) < 1e-6
    assert 3 < float(z.abs().max()) < 1e3


def test_one_row_and_no_row() -> None:
    e = estimator("bernoulli", n=1)
    none = Estimator(e.program, e.ravel, {}, e.data._replace(n=torch.tensor(0)), 0.1)
    assert torch.isfinite(e.fit(zero(e), steps=20)).all()
    torch.testing.assert_close(none.precision(zero(e)), 0.1 * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(none.fit(zero(e) + 1, steps=1), zero(e))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_vmap_change_nothing(kind: str) -> None:
    e = estimator(kind, n=7)
    x = torch.cat([e.data.x, torch.full((2, build.FEATURES), torch.nan)])
    y = torch.cat([e.data.y, e.data.y[:2] * 0 + 77])
    padded = Data(torch.stack([x, x]), torch.stack([y, y]), torch.stack([e.data.n, e.data.n - 2]))

    def both(data: Data) -> tuple[Tensor, Tensor]:
        mine = Estimator(e.program, e.ravel, {}, data, 0.1)
        z = mine.fit(zero(e), steps=15)
        return z, mine.precision(z)

    z, precision = vmap(both)(padded)
    for i, n in enumerate((7, 5)):
        alone = both(Data.of(e.data.x[:n], e.data.y[:n]))
        torch.testing.assert_close(z[i], alone[0], rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(precision[i], alone[1], rtol=1e-7, atol=1e-8)


def test_information_is_the_variance_of_the_score() -> None:
    """E[s s'] over draws of y, for a network that is not linear, estimated without the formula."""
    program = build.program(guide="delta", prior="flat")
    ravel = Ravel(only(program.theta0, program.trainable))
    data = build.rows(1)
    e = Estimator(program, ravel, {}, data, 0.0)
    theta = ravel.flat(program.init(root(1)))
    p = program.predict(ravel.tree(theta), data.x, None).exp()[0]  # (3,)
    total = 0
    for c in range(3):
        row = Estimator(program, ravel, {}, data._replace(y=torch.tensor([c])), 0.0)
        score = grad(row.objective)(theta)
        total = total + p[c] * torch.outer(score, score)
    torch.testing.assert_close(e.precision(theta), total)


def test_unknown_kinds_are_refused() -> None:
    for f in (information, distribution):
        with pytest.raises(ValueError, match="unknown likelihood 'gamma'; known are categorical"):
            f("gamma", torch.zeros(1, 1))
