"""AdaPeD: its three steps by hand, the ends of psi, and which model the divergence is taken from."""

from __future__ import annotations

import math

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from support.quadratic import gradient, hessian, lines, regression, tree, vector

from pyrofl.likelihoods import predictive_kl
from pyrofl.method import Cohort
from pyrofl.methods import AdaPeD, Alone
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.tree import Tree, only, stack


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_the_three_steps_on_a_quadratic_loss_by_hand() -> None:
    program, data = regression(), lines(12)
    method = AdaPeD(program, SGD(0.05), size=12, epochs=3, first_psi=1.5, floor=0.2)
    down, own = method.init(root(1)), program.init(root(2))
    theta, mu, r, H = vector(program, own), vector(program, down), math.log(1.5), hessian(data)
    for _ in range(3):
        psi = math.exp(r)
        gap = theta - mu
        kd = float(gap @ H @ gap) / 2  # KL of two Normals of the same noise, in the mean over rows
        slope = 1 / 2 - kd / (2 * psi)  # of log psi
        theta, mu, r = (
            theta - 0.05 * (gradient(data, theta) + H @ gap / (2 * psi)),
            mu + 0.05 * H @ gap / (2 * psi),
            r - 0.05 * slope,
        )
    reply = method.local(down, own, data, root(3))
    torch.testing.assert_close(vector(program, reply.own), theta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(vector(program, reply.up), mu, rtol=1e-12, atol=1e-12)
    assert float(reply.up["psi"]) == pytest.approx(math.exp(r), rel=1e-12)
    assert float(reply.info["distance"]) == pytest.approx(kd, rel=1e-12)


def test_the_divergence_is_from_the_global_predictions() -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(9)
    down, own = {**program.init(root(1)), "psi": number(1.0)}, program.init(root(2))
    info = AdaPeD(program, SGD(1e-9), size=9).local(down, own, data, root(3)).info
    mu, theta = (program.predict(t, data.x, None) for t in (down, own))
    there, back = (float(predictive_kl("categorical", *pair).mean()) for pair in ((mu, theta), (theta, mu)))
    assert float(info["distance"]) == pytest.approx(there) and there != pytest.approx(back, rel=1e-3)
    assert float(info["loss"]) == pytest.approx(float(info["nll"]) + math.log(2) / 2 + there / 2)


@pytest.mark.parametrize("network", [{}, {"batch_norm": True}], ids=str)
def test_a_large_psi_leaves_the_personal_model_alone(network: dict) -> None:
    program, data, key = build.program(guide="delta", **network), build.rows(9), root(3)
    method = AdaPeD(program, SGD(0.1), size=4, epochs=2, first_psi=1e14)
    down, own = method.init(root(1)), program.init(root(2))
    reply = method.local(down, own, data, key)
    close(reply.own, Alone(program, SGD(0.1), size=4, epochs=2).local({}, own, data, key).own, tolerance=1e-10)
    close(only(reply.up, program.trainable), only(down, program.trainable), tolerance=1e-10)


def test_a_small_psi_makes_the_predictions_meet() -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(9)

    def left(psi: float, rate: float) -> float:
        method = AdaPeD(program, SGD(rate), size=9, epochs=200, first_psi=1.01 * psi, floor=psi)
        reply = method.local(method.init(root(1)), program.init(root(2)), data, root(3))
        outs = (program.predict(t, data.x, None) for t in (reply.up, reply.own))
        return float(predictive_kl("categorical", *outs).mean())

    assert left(1e-3, 1e-3) < 0.01 * left(1e3, 0.1)


def test_psi_grows_where_clients_differ_and_falls_to_its_floor_where_they_do_not() -> None:
    program, data = regression(), lines(12)
    method = AdaPeD(program, SGD(0.05), size=12, epochs=20, first_psi=1.0, floor=0.1)
    mu = method.init(root(1))
    far = {k: v + 3.0 for k, v in program.init(root(1)).items()}
    assert float(method.local(mu, far, data, root(3)).up["psi"]) > 1.2
    alike = AdaPeD(program, SGD(0.02), size=12, epochs=250, first_psi=1.0, floor=0.1)
    w = vector(program, mu)
    best = tree(program, w - torch.linalg.solve(hessian(data), gradient(data, w)))
    reply = alike.local({**mu, **best}, best, data, root(3))
    assert 0.1 <= float(reply.up["psi"]) < 0.1 * math.exp(0.011)


def test_psi_at_its_floor_can_leave_it_again() -> None:
    program, data = regression(), lines(12)
    method = AdaPeD(program, SGD(1e-3), size=12, epochs=5, floor=0.1)
    down = {**method.init(root(1)), "psi": number(0.1)}
    far = {k: v + 3.0 for k, v in program.init(root(1)).items()}
    assert float(method.local(down, far, data, root(3)).up["psi"]) > 0.15


def test_the_server_averages_mu_and_psi_without_weights() -> None:
    program = build.program(guide="delta")
    method = AdaPeD(program)
    ups = [{**program.init(root(s)), "psi": number(psi)} for s, psi in ((1, 0.5), (2, 2.5))]
    new = method.aggregate(
        method.init(root(0)), stack(ups), Cohort(torch.arange(2), torch.tensor([30, 10]), root(3), 1)
    )
    expected = {k: (ups[0][k] + ups[1][k]) / 2 for k in ups[0]}
    close(new, expected, tolerance=1e-12)
    assert float(new["psi"]) == 1.5


def test_a_client_predicts_with_its_own_model_and_a_new_one_with_the_global() -> None:
    run = Case("adaped", network={"batch_norm": True}).run(rounds=2)
    list(run)
    own: Tree = run.states.get(0) or {}
    same(run.personal(0), own)
    common = run.method.common(run.server) or {}
    assert distance(own, common) > 1e-3 and "psi" not in common
    same(run.personal(4), common)  # it has no rows


@pytest.mark.parametrize("options", [{"floor": 0.0}, {"floor": 2.0}, {"first_psi": math.inf}])
def test_bounds_of_psi_that_make_no_sense_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"method\.first_psi must be finite and above method\.floor"):
        AdaPeD(build.program(guide="delta"), **options)


def test_a_posterior_is_refused() -> None:
    with pytest.raises(ValueError, match="use guide = 'delta'"):
        AdaPeD(build.program())
