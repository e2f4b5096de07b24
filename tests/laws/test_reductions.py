"""One method inside another: what must come out the same, or as plain calculus says."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from torch.func import grad

from pyrofl.data import Batch, Data
from pyrofl.engines import Sequential
from pyrofl.method import Cohort
from pyrofl.methods import BayFL, FedAvg, FedProx, MetaBayFL, Pooled
from pyrofl.optim import SGD, Adam
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.tree import Tree, add, scale, stack, sub

TRAIN = (17, 3, 8)


def server_after(method: FedAvg, *, rounds: int = 2, train: tuple[int, ...] = TRAIN) -> Tree:
    run = Run(method, build.federation(train, test=0), engine=Sequential(), rounds=rounds, seed=1)
    list(run)
    return run.server


@pytest.mark.parametrize("network", [{"guide": "normal"}, {"guide": "delta", "batch_norm": True}], ids=str)
def test_fedprox_without_pull_is_fedavg(network: dict) -> None:
    program = build.program(**network)
    same(server_after(FedProx(program, mu=0.0, size=4)), server_after(FedAvg(program, size=4)))


def test_fedavg_with_a_normal_guide_is_bayfl() -> None:
    program = build.program()
    same(server_after(FedAvg(program, size=4)), server_after(BayFL(program, size=4)))


@pytest.mark.parametrize("optimizer", [SGD(0.05), Adam(0.03)], ids=["sgd", "adam"])
def test_meta_bayfl_with_one_candidate_is_bayfl_on_the_training_part(optimizer: SGD | Adam) -> None:
    program, key, data = build.program(), root(4), build.rows(20)
    meta = MetaBayFL(program, optimizers=(optimizer,), holdout=0.25, epochs=2, size=4)
    plain = BayFL(program, optimizer, epochs=2, size=4)
    start = program.init(key)
    part, held = data.split(0.25)
    assert (part.rows, held.rows) == (15, 5)
    close(meta.local(start, {}, data, key).up, plain.local(start, {}, part, key).up, tolerance=1e-12)
    whole = MetaBayFL(program, optimizers=(optimizer,), train_on="all", epochs=2, size=4)
    close(whole.local(start, {}, data, key).up, plain.local(start, {}, data, key).up, tolerance=1e-12)


def test_meta_bayfl_averages_with_equal_weights_by_default() -> None:
    program = build.program()
    ups = [program.init(root(s)) for s in (1, 2)]
    cohort = Cohort(torch.arange(2), torch.tensor([30, 10]), root(0), 1)
    equal, by_rows = (m(program).aggregate(ups[0], stack(ups), cohort) for m in (MetaBayFL, BayFL))
    name = program.loc_name(program.sites[0])
    torch.testing.assert_close(equal[name], 0.5 * ups[0][name] + 0.5 * ups[1][name])
    torch.testing.assert_close(by_rows[name], 0.75 * ups[0][name] + 0.25 * ups[1][name])


def test_fedavg_of_one_full_batch_step_is_gradient_descent_on_the_pooled_rows() -> None:
    program = build.program(guide="delta", prior="flat")
    method = FedAvg(program, SGD(0.3), epochs=1, size=32)
    federation = build.federation(TRAIN)
    pooled = Data.of(*(torch.cat([getattr(c.train, f) for c in federation.clients]) for f in ("x", "y")))
    theta = program.init(fold(root(1), "init"))
    for _ in range(3):
        gradient = grad(lambda t: program.loss(t, Batch.of(pooled.x, pooled.y), root(0)))(theta)
        theta = sub(theta, scale(gradient, 0.3))
    close(server_after(method, rounds=3), theta, tolerance=1e-12)


def test_one_client_is_its_own_average() -> None:
    case = Case("bayfl")
    federation = build.federation((9,))
    method = case.build()
    run = Run(method, federation, engine=Sequential(), rounds=1, seed=1)
    start = run.server
    run.step()
    key = fold(run.key, "round", 1)
    expected = method.local(start, {}, federation.clients[0].train, fold(key, "client", 0)).up
    close(run.server, expected, tolerance=1e-12)


def test_pooled_is_one_client_with_all_rows() -> None:
    program, federation = build.program(guide="delta"), build.federation(TRAIN)
    run = Run(Pooled(program, size=4), federation, engine=Sequential(), rounds=1, seed=1)
    start = run.server
    run.step()
    pooled = Data.of(*(torch.cat([getattr(c.train, f) for c in federation.clients]) for f in ("x", "y")))
    key = fold(fold(run.key, "round", 1), "client", 0)
    close(run.server, FedAvg(program, size=4).local(start, {}, pooled, key).up, tolerance=1e-12)


def proximal_steps(program: Program, mu: float, start: Tree, data: Data, rate: float, steps: int) -> Tree:
    """y <- y - rate (grad f(y) + mu (y - x)), by hand."""
    y = start
    for _ in range(steps):
        g = grad(lambda t: program.loss(t, Batch.of(data.x, data.y), root(0)))(y)
        y = sub(y, scale(add(g, scale(sub(y, start), mu)), rate))
    return y


def test_fedprox_pulls_by_the_half_squared_norm_from_the_second_step_on() -> None:
    program, key, data = build.program(guide="delta", prior="flat"), root(1), build.rows(10)
    start = program.init(key)
    plain = lambda epochs: FedAvg(program, SGD(0.2), epochs=epochs, size=10).local(start, {}, data, key).up
    pulled = lambda epochs: FedProx(program, SGD(0.2), epochs=epochs, size=10, mu=0.7).local(start, {}, data, key).up
    close(pulled(1), plain(1), tolerance=1e-12)
    assert distance(pulled(2), plain(2)) > 1e-3
    close(pulled(3), proximal_steps(program, 0.7, start, data, 0.2, 3), tolerance=1e-12)


def test_a_huge_pull_of_fedprox_keeps_the_model() -> None:
    program, key, data = build.program(), root(1), build.rows(16)
    start = program.init(key)
    free = FedProx(program, SGD(1e-7), epochs=25, size=4, mu=0.0).local(start, {}, data, key).up
    held = FedProx(program, SGD(1e-7), epochs=25, size=4, mu=5e6).local(start, {}, data, key).up
    assert distance(held, start) < 0.05 * distance(free, start)


def test_the_pull_of_fedprox_does_not_enter_the_log() -> None:
    program, key, data = build.program(guide="delta", prior="flat"), root(1), build.rows(10)
    start = program.init(key)
    info = FedProx(program, SGD(0.2), epochs=2, size=10, mu=0.7).local(start, {}, data, key).info
    assert float(info["loss"]) == pytest.approx(float(info["nll"] + info["neg_log_prior"]), rel=1e-12)


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_a_pull_that_makes_no_sense_is_refused(mu: float) -> None:
    with pytest.raises(ValueError, match=r"method\.mu must be 0 or positive"):
        FedProx(build.program(), mu=mu)
