"""Program against Pyro itself: the ELBO, the fast path, posteriors, predictions, checks, and what it leaves alone."""

import functools
import math
import random as python_random
import subprocess
import sys

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyrofl import random
from pyrofl.bayesian import Bayesian, Prior
from pyrofl.data import Batch, Data
from pyrofl.engines import Sequential, Vectorised
from pyrofl.engines.base import Job
from pyrofl.fit import fit
from pyrofl.guides import GUIDES
from pyrofl.handlers import keyed
from pyrofl.methods import BayFL
from pyrofl.optim import SGD, Adam
from pyrofl.priors import PRIORS, Gaussian
from pyrofl.program import Program

PROPER = [name for name in PRIORS if name != "flat"]
FAST = ["flat", "gaussian", "laplace", "student_t", "scale_mixture"]


class Net(nn.Module):
    def __init__(self, *, batch_norm=False, dropout=0.0):
        super().__init__()
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4)] if batch_norm else [nn.Linear(3, 4)]
        self.body = nn.Sequential(*layers, nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def rows(n=6, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=draw, dtype=dtype), torch.randint(2, (n,), generator=draw)


def batch_of(x, y, *, n=None, live=None):
    batch = Batch.of(x, y, n)
    return batch if live is None else batch._replace(weight=live.to(x.dtype) / live.sum())


def program_of(prior="gaussian", guide="normal", *, dtype=torch.float64, net=None, **options):
    net = (net or Net()).to(dtype)
    return Program(Bayesian(net, PRIORS[prior]()), *rows(dtype=dtype), guide=GUIDES[guide], **options)


# ---------------------------------------------------------------------- Pyro's own ELBO


def drawn(program, guide, key, x, y):
    """The guide's trace with the draw that `program.loss` makes from `key`."""
    with pyro.validation_enabled(False), keyed(random.fold(key, "guide"), program._noise(key)):
        return poutine.trace(guide).get_trace(x, y)


@pytest.mark.parametrize("prior", PROPER)
def test_the_drawn_elbo_is_trace_elbo(prior):
    program = program_of(prior, kl="draw", dtype=torch.float32)
    theta, (x, y), key = program.init(random.root(0)), rows(dtype=torch.float32), random.root(1)
    model, guide = program.to_pyro(theta)
    q = drawn(program, guide, key, x, y)
    pyros = Trace_ELBO().loss(model, poutine.replay(guide, trace=q), x, y)
    assert program.loss(theta, batch_of(x, y), key).item() * len(x) == pytest.approx(pyros, rel=1e-5)


@pytest.mark.parametrize("prior", PROPER)
def test_the_closed_elbo_is_trace_mean_field_elbo(prior):
    program = program_of(prior, kl="closed", dtype=torch.float32)
    theta, (x, y), key = program.init(random.root(0)), rows(dtype=torch.float32), random.root(1)
    model, guide = program.to_pyro(theta)
    q = drawn(program, guide, key, x, y)

    def by_hand(x, y):
        for site, (loc, scale) in program.posterior(theta).items():
            positive = site.startswith("prior.")
            family = dist.LogNormal if positive else dist.Normal
            pyro.sample(site, family(loc, scale).to_event(loc.dim()))

    values = poutine.trace(by_hand).get_trace(x, y)
    for site in program.sites:
        values.nodes[site]["value"] = q.nodes[site]["value"]
    pyros = TraceMeanField_ELBO().loss(model, poutine.replay(by_hand, trace=values), x, y)
    assert program.loss(theta, batch_of(x, y), key).item() * len(x) == pytest.approx(pyros, rel=1e-5)


def test_beta_weighs_the_divergence_alone_and_particles_are_averaged():
    (x, y), key = rows(), random.root(1)
    batch = batch_of(x, y, n=40)
    one = program_of()
    theta = one.init(random.root(0))
    parts = [one.parts(theta, batch, random.fold(key, s))[1] for s in range(3)]
    _, many = program_of(particles=3, beta=0.25).parts(theta, batch, key)
    torch.testing.assert_close(many["nll"], sum(p["nll"] for p in parts) / 3)
    torch.testing.assert_close(many["kl"], parts[0]["kl"] / 4)


# ---------------------------------------------------------------------- the fast path


@pytest.mark.parametrize("kl", ["closed", "draw"])
@pytest.mark.parametrize(("prior", "guide"), [(p, g) for p in FAST for g in GUIDES if (p, g) != ("flat", "normal")])
@pytest.mark.parametrize("reprior", [False, True])
def test_the_fast_path_is_the_traced_path(prior, guide, kl, reprior):
    program = program_of(prior, guide, kl=kl, net=Net(batch_norm=True, dropout=0.3))
    assert program._fast is not None
    theta = program.init(random.root(0))
    live = torch.tensor([True, True, False, True, True, True])
    batch, key = batch_of(*rows(), n=30, live=live), random.root(1)
    phi = None
    if reprior:
        phi = program.as_prior(
            {s: (m + 0.2, torch.full_like(m, 0.3)) for s, (m, _) in program.posterior(theta).items()}
        )
    results = []
    for elbo in (program._fast.elbo, program.traced_elbo):
        leaves = {k: v.clone().requires_grad_(k in program.trainable) for k, v in theta.items()}
        nll, divergence = elbo(leaves, batch, key, phi)
        free = {k: v for k, v in leaves.items() if v.requires_grad}
        slopes = torch.autograd.grad(nll + divergence, list(free.values()), allow_unused=True)
        results.append((nll, divergence, dict(zip(free, slopes, strict=True))))
    (nll, divergence, slopes), (nll2, divergence2, slopes2) = results
    torch.testing.assert_close(nll, nll2, rtol=1e-12, atol=0)
    torch.testing.assert_close(divergence, divergence2, rtol=1e-12, atol=1e-12)
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, slopes2[name], rtol=1e-10, atol=1e-12)
        assert slope is not None and slope.isfinite().all(), name


