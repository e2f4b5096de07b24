"""FedPHP: its moving average by hand, what is distilled from whom, and how it begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from support.quadratic import regression
from torch.func import grad

from pyrofl.assembly import assemble
from pyrofl.config import config_of
from pyrofl.data import Batch, Data
from pyrofl.methods import FedAvg, FedPHP
from pyrofl.optim import SGD
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.tree import Tree, add, only, scale, sub

NETWORKS = pytest.mark.parametrize("network", [{}, {"batch_norm": True}], ids=str)


def after(program: Program, rounds: float) -> Tree:
    """The state of a client with a past."""
    return {**program.init(root(5)), "rounds": torch.tensor(rounds, dtype=torch.float64)}


@NETWORKS
def test_a_first_round_is_fedavg_and_the_past_begins_with_its_model(network: dict) -> None:
    program, data, key = build.program(guide="delta", **network), build.rows(9), root(2)
    method = FedPHP(program, SGD(0.1), size=4, epochs=2, rounds=10, lam=0.5)
    down = method.init(root(1))
    reply = method.local(down, method.join(down), data, key)
    expected = FedAvg(program, SGD(0.1), size=4, epochs=2).local(down, {}, data, key).up
    same(reply.up, expected)
    same(reply.own, {**expected, "rounds": torch.tensor(1.0, dtype=torch.float64)})


@pytest.mark.parametrize(("c", "m"), [(1, 0.9 / 8), (4, 0.45), (8, 0.9), (11, 0.9)])
def test_the_memory_grows_with_the_rounds_a_client_took_part_in(c: int, m: float) -> None:
    program, data = build.program(guide="delta"), build.rows(9)
    method = FedPHP(program, size=4, rounds=16, participation=0.5)
    own = after(program, float(c))
    reply = method.local(method.init(root(1)), own, data, root(2))
    assert float(reply.info["memory"]) == pytest.approx(m)
    expected = add(scale(only(own, program.theta0), m), scale(reply.up, 1 - m))
    close({k: reply.own[k] for k in expected}, expected, tolerance=1e-12)
    assert float(reply.own["rounds"]) == c + 1, "a counter is counted, not averaged"


def test_without_memory_a_client_keeps_its_last_local_model() -> None:
    program, data = build.program(guide="delta"), build.rows(9)
    reply = FedPHP(program, size=4, rounds=4, most=0.0).local(program.init(root(1)), after(program, 3.0), data, root(2))
    same({k: reply.own[k] for k in reply.up}, reply.up)


def test_the_running_statistics_of_the_past_model_are_its_own() -> None:
    program, data = build.program(guide="delta", batch_norm=True), build.rows(12)
    method = FedPHP(program, size=4, rounds=4)
    own = method.local(method.init(root(1)), after(program, 3.0), data, root(2)).own
    theta = only(own, program.theta0)
    same(theta, program.refresh(theta, data))


def logs(program: Program, theta: Tree, data: Data, T: float) -> torch.Tensor:
    return torch.log_softmax(program.predict(theta, data.x, None) / T, -1)


@pytest.mark.parametrize("softened", ["teacher", "both"])
def test_a_step_is_of_the_mixed_loss_by_hand(softened: Any) -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(8)
    method = FedPHP(program, SGD(0.2), size=8, rounds=4, lam=0.3, temperature=4.0, softened=softened)
    down, own = method.init(root(1)), after(program, 2.0)
    past = logs(program, only(own, program.theta0), data, 4.0)

    def loss(y: Tree) -> torch.Tensor:
        student = logs(program, y, data, 4.0 if softened == "both" else 1.0)
        kl = (past.exp() * (past - student)).sum(-1).mean() * (16 if softened == "both" else 1)
        return 0.7 * program.loss(y, Batch.of(data.x, data.y), root(0)) + 0.3 * kl

    expected = sub(down, scale(grad(loss)(down), 0.2))
    reply = method.local(down, own, data, root(2))
    close(reply.up, expected, tolerance=1e-12)
    assert float(reply.info["loss"]) == pytest.approx(float(loss(down)))


def test_the_labels_keep_their_weight_and_the_past_draws_the_model() -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(12)
    down, own = program.init(root(1)), after(program, 2.0)

    def gap(lam: float) -> tuple[float, float]:
        method = FedPHP(program, SGD(0.3), size=12, epochs=30, rounds=4, lam=lam, temperature=1.0)
        y = method.local(down, own, data, root(2)).up
        batch = Batch.of(data.x, data.y)
        return float(method.distance(own, y, batch).mean()), float(program.loss(y, batch, root(0)))

    (far, fit), (near, between) = gap(0.0), gap(0.9)
    assert near < 0.5 * far
    assert fit < between


def test_a_past_model_like_the_new_one_costs_nothing() -> None:
    program, data = build.program(guide="delta", batch_norm=True), build.rows(9)
    batch = Batch.of(data.x, data.y)
    y = program.refresh(program.init(root(1)), data)
    gone = FedPHP(program, temperature=1.0).distance(y, y, batch)
    torch.testing.assert_close(gone, torch.zeros_like(gone), rtol=0, atol=1e-9)


def test_a_client_predicts_with_its_past_and_a_new_one_with_the_global_model() -> None:
    run = Case("fedphp").run(rounds=3)
    list(run)
    own = run.states.get(0) or {}
    same(run.personal(0), only(own, run.method.program.theta0))
    assert distance(run.personal(0), run.server) > 1e-4 and float(own["rounds"]) == 3
    same(run.personal(4), run.method.common(run.server) or {})  # it has no rows


def test_the_run_tells_how_often_a_client_takes_part() -> None:
    table = {
        "rounds": 7,
        "data": {"name": "synthetic", "sites": 4},
        "model": "models.logistic:Logistic",
        "method": "fedphp",
        "cohort": {"clients": 1},
    }
    method = assemble(config_of(table)).method
    assert isinstance(method, FedPHP) and (method.rounds, method.participation) == (7, 0.25)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lam": 1.0}, "method.lam must be from 0 to below 1.* no weight to the labels"),
        ({"most": 1.5}, "method.most must be from 0 to 1"),
        ({"temperature": 0.0}, "method.temperature must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FedPHP(build.program(guide="delta"), **options)


def test_what_cannot_be_distilled_is_refused() -> None:
    with pytest.raises(ValueError, match="use guide = 'delta'"):
        FedPHP(build.program())
    with pytest.raises(ValueError, match="a gaussian likelihood has none: set it to 1"):
        FedPHP(regression())
    assert FedPHP(regression(), temperature=1.0).temperature == 1
