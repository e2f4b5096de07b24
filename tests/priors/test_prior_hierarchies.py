"""Priors with latent hyper-parameters: sites, joint density, and a scale that is learned from the weights."""

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import nn

from pyrofl import random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.fit import fit
from pyrofl.likelihoods import Gaussian as GaussianNoise
from pyrofl.optim import Adam
from pyrofl.priors import Hierarchical, Horseshoe
from pyrofl.program import Program


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def traced(model, values):
    """Trace of the model with the sites' values given; other sites are drawn."""
    x = torch.zeros(1, 3, dtype=model.weights[0].value.dtype)
    with torch.random.fork_rng(devices=[]):
        trace = poutine.trace(poutine.condition(model, values)).get_trace(x)
    trace.compute_log_prob()
    return trace


def hyper_sites(model, values):
    return [n for n in traced(model, values).nodes if n.startswith("prior.")]


def start(model, **others):
    return {**{w.site: w.value for w in model.weights}, **others, "y": torch.zeros(1, dtype=torch.int64)}


def test_hierarchical_has_one_scale_a_layer():
    model = Bayesian(Net(), Hierarchical())
    assert hyper_sites(model, start(model)) == ["prior.net_body_0.scale", "prior.net_head.scale"]


@pytest.mark.parametrize(("local", "shape"), [("weight", (4, 3)), ("unit", (4, 1))])
def test_horseshoe_has_local_scales_for_each_tensor(local, shape):
    model = Bayesian(Net(), Horseshoe(local=local))
    trace = traced(model, start(model))
    shapes = {n: tuple(site["value"].shape) for n, site in trace.nodes.items() if n.startswith("prior.net_body_0")}
    assert shapes == {
        "prior.net_body_0.scale": (),
        "prior.net_body_0.local_weight": shape,
        "prior.net_body_0.local_bias": (4,),
    }


def test_layers_whose_names_clash_keep_their_own_scales():
    net = nn.Sequential()
    net.add_module("a_b", nn.Linear(3, 2))
    net.add_module("a", nn.Sequential())
    net.a.add_module("b", nn.Linear(2, 2))
    model = Bayesian(net, Hierarchical())
    assert hyper_sites(model, start(model)) == ["prior.net_a_b.scale", "prior.net_a_b_.scale"]


def test_hierarchical_joint_density_is_the_hand_computed_one():
    model = Bayesian(Net().double(), Hierarchical(width=2.0))
    scales = {"prior.net_body_0.scale": 0.3, "prior.net_head.scale": 1.7}
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in scales.items()}
    trace = traced(model, start(model, **tensors))
    expected = stats.halfnorm(0, 2.0).logpdf(list(scales.values())).sum()
    for w in model.weights:
        expected += stats.norm(0, scales[f"prior.{w.layer.replace('.', '_')}.scale"]).logpdf(w.value.numpy()).sum()
    likelihood = trace.nodes["y"]["log_prob_sum"]
    assert (trace.log_prob_sum() - likelihood).item() == pytest.approx(expected, rel=1e-12)


def test_horseshoe_joint_density_is_the_hand_computed_one():
    model = Bayesian(nn.Sequential(nn.Linear(3, 2)).double(), Horseshoe(0.5, local="unit"))
    draw = np.random.default_rng(0)
    tau, unit, bias = 0.4, draw.uniform(0.2, 2, (2, 1)), draw.uniform(0.2, 2, 2)
    named = {"scale": np.array(tau), "local_weight": unit, "local_bias": bias}
    values = {f"prior.net_0.{k}": torch.from_numpy(v) for k, v in named.items()}
    trace = traced(model, start(model, **values))
    expected = stats.halfcauchy(0, 0.5).logpdf(tau)
    expected += stats.halfcauchy(0, 1).logpdf(unit).sum() + stats.halfcauchy(0, 1).logpdf(bias).sum()
    w, b = (x.value.numpy() for x in model.weights)
    expected += stats.norm(0, tau * unit).logpdf(w).sum() + stats.norm(0, tau * bias).logpdf(b).sum()
    likelihood = trace.nodes["y"]["log_prob_sum"]
    assert (trace.log_prob_sum() - likelihood).item() == pytest.approx(expected, rel=1e-12)


def test_the_learned_scale_is_the_spread_of_the_weights():
    """y_j = w_j + small noise: the posterior of the scale is that of N(0, scale^2) from 200 known draws."""
    D, sd = 200, 0.3
    draw = np.random.default_rng(0)
    y = torch.from_numpy(draw.normal(0, sd, D))
    x = torch.eye(D, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(D, 1, bias=False)).double()
    program = Program(Bayesian(net, Hierarchical(), GaussianNoise(0.01)), x[:2], y[:2])
    theta, data = program.init(random.root(0)), Data.of(x, y)
    for rate, epochs in ((0.03, 200), (0.005, 150)):
        key = random.root(epochs)
        theta, _ = fit(program.parts, theta, data, key, optimizer=Adam(rate), epochs=epochs, size=D)
    loc, scale = program.posterior(theta)["prior.net_0.scale"]  # of the logarithm
    assert loc.exp().item() == pytest.approx(y.square().mean().sqrt().item(), rel=0.02)
    assert scale.item() == pytest.approx(1 / np.sqrt(2 * D), rel=0.25)  # Fisher information of a log scale: 2 D
