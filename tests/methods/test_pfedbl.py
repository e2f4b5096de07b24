"""pFedBL: a last layer under the server's posterior as its prior, and a body that is averaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import build, conjugate
from support.compare import close, distance
from torch import nn

from pyrofl.bayesian import Bayesian
from pyrofl.engines import Sequential
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.method import Cohort
from pyrofl.methods import BayFL, PFedBL
from pyrofl.optim import SGD, Adam
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.run import Run
from pyrofl.tree import only, stack, without


class LastLayer(nn.Module):
    """A last layer of one weight on the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Identity(), nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def test_the_last_layer_is_the_exact_posterior_under_the_servers_as_prior() -> None:
    """Not under the declared one, and with the KL divided by the rows: a mean of 4 rows under N(-0.5, 0.6^2)."""
    (client,), site = conjugate.federation((4,)).clients, "net.head.weight"
    x, y, _ = client.train
    model = Bayesian(LastLayer().double(), Gaussian(conjugate.TAU), Noise(conjugate.SIGMA))
    program = Program(model, x, y, guide=GUIDES["normal"], particles=4)
    method, one = PFedBL(program, size=4), torch.ones(1, 1, dtype=torch.float64)
    down = {**method.init(root(0)), **program.guide_of({site: (-0.5 * one, 0.6 * one)})}
    own = method.join(down)
    for optimizer, epochs in ((Adam(0.05), 40), (SGD(0.02), 80)):
        own = replace(method, optimizer=optimizer, epochs=epochs).local(down, own, client.train, root(epochs)).own
    h, J = conjugate.likelihood(client.train)
    h, J = h - 0.5 / 0.36, J + 1 / 0.36
    loc, scale = program.posterior({**down, **own})[site]
    assert abs(loc.item() - h / J) < 0.25 * J**-0.5
    assert scale.item() == pytest.approx(J**-0.5, rel=0.12)


def test_each_client_keeps_its_last_layer_and_shares_the_body() -> None:
    method = PFedBL(build.program(points=("norm", "body")), size=4)
    assert {p for p in method.program.posterior_names} == method.mine, "the body is deterministic"
    run = Run(method, build.federation((9, 8)), engine=Sequential(), rounds=2, seed=1)
    list(run)
    one, other = run.personal(0), run.personal(1)
    close(without(one, method.mine), without(other, method.mine), tolerance=0.0)
    for i, theta in enumerate((one, other)):
        close(only(theta, method.mine), run.states.get(i) or {}, tolerance=0.0)
    assert distance(only(one, method.mine), only(other, method.mine)) > 0


def test_the_server_pools_all_of_it_as_bayfl_does() -> None:
    program = build.program()
    ups = stack([program.init(root(1)), program.init(root(2))])
    cohort = Cohort(torch.arange(2), torch.tensor([3, 1]), root(1), 1)
    new, plain = (m(program, pooling="mixture").aggregate(program.init(root(3)), ups, cohort) for m in (PFedBL, BayFL))
    close(new, plain, tolerance=0.0)


def test_a_last_layer_without_posterior_is_refused() -> None:
    for options, message in (
        ({"guide": "delta"}, "use guide = 'normal'"),
        ({"points": ("norm", "head")}, r"with a \.head"),
    ):
        with pytest.raises(ValueError, match=message):
            PFedBL(build.program(**options))
