"""pFedMe: its inner solution, both of its steps by hand, the server's mixing, and the rates that it refuses."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from support.quadratic import gradient, hessian, lines, regression, vector

from pyrofl.method import Cohort
from pyrofl.methods import FedAvg, PFedMe
from pyrofl.optim import SGD, Adam
from pyrofl.random import root
from pyrofl.tree import only, stack

LAM, ETA = 4.0, 0.05


def test_the_inner_solution_on_a_quadratic_loss_is_the_proximal_point() -> None:
    program, data = regression(), lines(12)
    method = PFedMe(program, SGD(ETA), size=12, lam=LAM, inner_lr=0.08, inner_steps=300)
    down = method.init(root(1))
    reply = method.local(down, {}, data, root(2))
    w, A, eye = vector(program, down), hessian(data), torch.eye(3, dtype=torch.float64)
    b = w - torch.linalg.solve(A, gradient(data, w))  # the minimum of the loss
    theta = torch.linalg.solve(A + LAM * eye, A @ b + LAM * w)
    torch.testing.assert_close(vector(program, reply.own), theta, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(vector(program, reply.up), w - ETA * LAM * (w - theta), rtol=1e-9, atol=1e-9)
    assert float(reply.info["loss"]) == pytest.approx(-float(program.log_likelihood(reply.own, data)), rel=1e-9)


def test_theta_goes_on_from_its_last_value_within_a_round_and_starts_each_at_w() -> None:
    program, data = regression(), lines(12)
    method = PFedMe(program, SGD(ETA), size=12, epochs=3, lam=LAM, inner_lr=0.08, inner_steps=2)
    down = method.init(root(1))
    w = theta = vector(program, down)
    for _ in range(3):
        for _ in range(2):
            theta = theta - 0.08 * (gradient(data, theta) + LAM * (theta - w))
        w = w - ETA * LAM * (w - theta)
    far = program.init(root(9))
    reply = method.local(down, far, data, root(2))
    torch.testing.assert_close(vector(program, reply.own), theta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(vector(program, reply.up), w, rtol=1e-12, atol=1e-12)


def test_one_inner_step_and_one_local_step_are_a_step_of_fedavg() -> None:
    program, data, key = build.program(guide="delta"), build.rows(8), root(2)
    method = PFedMe(program, SGD(0.05), size=8, lam=LAM, inner_lr=0.25, inner_steps=1)
    down = method.init(root(1))
    expected = FedAvg(program, SGD(0.05 * LAM * 0.25), size=8).local(down, {}, data, key).up
    close(method.local(down, {}, data, key).up, expected, tolerance=1e-12)


def test_a_strong_pull_keeps_theta_at_w() -> None:
    program, data = build.program(guide="delta"), build.rows(8)
    down = program.init(root(1))
    for lam in (1e2, 1e4):
        method = PFedMe(program, SGD(1e-3 / lam), size=4, lam=lam, inner_lr=0.5 / lam, inner_steps=20)
        assert distance(method.local(down, {}, data, root(2)).own, down) < 3 / lam


@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_the_server_goes_beta_of_the_way_to_the_plain_mean_with_the_weights_alone(beta: float) -> None:
    program = build.program(guide="delta", batch_norm=True)
    method = PFedMe(program, beta=beta)
    server, ups = method.init(root(0)), [program.init(root(s)) for s in (1, 2)]
    for i, up in enumerate(ups):
        up.update({k: torch.full_like(up[k], 0.1 + i) for k in program.buffers})
    new = method.aggregate(server, stack(ups), Cohort(torch.arange(2), torch.tensor([30, 10]), root(3), 1))
    for k in program.trainable:
        middle = (ups[0][k] + ups[1][k]) / 2
        torch.testing.assert_close(new[k], (1 - beta) * server[k] + beta * middle, rtol=1e-12, atol=1e-12)
    for k in program.buffers:
        torch.testing.assert_close(new[k], torch.full_like(new[k], 0.6))  # not extrapolated: a variance stays positive


def test_the_personal_model_has_its_own_statistics_and_is_what_a_client_predicts_with() -> None:
    run = Case("pfedme", network={"batch_norm": True}).run(rounds=2)
    list(run)
    program, own = run.method.program, run.states.get(0) or {}
    same(run.personal(0), own)
    same(only(own, program.buffers), only(program.refresh(own, run.train[0]), program.buffers))
    assert distance(own, run.server) > 1e-3
    same(run.personal(4), run.method.common(run.server) or {})  # it has no rows


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lam": 150.0, "inner_lr": 0.001}, r"lam = 150 overshoots.* rate \* lam <= 1, here 1\.5"),
        ({"lam": 20.0, "inner_lr": 0.1}, r"inner_lr \* lam < 2, here 2"),
        ({"lam": 0.0}, "lam must be positive"),
        ({"beta": 0.0}, "beta must be positive"),
        ({"inner_steps": 0}, "inner_steps must be at least 1"),
        ({"optimizer": SGD(0.01, momentum=0.9)}, "plain SGD"),
        ({"optimizer": SGD(0.01, decay=0.1)}, "plain SGD"),
        ({"optimizer": Adam(0.01)}, "plain SGD"),
    ],
)
def test_settings_that_diverge_or_switch_the_method_off_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=rf"method\..*{text}"):
        PFedMe(build.program(guide="delta"), **options)
