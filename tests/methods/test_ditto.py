"""Ditto: the ends of its pull, which model it is pulled to, and what stays at the client."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from torch.func import grad

from pyrofl.data import Batch, Data
from pyrofl.method import Reply
from pyrofl.methods import Alone, Ditto, FedAvg
from pyrofl.optim import SGD, Adam
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import Tree, only, zeros

NETWORKS = pytest.mark.parametrize("network", [{"guide": "delta", "batch_norm": True}, {"guide": "normal"}], ids=str)


def moved(program: Program, key: int) -> Tree:
    """A personal model that is not the global one."""
    return program.init(root(key))


@NETWORKS
def test_without_pull_the_personal_model_is_trained_alone(network: dict) -> None:
    program, data, key = build.program(**network), build.rows(9), root(2)
    method = Ditto(program, SGD(0.05), size=4, lam=0.0, own_optimizer=Adam(0.03), own_epochs=3)
    down, own = method.init(root(1)), moved(program, 5)
    alone = Alone(program, Adam(0.03), epochs=3, size=4).local({}, own, data, fold(key, "own")).own
    same(method.local(down, own, data, key).own, alone)


@NETWORKS
def test_the_global_model_is_that_of_fedavg_whatever_the_pull(network: dict) -> None:
    program, data, key = build.program(**network), build.rows(9), root(2)
    down, own = program.init(root(1)), moved(program, 5)
    expected = FedAvg(program, SGD(0.05), size=4, epochs=2).local(down, {}, data, key).up
    same(Ditto(program, SGD(0.05), size=4, epochs=2, lam=3.0).local(down, own, data, key).up, expected)


def test_a_strong_pull_ends_at_the_model_that_was_received() -> None:
    program, data = build.program(guide="delta"), build.rows(9)
    down, own = program.init(root(1)), moved(program, 5)
    for lam in (1e2, 1e4):
        method = Ditto(program, SGD(0.3), size=9, epochs=9, lam=lam, own_optimizer=SGD(0.5 / lam), own_epochs=40)
        reply = method.local(down, own, data, root(2))
        assert distance(reply.own, down) < 2 / lam, "the gradient of the loss over lam is what is left"
        assert distance(reply.up, down) > 0.05, "a pull to the y of this round would end there"


def by_hand(program: Program, v: Tree, w: Tree, data: Data, *, lam: float, rate: float, steps: int) -> Tree:
    """v <- v - rate (grad f(v) + lam (v - w)) on all rows, w as it was."""
    for _ in range(steps):
        g = grad(lambda t: program.loss(t, Batch.of(data.x, data.y), root(0)))(v)
        v = {k: v[k] - rate * (g[k] + lam * (v[k] - w[k])) for k in v}
    return v


def test_the_pull_is_to_the_received_model_and_by_the_half_squared_norm() -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(10)
    method = Ditto(program, SGD(0.3), size=10, epochs=4, lam=0.7, own_optimizer=SGD(0.2), own_epochs=3)
    down, own = method.init(root(1)), moved(program, 5)
    expected = by_hand(program, own, down, data, lam=0.7, rate=0.2, steps=3)
    close(method.local(down, own, data, root(2)).own, expected, tolerance=1e-12)


def test_the_two_models_share_no_optimizer() -> None:
    program, data, key = build.program(guide="delta"), build.rows(10), root(2)
    down, own = program.init(root(1)), moved(program, 5)
    slow, fast = (
        Ditto(program, SGD(0.1, momentum=0.9), size=4, own_optimizer=o).local(down, own, data, key)
        for o in (SGD(0.01), SGD(0.1, momentum=0.9))
    )
    same(slow.up, fast.up)
    assert distance(slow.own, fast.own) > 1e-3


def test_the_running_statistics_of_the_personal_model_are_its_own() -> None:
    program, data = build.program(guide="delta", batch_norm=True), build.rows(12)
    method = Ditto(program, size=4, epochs=2)
    reply = method.local(method.init(root(1)), moved(program, 5), data, root(2))
    expected = program.refresh(reply.own, data)
    same(only(reply.own, program.buffers), only(expected, program.buffers))
    assert distance(only(reply.own, program.buffers), only(reply.up, program.buffers)) > 1e-3


def test_a_client_predicts_with_its_own_model_and_a_new_one_with_the_global() -> None:
    run = Case("ditto").run(rounds=2)
    list(run)
    same(run.personal(0), run.states.get(0) or {})
    assert distance(run.personal(0), run.server) > 1e-3
    same(run.personal(4), run.method.common(run.server) or {})  # it has no rows


def test_both_losses_are_in_the_log() -> None:
    program, data = build.program(guide="delta"), build.rows(8)
    method = Ditto(program, size=4, epochs=2, own_epochs=3)
    reply = method.local(program.init(root(1)), moved(program, 5), data, root(2))
    assert isinstance(reply, Reply)
    assert (float(reply.info["steps"]), float(reply.info["own_steps"])) == (4, 6)
    assert float(reply.info["loss"]) != float(reply.info["own_loss"])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lam", -0.1, "must be 0 or positive"),
        ("lam", float("nan"), "must be 0"),
        ("own_epochs", 0.0, "must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: float, text: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.{name} {text}"):
        Ditto(build.program(), **{name: value})


def test_the_global_model_does_not_move_with_the_personal_one() -> None:
    program, data, key = build.program(guide="delta"), build.rows(8), root(2)
    method, down = Ditto(program, size=4), program.init(root(1))
    one, other = (method.local(down, own, data, key).up for own in (moved(program, 5), zeros(down)))
    same(one, other)
    assert all(torch.isfinite(v).all() for v in one.values())
