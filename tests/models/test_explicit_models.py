"""Models declared fully in Pyro: their joint densities, and agreement with the same network under the same prior."""

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy import stats
from scipy.special import expit, log_softmax

from models.logistic import Logistic, LogisticModel
from models.poisson import Poisson, PoissonModel
from pyrofl import random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Data
from pyrofl.engines import Sequential, Vectorised
from pyrofl.engines.base import Job
from pyrofl.method import Cohort
from pyrofl.methods import PVI, BayFL
from pyrofl.optim import Adam
from pyrofl.priors import Gaussian
from pyrofl.program import Program


def rows(kind, n=6, dtype=torch.float64):
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(n, 2, 2))).to(dtype)
    if kind == "categorical":
        return x, torch.from_numpy(draw.integers(0, 3, n))
    y = draw.integers(0, 2, n) if kind == "bernoulli" else draw.poisson(2.0, n)
    return x, torch.from_numpy(y).to(dtype)


MODELS = {
    "categorical": (lambda: LogisticModel((2, 2), 3, scale=0.7), Logistic, 3),
    "bernoulli": (lambda: LogisticModel((2, 2), 1, scale=0.7), Logistic, 1),
    "poisson": (lambda: PoissonModel((2, 2), 1, scale=0.7), Poisson, 1),
}


def likelihood(kind, out, y):
    if kind == "categorical":
        return log_softmax(out, -1)[np.arange(len(y)), y]
    if kind == "bernoulli":
        return stats.bernoulli(expit(out[:, 0])).logpmf(y)
    return stats.poisson(np.exp(out[:, 0])).logpmf(y)


@pytest.mark.parametrize("kind", MODELS)
def test_the_joint_density_is_scipys(kind):
    make, _, K = MODELS[kind]
    x, y = rows(kind)
    draw = np.random.default_rng(1)
    w, b = draw.normal(size=(K, 4)), draw.normal(size=K)
    values = {"weight": torch.from_numpy(w), "bias": torch.from_numpy(b)}
    trace = poutine.trace(poutine.condition(make().double(), values)).get_trace(x, y)
    expected = stats.norm(0, 0.7).logpdf(w).sum() + stats.norm(0, 0.7).logpdf(b).sum()
    expected += likelihood(kind, x.numpy().reshape(6, 4) @ w.T + b, y.numpy()).sum()
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-12)
    assert list(pyro.get_param_store().keys()) == []


@pytest.mark.parametrize("kind", MODELS)
def test_an_explicit_model_is_the_lifted_network(kind):
    make, network, K = MODELS[kind]
    x, y = rows(kind)
    explicit = Program(make().double(), x, y)
    lifted = Program(Bayesian(network((2, 2), K).double(), Gaussian(0.7), kind), x, y)
    theta = explicit.init(random.root(0))
    same = {
        k.replace(".weight_", ".net.head.weight_").replace(".bias_", ".net.head.bias_"): v for k, v in theta.items()
    }
    assert (explicit.kind, same.keys()) == (kind, lifted.theta0.keys())
    batch, key = Batch.of(x, y, 50), random.root(1)
    torch.testing.assert_close(explicit.loss(theta, batch, key), lifted.loss(same, batch, key), rtol=1e-12, atol=0)
    torch.testing.assert_close(explicit.predict(theta, x, key), lifted.predict(same, x, key), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MODELS)
def test_both_engines_train_it_in_the_modules_precision(kind, dtype):
    x, y = rows(kind, n=9, dtype=dtype)
    program = Program(MODELS[kind][0]().to(dtype), x, y)
    method = BayFL(program, optimizer=Adam(0.05), epochs=2, size=4)
    server = method.init(random.root(0))
    jobs = [Job(i, server, {}, Data.of(x[: 7 + i], y[: 7 + i]), random.root(i)) for i in range(2)]
    engine = Vectorised()
    together, alone = dict(engine.map(method.local, jobs)), dict(Sequential().map(method.local, jobs))
    assert engine.fallback is None
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    for i, reply in alone.items():
        for name, value in reply.up.items():
            assert value.dtype == dtype
            torch.testing.assert_close(together[i].up[name], value, rtol=tolerance, atol=tolerance)


def test_absurd_log_rates_stay_finite():
    x, y = rows("poisson", dtype=torch.float32)
    program = Program(PoissonModel((2, 2), 1, scale=100.0), x, y)
    theta = {k: v + 500 if ".locs." in k else v for k, v in program.theta0.items()}
    assert program.loss(theta, Batch.of(x.abs(), y), random.root(0)).isfinite()
    assert program.predict(theta, x.abs(), None).max() == pytest.approx(30.0)


@pytest.mark.parametrize(
    "of",
    [lambda program: PVI(program, clients=2), lambda program: BayFL(program, pooling="product")],
    ids=["pvi", "product"],
)
def test_methods_that_count_the_prior_once_take_an_explicit_model_as_the_lifted_one(of):
    make, network, K = MODELS["bernoulli"]
    x, y = rows("bernoulli")
    lifted = Program(Bayesian(network((2, 2), K).double(), Gaussian(0.7), "bernoulli"), x, y)
    explicit = Program(make().double(), x, y)
    plain = lambda tree: {k.replace("net.head.", ""): v for k, v in tree.items()}
    methods = [of(program) for program in (explicit, lifted)]
    server = methods[1].init(random.root(0))
    replies = []
    for method, down in zip(methods, (plain(server), server), strict=True):
        own = method.join(down) if method is methods[1] else plain(methods[1].join(server))
        up = method.local(down, own, Data.of(x, y), random.root(1)).up
        ups = {k: torch.stack([v, v]) for k, v in up.items()}
        cohort = Cohort(torch.arange(2), torch.full((2,), len(x)), random.root(2), 1)
        replies.append(method.aggregate(down, ups, cohort))
    mine, theirs = replies[0], plain(replies[1])
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [LogisticModel, PoissonModel])
@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_scales_that_are_not_positive_are_refused(kind, scale):
    with pytest.raises(ValueError, match=f"{kind.__name__}: scale must be positive, got {scale}"):
        kind((2,), 1, scale=scale)
