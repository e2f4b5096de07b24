"""Expectation propagation: exact on a conjugate model, with and without factors kept at the clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import build, conjugate
from support.conjugate import SITE

from pyrofl.data import Data
from pyrofl.engines import Sequential, Vectorised
from pyrofl.meanfield import moments
from pyrofl.methods import FedEP
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.run import Participation, Run
from pyrofl.tree import part

ROWS = (2, 5, 11)


def run_of(rounds: int, *, rows: tuple[int, ...] = ROWS, engine: Any = None, **arguments: Any) -> Run:
    """Forty full-batch steps a round find the mode to 1e-8."""
    cohort = arguments.pop("cohort", None)
    method = FedEP(conjugate.program(), SGD(0.4), epochs=40, size=20, clients=len(rows), **arguments)
    federation = conjugate.federation(rows)
    run = Run(method, federation, engine=engine or Sequential(), rounds=rounds, seed=1, cohort=cohort)
    list(run)
    return run


def q_of(run: Run) -> tuple[float, float]:
    ((loc, scale),) = moments(part(run.server, "q")).values()
    return loc.item(), scale.item()


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("engine", [Sequential(), Vectorised(ragged=100.0)], ids=lambda e: e.name)
def test_one_undamped_round_is_exact_on_a_conjugate_model(stateless: bool, engine: Any) -> None:
    """From the prior; and later rounds stay there, with unequal clients."""
    for rounds in (1, 3):
        run = run_of(rounds, damping=1.0, stateless=stateless, engine=engine)
        assert q_of(run) == pytest.approx(conjugate.posterior(run.federation.clients), rel=1e-6)


def test_one_client_at_a_time_is_exact_when_each_had_a_turn() -> None:
    run = run_of(12, together=1, cohort=Participation(clients=1))
    assert all(run.states.get(i) is not None for i in range(3)), "a client had no turn in twelve rounds"
    assert q_of(run) == pytest.approx(conjugate.posterior(run.federation.clients), rel=1e-6)


def test_without_state_a_client_keeps_no_factor_and_one_client_is_exact() -> None:
    run = run_of(3, rows=(6,), stateless=True)
    assert q_of(run) == pytest.approx(conjugate.posterior(run.federation.clients), rel=1e-6)
    assert (run.states.get(0) or {}).keys() == run.method.program.posterior_names


def test_the_share_of_a_client_without_state_is_that_of_its_rows() -> None:
    """Two clients of 2 and 11 rows, the larger absent: its cavity is q divided by (q / prior)^(2 / 13)."""
    run = run_of(2, rows=(2, 11), damping=1.0, stateless=True)
    method, server = run.method, run.server
    down = method.down(server, 0)
    assert down["total"].item() == 13
    data = run.federation.clients[0].train
    q, prior = part(server, "q")[f"{SITE}/J"].item(), conjugate.TAU**-2
    assert method.factor(down, {}, data)[f"{SITE}/J"].item() == pytest.approx(2 / 13 * (q - prior), rel=1e-9)
    heard_of_one = {**server, "rows": torch.tensor([2.0, 0.0], dtype=torch.float64)}
    assert method.down(heard_of_one, 0)["total"].item() == 4, "the other one is taken to be alike"
    nobody = method.down(method.init(root(1)), 0)
    some = {**nobody, **{k: down[k] for k in method.program.posterior_names}}
    assert method.factor(some, {}, data)[f"{SITE}/J"].item() == pytest.approx((q - prior) / 2, rel=1e-9)


def test_the_tilted_moments_are_the_mode_and_the_fisher_information() -> None:
    """Of a model that is not conjugate: a logistic regression of one weight, its mode by Newton's method."""
    x = torch.tensor([[1.0], [2.0], [-1.0], [0.5]], dtype=torch.float64)
    y = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    program = conjugate.logistic()
    method = FedEP(program, SGD(0.5), epochs=200, size=4)
    down = method.down(method.init(root(1)), 0)
    cavity = {SITE: (torch.full((1, 1), 0.3, dtype=torch.float64), torch.full((1, 1), 0.5, dtype=torch.float64))}
    theta, info = method.refine({**down, **method.join(down)}, cavity, Data.of(x, y), root(2))
    loc, scale = program.posterior(theta)[SITE]
    w, z = 0.0, x[:, 0]
    for _ in range(50):
        p = torch.sigmoid(w * z)
        J = float((p * (1 - p) * z * z).sum()) + 4.0
        w -= (float(((p - y) * z).sum()) + 4.0 * (w - 0.3)) / J
    assert loc.item() == pytest.approx(w, rel=1e-5)
    assert scale.item() == pytest.approx(J**-0.5, rel=1e-5)
    assert float(info["kl"]) >= 0


def test_precision_stays_positive_where_every_client_is_undamped_and_far_from_the_optimum() -> None:
    method = FedEP(build.program(), SGD(0.5), epochs=2, size=4, damping=1.0, clients=3)
    for stateless in (False, True):
        run = Run(
            replace(method, stateless=stateless), build.federation((9, 3, 8)), engine=Sequential(), rounds=4, seed=1
        )
        for now in run:
            assert len(now.clients) == 3
        assert all((v > 0).all() for k, v in part(run.server, "q").items() if k.endswith("/J"))


def test_a_beta_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="use a positive one"):
        FedEP(build.program(beta=0.0))
