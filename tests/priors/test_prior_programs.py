"""Every prior under every guide, KL, precision and engine."""

import math

import pytest
import torch
from pyro.infer import Predictive
from torch import nn

from pyrofl import random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Data
from pyrofl.engines import Sequential, Vectorised
from pyrofl.engines.base import Job
from pyrofl.guides import GUIDES
from pyrofl.methods import BayFL
from pyrofl.optim import Adam
from pyrofl.priors import PRIORS, Gaussian, Horseshoe
from pyrofl.program import Program

CASES = {name: kind for name, kind in PRIORS.items()} | {
    "gaussian fan_in": lambda: Gaussian("fan_in"),
    "horseshoe unit": lambda: Horseshoe(local="unit"),
}
SENSIBLE = [
    (prior, guide)
    for prior in CASES
    for guide in GUIDES
    if not (prior == "flat" and guide == "normal")  # no KL to a flat prior
    and not (prior.split()[0] in ("hierarchical", "horseshoe") and guide == "delta")  # no mode
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def rows(n, seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=draw, dtype=dtype), torch.randint(2, (n,), generator=draw)


def program_of(prior, guide="normal", kl="closed", dtype=torch.float64):
    return Program(Bayesian(Net().to(dtype), CASES[prior]()), *rows(4, 0, dtype), guide=GUIDES[guide], kl=kl)


@pytest.mark.parametrize("kl", ["closed", "draw"])
@pytest.mark.parametrize(("prior", "guide"), SENSIBLE)
def test_clients_together_are_clients_alone(prior, guide, kl):
    method = BayFL(program_of(prior, guide, kl), optimizer=Adam(0.02), epochs=2, size=3)
    server = method.init(random.root(0))
    jobs = [
        Job(i, server, {}, Data.of(*rows(n, i, torch.float64)), random.fold(random.root(1), i))
        for i, n in enumerate((7, 8, 10))
    ]
    engine = Vectorised()
    together, alone = dict(engine.map(method.local, jobs)), dict(Sequential().map(method.local, jobs))
    assert engine.fallback is None
    for client, reply in alone.items():
        for name, value in reply.up.items():
            torch.testing.assert_close(together[client].up[name], value, rtol=1e-9, atol=1e-9)
            if name in method.program.trainable:
                assert not torch.equal(value, server[name]), f"{name} was not trained"


@pytest.mark.parametrize("kl", ["closed", "draw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("prior", "guide"), SENSIBLE)
def test_the_weights_precision_is_kept(prior, guide, kl, dtype):
    program = program_of(prior, guide, kl, dtype)
    theta = program.init(random.root(0))
    x, y = rows(5, 1, dtype)
    reply = BayFL(program, optimizer=Adam(0.02), size=3).local(theta, {}, Data.of(x, y), random.root(1))
    assert {v.dtype for v in reply.up.values()} == {dtype}
    assert all(v.isfinite().all() for v in reply.up.values())
    loss = program.loss(reply.up, Batch.of(x, y), random.root(2))
    assert loss.dtype == dtype and program.predict(reply.up, x, random.root(3)).dtype == dtype


@pytest.mark.parametrize(("prior", "guide"), SENSIBLE)
def test_pyros_predictive_takes_the_model_and_guide(prior, guide):
    program = program_of(prior, guide)
    model, posterior = program.to_pyro(program.init(random.root(0)))
    x, _ = rows(5, 1, torch.float64)
    with torch.random.fork_rng(devices=[]):
        draws = Predictive(model, guide=posterior, num_samples=7)(x)
    assert draws["y"].shape == (7, 5)
    assert draws["net.body.0.weight"].shape == (7, 1, 4, 3)


@pytest.mark.parametrize("kl", ["closed", "draw"])
@pytest.mark.parametrize("prior", [p for p, guide in SENSIBLE if guide == "normal"])
def test_the_posterior_as_prior_has_no_divergence(prior, kl):
    program = program_of(prior, "normal", kl)
    theta = program.init(random.root(0))
    phi = program.as_prior(program.posterior(theta))
    x, y = rows(5, 1, torch.float64)
    for key in range(3):
        _, parts = program.parts(theta, Batch.of(x, y), random.root(key), phi)
        assert parts["kl"].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("prior", [p for p, guide in SENSIBLE if guide == "normal"])
def test_another_posterior_as_prior_has_the_divergence_of_two_normals(prior):
    """Invariant under the maps to unconstrained space, so that the formula holds for positive sites as well."""
    program = program_of(prior, "normal", "closed")
    theta = program.init(random.root(0))
    q = program.posterior(theta)
    other = {s: (loc + 0.3, 2 * scale) for s, (loc, scale) in q.items()}
    x, y = rows(5, 1, torch.float64)
    _, parts = program.parts(theta, Batch.of(x, y), random.root(0), program.as_prior(other))
    by_hand = sum((math.log(2) + (s**2 + 0.09) / (2 * (2 * s) ** 2) - 0.5).sum().item() for _, s in q.values())
    assert parts["kl"].item() == pytest.approx(by_hand / 5, rel=1e-10)


@pytest.mark.parametrize("prior", ["hierarchical", "horseshoe"])
def test_the_drawn_divergence_of_positive_sites_has_the_right_mean(prior):
    program = program_of(prior, "normal", "draw")
    theta = program.init(random.root(0))
    q = program.posterior(theta)
    other = {s: (loc + 0.05, 1.5 * scale) for s, (loc, scale) in q.items()}
    x, y = rows(5, 1, torch.float64)
    batch, phi = Batch.of(x, y), program.as_prior(other)
    closed = program_of(prior, "normal", "closed")
    expected = closed.parts(theta, batch, random.root(0), phi)[1]["kl"]
    keys = torch.stack([random.root(i) for i in range(2000)])
    draws = torch.func.vmap(lambda k: program.parts(theta, batch, k, phi)[1]["kl"])(keys)
    error = draws.std() / len(keys) ** 0.5
    assert abs(draws.mean() - expected) < 4 * error < 0.05 * expected


@pytest.mark.parametrize("kl", ["closed", "draw"])
def test_a_flat_prior_is_refused_under_a_normal_guide(kl):
    with pytest.raises(ValueError, match=r"prior of 'net.body.0.weight' is flat.*use guide = 'delta'"):
        program_of("flat", "normal", kl)


def test_a_flat_prior_under_a_delta_guide_is_maximum_likelihood():
    program = program_of("flat", "delta")
    x, y = rows(6, 2, torch.float64)
    theta = program.init(random.root(0))
    loss, parts = program.parts(theta, Batch.of(x, y), random.root(1))
    net = Net().double()
    net.load_state_dict({site.removeprefix("net."): loc for site, (loc, _) in program.posterior(theta).items()})
    assert parts["neg_log_prior"] == 0
    assert loss.item() == pytest.approx(nn.functional.cross_entropy(net(x), y).item(), rel=1e-12)


def test_a_gaussian_prior_under_a_delta_guide_is_an_l2_penalty():
    program = program_of("gaussian", "delta")
    theta = program.init(random.root(0))
    x, y = rows(6, 2, torch.float64)
    _, parts = program.parts(theta, Batch.of(x, y), random.root(1))
    D = sum(v.numel() for v in theta.values())
    penalty = sum(v.square().sum() for v in theta.values()) / 2 + D / 2 * math.log(2 * math.pi)
    assert parts["neg_log_prior"].item() == pytest.approx(penalty.item() / 6, rel=1e-12)