@pytest.mark.parametrize("guide", GUIDES)
def test_fast_predictions_are_traced_predictions(guide):
    program = program_of(guide=guide)
    theta, (x, _) = program.init(random.root(0)), rows()
    for key in (None, random.root(2)):
        fast = program.predict(theta, x, key)
        held, program._fast = program._fast, None
        traced = program.predict(theta, x, key)
        program._fast = held
        torch.testing.assert_close(fast, traced, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", ["hierarchical", "horseshoe"])
def test_hyper_priors_are_traced(prior):
    assert program_of(prior)._fast is None


# ---------------------------------------------------------------------- posteriors and priors


@settings(max_examples=25)
@given(st.floats(-8, 1.5), st.integers(0, 2**32))
def test_guide_of_inverts_posterior(log10_scale, seed):
    program = shared_program()
    noise = {s: random.normal(random.fold(random.root(seed), s), q.shape, q.dtype) for s, q in starts().items()}
    q = {s: (v, 2e-8 + 10**log10_scale * v.abs()) for s, v in noise.items()}
    again = program.posterior(program.guide_of(q))
    assert again.keys() == q.keys()
    for site, (loc, scale) in q.items():
        assert torch.equal(again[site][0], loc)
        torch.testing.assert_close(again[site][1], scale, rtol=1e-6, atol=0)


@functools.cache
def shared_program():
    return program_of()


def starts():
    program = shared_program()
    return {s: program.theta0[program.loc_name(s)] for s in program.sites}


def test_as_prior_replaces_what_it_names_and_leaves_the_rest():
    program = program_of()
    theta, batch = program.init(random.root(0)), batch_of(*rows())
    q = program.posterior(theta)
    head = {s: v for s, v in q.items() if s.startswith("net.head")}
    _, some = program.parts(theta, batch, random.root(0), program.as_prior(head))

    def to_standard_normal(sites):
        return sum((s**2 / 2 + m**2 / 2 - 0.5 - s.log()).sum() for n, (m, s) in q.items() if n in sites)

    rest = q.keys() - head.keys()
    assert some["kl"].item() == pytest.approx(to_standard_normal(rest).item() / len(batch.x), rel=1e-12)


def test_prior_posterior_is_the_declared_gaussian():
    net = Net().double()
    program = Program(Bayesian(net, Gaussian("fan_in")), *rows())
    prior = program.prior_posterior()
    for site, sd in (("net.body.0.weight", 3**-0.5), ("net.head.bias", 0.5)):
        loc, scale = prior[site]
        assert (loc == 0).all()
        torch.testing.assert_close(scale, torch.full_like(scale, sd))
    assert program_of("laplace").prior_posterior() is None


class Line(PyroModule):
    """b ~ N(1, 2^2), w | b ~ N(centre(b), scale^2) for three weights, y | x ~ Bernoulli(sigmoid(w x + b))."""

    def __init__(self, centre, scale):
        super().__init__()
        self.centre, self.width = centre, scale

    @PyroSample
    def b(self):
        return dist.Normal(torch.ones((), dtype=torch.float64), 2.0)

    @PyroSample
    def w(self):
        centre = self.centre(self.b) + torch.zeros((), dtype=torch.float64)
        return dist.Normal(centre, self.width).expand([3]).to_event(1)

    def forward(self, x, y=None):
        logits = pyro.deterministic("logits", x @ self.w + self.b)
        with pyro.plate("data", len(x)):
            p = pyro.deterministic("p", logits.sigmoid())
            pyro.sample("y", dist.Bernoulli(p), obs=y)


def test_prior_posterior_of_a_pyro_model_is_its_normals_where_they_depend_on_nothing():
    x, y = rows()
    program = Program(Line(lambda b: -1.0, 0.5), x, y.double())
    prior = program.prior_posterior()
    assert prior.keys() == {"w", "b"}
    for site, expected in (("b", (1.0, 2.0)), ("w", ([-1.0] * 3, [0.5] * 3))):
        for found, number in zip(prior[site], expected, strict=True):
            torch.testing.assert_close(found, torch.tensor(number, dtype=torch.float64))
    assert program.posterior(program.guide_of(prior)).keys() == prior.keys()
    learned = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    for other in (Line(lambda b: b, 0.5), Line(lambda b: 0.0, learned)):
        assert Program(other, x, y.double()).prior_posterior() is None


def test_values_that_the_model_records_are_no_observations():
    x, y = rows()
    program = Program(Line(lambda b: 0.0, 1.0), x, y.double())
    assert program.observed == "y" and program.sites == ("b", "w")
    theta = program.init(random.root(0))
    w, b = (loc for loc, _ in (program.posterior(theta)[s] for s in ("w", "b")))
    logits = program.predict(theta, x, None)[:, 0]
    torch.testing.assert_close(logits, x @ w + b)


class Positive(Prior):
    def forward(self, weight):
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.LogNormal(zero, 1.0).to_event(zero.dim())


def test_a_prior_whose_support_lacks_the_networks_start_is_refused():
    message = r"prior of 'net.0.weight' is a LogNormal, whose support .* values that the network starts it at, -1 to 2:"
    net = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[-1.0, 1, 1], [1, 1, 2]]))
        with pytest.raises(ValueError, match=message):
            Program(Bayesian(net, Positive()), *rows())
        net[0].weight.abs_()
    program = Program(Bayesian(net, Positive()), *rows())
    torch.testing.assert_close(program.posterior(program.theta0)["net.0.weight"][0], net[0].weight.detach().log())
    x, _ = rows()
    logits = x @ net[0].weight.detach().T
    torch.testing.assert_close(program.predict(program.theta0, x, None), logits.log_softmax(-1))


