"""Exact posteriors: a Gaussian mean and Bayesian linear regression, where the answer has a formula.

The stochastic gradients are those of real training (8 draws a step), so that the answers are met to a stated part of
the posterior's standard deviation: 0.1 for the mean and 5 % for the standard deviation.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyrofl import random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.fit import fit
from pyrofl.guides import Delta
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.method import Cohort
from pyrofl.methods import BayFL
from pyrofl.optim import SGD, Adam
from pyrofl.priors import Flat, Gaussian
from pyrofl.program import Program
from pyrofl.tree import stack

SIGMA = 0.8  # noise of the data


class Mean(PyroModule):
    """mu ~ N(0, tau^2), y_i ~ N(mu, SIGMA^2), written in Pyro."""

    def __init__(self, tau):
        super().__init__()
        self.tau = tau

    @PyroSample
    def mu(self):
        return dist.Normal(torch.zeros((), dtype=torch.float64), self.tau)

    def forward(self, x, y=None):
        mu = self.mu
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mu.expand(len(x)), SIGMA), obs=y)


STAGES = ((0.05, 100), (0.01, 100), (0.002, 200), (0.0005, 150))  # Adam's rate, full-batch steps


def solve(program, data, seed=0):
    """The minimum of the loss by Adam at falling rates."""
    theta = program.init(random.root(0))
    for rate, steps in STAGES:
        key = random.fold(random.root(seed), steps)
        theta, _ = fit(program.parts, theta, data, key, optimizer=Adam(rate), epochs=steps, size=len(data.x))
    return theta


def close(q, mean, sd):
    """Within the tolerances of this file."""
    loc, scale = (v.detach().numpy().reshape(-1) for v in q)
    np.testing.assert_allclose(scale, sd, rtol=0.05)
    assert (np.abs(loc - mean) < 0.1 * np.asarray(sd)).all(), (loc, mean, sd)


def mean_data(n):
    y = torch.from_numpy(np.random.default_rng(0).normal(1.3, SIGMA, n))
    return Data.of(torch.ones(n, 1, dtype=torch.float64), y)


def mean_answer(y, tau):
    precision = 1 / tau**2 + len(y) / SIGMA**2
    return y.sum().item() / SIGMA**2 / precision, precision**-0.5


def lifted_mean(data, tau, **options):
    """The same model as a network of one weight on the input 1."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    return Program(Bayesian(net, Gaussian(tau), Noise(SIGMA)), data.x, data.y, particles=8, **options)


@pytest.mark.parametrize(("n", "tau", "kl"), [(3, 0.5, "closed"), (40, 0.2, "draw"), (40, 10.0, "closed")])
def test_gaussian_mean(n, tau, kl):
    data = mean_data(n)
    program = lifted_mean(data, tau, kl=kl)
    close(program.posterior(solve(program, data))["net.0.weight"], *mean_answer(data.y, tau))


def test_gaussian_mean_written_in_pyro():
    data = mean_data(40)
    program = Program(Mean(0.5), data.x, data.y, particles=4)
    close(program.posterior(solve(program, data))["mu"], *mean_answer(data.y, 0.5))


def test_ten_times_the_rows_shrink_the_scale_by_the_root_of_ten():
    scales = []
    for n in (20, 200):
        data = mean_data(n)
        program = lifted_mean(data, 100.0)
        scales.append(program.posterior(solve(program, data))["net.0.weight"][1].item())
    assert scales[0] / scales[1] == pytest.approx(10**0.5, rel=0.05)


def design(n, correlation=0.0):
    """Three columns that are orthogonal to each other and to the constant, of mean square 1; then correlated."""
    draw = np.random.default_rng(2)
    basis, _ = np.linalg.qr(np.column_stack([np.ones(n), draw.normal(size=(n, 3))]))
    x = basis[:, 1:] * n**0.5
    x[:, 1] = correlation * x[:, 0] + (1 - correlation**2) ** 0.5 * x[:, 1]
    y = x @ [0.5, -1.0, 2.0] + 0.7 + SIGMA * draw.normal(size=n)
    return torch.from_numpy(x), torch.from_numpy(y)


