"""One client, one round of BayFL is `pyro.infer.SVI` on the same draws and batches, step for step."""

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import nn

from pyrofl import random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.fit import fit
from pyrofl.handlers import keyed
from pyrofl.method import Cohort
from pyrofl.methods import BayFL
from pyrofl.optim import SGD, Adam
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.tree import stack

N, SIZE, EPOCHS, TAU = 11, 4, 2, 0.8  # batches of 4, 4 and 3 rows
SHAPES = {"net.0.weight": (5, 3), "net.0.bias": (5,), "net.2.weight": (2, 5), "net.2.bias": (2,)}


def model(x, y):
    """Written without pyrofl: a network with normal weights, and a plate that knows how many rows there are."""
    w = {
        site: pyro.sample(site, dist.Normal(torch.zeros(shape, dtype=torch.float64), TAU).to_event(len(shape)))
        for site, shape in SHAPES.items()
    }
    logits = (x @ w["net.0.weight"].T + w["net.0.bias"]).tanh() @ w["net.2.weight"].T + w["net.2.bias"]
    with pyro.plate("data", N, subsample=torch.arange(len(x))):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


class Guide:
    """Mean-field Normal with scale = softplus(rho) + 1e-8, from given starts; `draw` is the noise of the next step."""

    def __init__(self, start):
        self.start, self.draw = start, {}

    def __call__(self, x, y):
        with keyed(random.root(0), self.draw):
            for site, shape in SHAPES.items():
                loc = pyro.param(f"loc {site}", self.start[f"guide.locs.{site}_unconstrained"].clone())
                rho = pyro.param(f"rho {site}", self.start[f"guide.scales.{site}_unconstrained"].clone())
                scale = nn.functional.softplus(rho) + 1e-8
                pyro.sample(site, dist.Normal(loc, scale).to_event(len(shape)))


def rows():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(N, 3, generator=draw, dtype=torch.float64), torch.randint(2, (N,), generator=draw)


def svi(program, theta, data, key, elbo, optimizer):
    """(loss, parameters by pyrofl's names) after each step of Pyro's SVI."""
    guide = Guide(theta)
    with pyro.get_param_store().scope():
        trainer = SVI(poutine.scale(model, 1 / N), poutine.scale(guide, 1 / N), optimizer, elbo)
        for t, (_, batch) in enumerate(data.batches(data.schedule(random.fold(key, "order"), EPOCHS, SIZE))):
            noise = program._noise(random.fold(key, "draws", t))
            guide.draw = {name.removesuffix("_unconstrained"): v for name, v in noise.items()}
            loss = trainer.step(batch.x[batch.live], batch.y[batch.live])
            store = {k: v.detach().clone() for k, v in pyro.get_param_store().items()}
            names = {"loc ": "guide.locs.", "rho ": "guide.scales."}
            yield loss, {f"{names[k[:4]]}{k[4:]}_unconstrained": v for k, v in store.items()}


@pytest.mark.parametrize(
    ("optimizer", "pyros"),
    [
        (SGD(0.1), lambda: pyro.optim.SGD({"lr": 0.1})),
        (
            SGD(0.05, momentum=0.9, decay=0.01),
            lambda: pyro.optim.SGD({"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
        ),
        (Adam(0.02), lambda: pyro.optim.Adam({"lr": 0.02})),
        (Adam(0.02, b1=0.8, b2=0.95), lambda: pyro.optim.Adam({"lr": 0.02, "betas": (0.8, 0.95)})),
    ],
)
@pytest.mark.parametrize(("kl", "elbo"), [("closed", TraceMeanField_ELBO), ("draw", Trace_ELBO)])
def test_bayfl_is_svi_step_for_step(kl, elbo, optimizer, pyros):
    x, y = rows()
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    program = Program(Bayesian(net, Gaussian(TAU)), x, y, kl=kl)
    method = BayFL(program, optimizer=optimizer, epochs=EPOCHS, size=SIZE)
    server, data, key = method.init(random.root(0)), Data.of(x, y), random.root(1)
    steps = list(svi(program, server, data, key, elbo(), pyros()))
    assert len(steps) == 6
    for t, (_, theirs) in enumerate(steps, start=1):
        ours, info = fit(program.parts, server, data, key, optimizer=optimizer, epochs=t / 3, size=SIZE)
        assert (info["steps"].item(), ours.keys()) == (t, theirs.keys())
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-9, atol=1e-11, msg=f"{name} at step {t}")
    batches = [b for _, b in data.batches(data.schedule(random.fold(key, "order"), EPOCHS, SIZE))]
    first = program.loss(server, batches[0], random.fold(key, "draws", 0))
    assert first.item() == pytest.approx(steps[0][0], rel=1e-12)

    reply = method.local(server, {}, data, key)
    cohort = Cohort(torch.tensor([0]), torch.tensor([N]), random.root(2), 1)
    after = method.aggregate(server, stack([reply.up]), cohort)
    for name, value in steps[-1][1].items():
        torch.testing.assert_close(after[name], value, rtol=1e-7, atol=1e-8)
    assert list(pyro.get_param_store().keys()) == []