def test_initial_models_follow_the_key_and_keep_constants():
    program = program_of()
    a, b, again = (program.init(random.root(s)) for s in (0, 1, 0))
    assert all(torch.equal(a[k], again[k]) for k in a)
    loc, scale = program.loc_name("net.head.weight"), program.scale_name("net.head.weight")
    assert not torch.equal(a[loc], b[loc]) and torch.equal(a[scale], b[scale])
    for _, sd in program.posterior(a).values():
        torch.testing.assert_close(sd, torch.full_like(sd, 0.05), rtol=1e-6, atol=0)


# ---------------------------------------------------------------------- other guides, explicit models


def test_a_low_rank_guide_trains_alike_on_both_engines():
    guide = functools.partial(AutoLowRankMultivariateNormal, rank=2)
    x, y = rows(40, seed=3)
    y = (x[:, 0] > 0).long()
    program = Program(Bayesian(Net().double(), Gaussian()), x, y, guide=guide, kl="draw")
    method = BayFL(program, optimizer=Adam(0.05), epochs=20, size=20)
    server = method.init(random.root(0))
    jobs = [Job(i, server, {}, Data.of(x, y), random.fold(random.root(1), i)) for i in range(2)]
    engine = Vectorised()
    together, alone = dict(engine.map(method.local, jobs)), dict(Sequential().map(method.local, jobs))
    assert engine.fallback is None
    for i, reply in alone.items():
        for name, value in reply.up.items():
            torch.testing.assert_close(together[i].up[name], value, rtol=1e-9, atol=1e-9)
    loss = lambda theta: np.mean([program.loss(theta, batch_of(x, y), random.root(k)).item() for k in range(20)])
    assert loss(alone[0].up) < loss(server) - 0.5
    with pytest.raises(TypeError, match="posterior needs a mean-field Normal guide, this one is AutoLowRank"):
        program.posterior(server)