def exact(x, y, tau):
    """Mean (4,) and precision (4, 4) of the weights, then the bias."""
    X = np.column_stack([x.numpy(), np.ones(len(x))])
    precision = X.T @ X / SIGMA**2 + np.eye(4) / tau**2
    return np.linalg.solve(precision, X.T @ y.numpy() / SIGMA**2), precision


def regression(x, y, tau, **options):
    prior = Gaussian(tau) if np.isfinite(tau) else Flat()
    return Program(Bayesian(nn.Sequential(nn.Linear(3, 1)).double(), prior, Noise(SIGMA)), x, y, **options)


def coefficients(program, theta):
    q = program.posterior(theta)
    pairs = zip(q["net.0.weight"], q["net.0.bias"], strict=True)
    return tuple(torch.cat([w.reshape(-1), b]) for w, b in pairs)


@pytest.mark.parametrize("tau", [0.3, 5.0])
def test_linear_regression_with_an_orthogonal_design(tau):
    x, y = design(30)
    mean, precision = exact(x, y, tau)
    np.testing.assert_allclose(precision, np.diag(np.diag(precision)), atol=1e-9)  # so that mean-field is exact
    program = regression(x, y, tau, particles=8)
    close(coefficients(program, solve(program, Data.of(x, y))), mean, np.diag(precision) ** -0.5)


def test_mean_field_has_the_exact_mean_and_the_conditional_scales_of_a_correlated_posterior():
    """min KL(q || p) over diagonal Gaussians: the mean of p, and variances 1 / precision_jj, below p's own."""
    x, y = design(30, correlation=0.7)
    mean, precision = exact(x, y, 5.0)
    sd = np.diag(precision) ** -0.5
    assert (sd[:2] < 0.75 * np.diag(np.linalg.inv(precision))[:2] ** 0.5).all()
    program = regression(x, y, 5.0, particles=8)
    close(coefficients(program, solve(program, Data.of(x, y))), mean, sd)


def test_bayfl_with_product_pooling_counts_the_prior_once():
    x, y = design(60)
    parts = [Data.of(x[i::2], y[i::2]) for i in range(2)]
    program = regression(x, y, 2.0, particles=16)
    method = BayFL(program, pooling="product")
    ups = stack([solve(program, data) for data in parts])
    cohort = Cohort(torch.arange(2), torch.tensor([30, 30]), random.root(0), 1)
    server = method.aggregate(method.init(random.root(0)), ups, cohort)
    mean, scale = (v.detach().numpy() for v in coefficients(program, server))
    precision, h = -np.eye(4) / 2.0**2, np.zeros(4)  # the prior, in both, counts once
    for data in parts:  # what exact mean-field posteriors of the clients multiply to
        m, P = exact(data.x, data.y, 2.0)
        precision += np.diag(np.diag(P))
        h += np.diag(P) * m
    np.testing.assert_allclose(scale, np.diag(precision) ** -0.5, rtol=0.05)
    np.testing.assert_allclose(mean, h / np.diag(precision), atol=0.2 * scale.max())


@pytest.mark.parametrize("tau", [np.inf, 0.3])
def test_a_point_mass_is_least_squares_under_a_flat_prior_and_ridge_under_a_gaussian(tau):
    x, y = design(30, correlation=0.7)
    program = regression(x, y, tau, guide=Delta)
    theta, _ = fit(
        program.parts,
        program.init(random.root(0)),
        Data.of(x, y),
        random.root(1),
        optimizer=SGD(0.3),
        epochs=1000,
        size=30,
    )
    mean, _ = exact(x, y, tau)
    np.testing.assert_allclose(coefficients(program, theta)[0].numpy(), mean, rtol=1e-9)