class ExplicitLogistic(PyroModule):
    """The lifted Linear(3, 2) with a standard normal prior, written out."""

    @PyroSample
    def weight(self):
        return dist.Normal(torch.zeros(2, 3, dtype=torch.float64), 1.0).to_event(2)

    @PyroSample
    def bias(self):
        return dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1)

    def forward(self, x, y=None):
        logits = x @ self.weight.T + self.bias
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


@pytest.mark.parametrize("kl", ["closed", "draw"])
def test_an_explicit_pyro_model_is_the_lifted_one(kl):
    (x, y), key = rows(), random.root(1)
    lifted = Program(Bayesian(nn.Sequential(nn.Linear(3, 2)).double(), Gaussian()), x, y, kl=kl)
    explicit = Program(ExplicitLogistic(), x, y, kl=kl)
    theta = lifted.init(random.root(0))
    same = {k.replace("net.0.", ""): v for k, v in theta.items()}
    assert same.keys() == explicit.theta0.keys()
    batch = batch_of(x, y, n=20)
    torch.testing.assert_close(explicit.loss(same, batch, key), lifted.loss(theta, batch, key), rtol=1e-12, atol=0)
    torch.testing.assert_close(explicit.predict(same, x, key), lifted.predict(theta, x, key), rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- to_pyro


@pytest.mark.parametrize("prior", ["gaussian", "hierarchical"])
def test_pyros_predictive_has_the_distribution_of_predict(prior):
    program = program_of(prior)
    theta, (x, _) = program.init(random.root(0)), rows()
    theta = {k: v + 1.5 if k.startswith("guide.scales.net") else v for k, v in theta.items()}  # wider draws
    model, guide = program.to_pyro(theta)
    S = 500
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        theirs = Predictive(model, guide=guide, num_samples=S, return_sites=("_RETURN",))(x)["_RETURN"].log_softmax(-1)
    keys = torch.stack([random.root(s) for s in range(S)])
    ours = torch.func.vmap(lambda key: program.predict(theta, x, key))(keys)  # (S, B, 2)
    assert ours.std(0).min() > 0.1
    error = (ours.var(0) + theirs.var(0)).div(S).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4.5 * error).all()
    torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0.2, atol=0)


def test_two_models_handed_to_pyro_share_nothing():
    program, (x, y) = program_of(), rows()
    thetas = [program.init(random.root(s)) for s in range(2)]
    pairs = [program.to_pyro(theta) for theta in thetas]
    for theta, (_, guide) in zip(thetas, pairs, strict=True):
        q = poutine.trace(guide).get_trace(x, y)
        base = q.nodes["net.head.weight_unconstrained"]["fn"].base_dist
        assert torch.equal(base.loc, theta[program.loc_name("net.head.weight")])
    assert list(pyro.get_param_store().keys()) == []


def test_the_tree_given_to_pyro_is_copied():
    program = program_of()
    theta = program.init(random.root(0))
    before = {k: v.clone() for k, v in theta.items()}
    _, guide = program.to_pyro(theta)
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(1)
    assert all(torch.equal(theta[k], before[k]) for k in theta)


# ---------------------------------------------------------------------- checks


class Observes(PyroModule):
    """`how` is a function of (x, y) that samples."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    @PyroSample
    def w(self):
        return dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0).to_event(1)

    def forward(self, x, y=None):
        self.how(x @ self.w, x, y)


def observe(name, logits, y):
    with pyro.plate(f"{name} rows", len(logits)):
        pyro.sample(name, dist.Bernoulli(logits=logits), obs=y)


def twice(logits, x, y):
    observe("y", logits, y)
    observe("z", logits, y)


def local(logits, x, y):
    with pyro.plate("data", len(x)):
        b = pyro.sample("b", dist.Normal(torch.zeros(len(x), dtype=torch.float64), 1.0))
        pyro.sample("y", dist.Bernoulli(logits=logits + b), obs=y)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda logits, x, y: None, r"must observe one site, it observes 0 \(none\)"),
        (twice, r"must observe one site, it observes 2 \(y, z\)"),
        (local, "site 'b' is a latent of every row"),
        (
            lambda logits, x, y: pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y),
            r"site 'y' has batch shape \(\); it must be \(6,\)",
        ),
        (lambda logits, x, y: observe("y", x[:, 0], y), "does not use its latent sites"),
    ],
)
def test_models_that_cannot_be_federated_say_why(how, message):
    x, y = rows()
    with pytest.raises(ValueError, match=message):
        Program(Observes(how), x, y.double(), kl="draw")


def test_a_likelihood_without_predictions_is_refused():
    x, y = rows()
    how = lambda logits, x, y: pyro.sample("y", dist.Laplace(logits, 1.0), obs=y)
    with pytest.raises(TypeError, match="observed site is a Laplace"):
        Program(Observes(how), x, y.double())


def test_arguments_are_checked():
    x, y = rows()
    model = Bayesian(Net().double(), Gaussian())
    with pytest.raises(TypeError, match="Net is not a PyroModule: lift a network"):
        Program(Net(), x, y)
    with pytest.raises(ValueError, match='kl must be "closed" or "draw", got \'exact\''):
        Program(model, x, y, kl="exact")
    with pytest.raises(ValueError, match="particles must be at least 1, got 0"):
        Program(model, x, y, particles=0)
    with pytest.raises(ValueError, match="beta must be 0 or positive, and finite"):
        Program(model, x, y, beta=-1.0)
    with pytest.raises(ValueError, match="labels go from 0 to 2, but the model has 2 outputs"):
        Program(model, x, torch.arange(6) % 3)


def test_parts_of_the_network_are_found_by_attribute_and_type():
    program = program_of(net=Net(batch_norm=True))
    assert program.names("head") == {
        f"guide.{kind}.net.head.{p}_unconstrained" for kind in ("locs", "scales") for p in ("weight", "bias")
    }
    stats = {f"model.net.body.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")}
    assert program.names("norm") == stats
    assert program.names("head") | program.names("body") == program.theta0.keys()
    with pytest.raises(ValueError, match="network has no normalisation layer"):
        program_of().names("norm")


def test_the_users_model_is_not_changed():
    net = Net(batch_norm=True).double()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    model = Bayesian(net, Gaussian())
    program = Program(model, *rows())
    fit(
        program.parts,
        program.init(random.root(0)),
        Data.of(*rows()),
        random.root(1),
        optimizer=SGD(0.1),
        epochs=1,
        size=3,
    )
    assert type(net.body[1]) is nn.BatchNorm1d and net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not hasattr(model, "guide")


# ---------------------------------------------------------------------- what is left alone

STATE = """
import sys
import numpy, torch, pyro
numpy.random.seed(1), torch.manual_seed(1)
def state():
    return (
        pyro.settings.get(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state().tolist(),
        str(numpy.random.get_state()), list(pyro.get_param_store().keys()),
        torch.get_num_threads(), torch.distributions.Distribution._validate_args,
        torch.are_deterministic_algorithms_enabled(),
    )
before = state()
import pyrofl, pyrofl.priors, pyrofl.program, pyrofl.engines, pyrofl.methods
assert state() == before
assert not any(name.split(".")[0] in ("models", "experiments") for name in sys.modules)
"""


def test_importing_changes_no_setting_and_draws_nothing():
    done = subprocess.run([sys.executable, "-c", STATE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def whole_state():
    return (
        pyro.settings.get(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
        python_random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002 (that it is untouched is the point)
        list(pyro.get_param_store().keys()),
        torch.distributions.Distribution._validate_args,
    )


@pytest.mark.parametrize("prior", PRIORS)
def test_building_and_using_a_program_leaves_no_trace(prior):
    net = Net(batch_norm=True, dropout=0.2)
    before = whole_state()
    program = program_of(prior, "delta" if prior == "flat" else "normal", net=net)
    method = BayFL(program, optimizer=Adam(0.01), size=3)
    theta = method.init(random.root(0))
    x, y = rows()
    jobs = [Job(i, theta, {}, Data.of(x, y), random.fold(random.root(1), i)) for i in range(2)]
    for engine in (Vectorised(), Sequential()):
        dict(engine.map(method.local, jobs))
    program.predict(theta, x, random.root(2), dropout=True)
    program.to_pyro(theta)
    assert whole_state() == before


def test_global_seeds_have_no_effect():
    losses = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            net = Net().double()
            net.load_state_dict(shared_net().state_dict())
            torch.random.manual_seed(seed)
            program = Program(Bayesian(net, PRIORS["horseshoe"]()), *rows())
            theta = program.init(random.root(0))
            losses.append(program.loss(theta, batch_of(*rows()), random.root(1)))
    assert torch.equal(*losses)


@functools.cache
def shared_net():
    return Net().double()


@pytest.fixture
def odd_defaults():
    """A default dtype and device that every tensor made without thought would take."""
    torch.set_default_dtype(torch.float16)
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", PRIORS)
def test_the_modules_dtype_and_device_are_followed(prior, dtype, odd_defaults):
    device = "cpu"
    with torch.device(device):
        net = Net(batch_norm=True, dropout=0.2).to(dtype)
    x, y = rows_on(device, dtype)
    guide = GUIDES["delta" if prior == "flat" else "normal"]
    program = Program(Bayesian(net, PRIORS[prior]()), x, y, guide=guide)
    key, data = random.root(0), Data.of(x, y)
    theta = program.init(key)
    reply = BayFL(program, optimizer=Adam(0.01), size=4).local(theta, {}, data, key)
    out = program.predict(reply.up, x, key)
    for v in (*reply.up.values(), out):
        assert (v.device.type, v.dtype) == (device, dtype) and v.isfinite().all()


def rows_on(device, dtype):
    draw = torch.Generator(device).manual_seed(0)
    x = torch.randn(6, 3, generator=draw, dtype=dtype, device=device)
    return x, torch.randint(2, (6,), generator=draw, device=device)


def test_the_loss_is_the_mean_over_live_rows_plus_the_divergence_over_n():
    program = program_of()
    theta, (x, y) = program.init(random.root(0)), rows()
    live = torch.tensor([True, True, True, False, False, False])
    _, half = program.parts(theta, batch_of(x, y, n=50, live=live), random.root(1))
    _, first = program.parts(theta, batch_of(x[:3], y[:3], n=50), random.root(1))
    torch.testing.assert_close(half["nll"], first["nll"])
    q = program.posterior(theta)
    divergence = sum((s**2 / 2 + m**2 / 2 - 0.5 - s.log()).sum().item() for m, s in q.values())
    assert half["kl"].item() == pytest.approx(divergence / 50, rel=1e-12)
    weights = {s: m for s, (m, _) in q.items()}
    logits = (x @ weights["net.body.0.weight"].T + weights["net.body.0.bias"]).tanh()
    logits = logits @ weights["net.head.weight"].T + weights["net.head.bias"]
    torch.testing.assert_close(program.predict(theta, x, None), logits.log_softmax(-1))
    assert math.isfinite(half["nll"].item())


@pytest.mark.parametrize("prior", ["gaussian", "hierarchical"])
def test_predictions_of_training_normalise_by_the_named_rows(prior):
    """The fast path and Pyro's traces: the likelihood that they imply is that of the loss."""
    program = program_of(prior, "delta", net=Net(batch_norm=True))
    theta, (x, y), key = program.init(random.root(0)), rows(), random.root(1)
    kept = torch.tensor([True, True, True, True, False, False])
    batch = batch_of(x, y, live=kept)._replace(distinct=kept)
    out = program.predict(theta, x, None, rows=kept)
    nll = program.parts(theta, batch, key)[1]["nll"]
    torch.testing.assert_close(-out[kept, y[kept]].mean(), nll)
    assert not torch.allclose(out, program.predict(theta, x, None)), "the running statistics are others"
