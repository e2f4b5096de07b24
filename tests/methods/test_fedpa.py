"""FedPA: its recursion against the direct solve, its samples by hand, and FedAvg where it must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.compare import close, distance

from pyrofl.engines import Sequential
from pyrofl.iterates import posterior_step
from pyrofl.method import Cohort
from pyrofl.methods import FedAvg, FedPA
from pyrofl.optim import SGD
from pyrofl.random import normal, root
from pyrofl.run import Run
from pyrofl.tree import Tree, add, part, scale, stack, sub


@pytest.mark.parametrize(("l", "rho"), [(1, 0.3), (2, 0.3), (6, 0.3), (9, 4.0), (6, 0.0)])
def test_the_recursion_is_the_direct_solve(l: int, rho: float) -> None:
    samples, x = normal(root(1), (l, 5), torch.float64), normal(root(2), (5,), torch.float64)
    r = 1 / (1 + (l - 1) * rho)
    spread = samples.T.cov() if l > 1 else torch.zeros(5, 5, dtype=torch.float64)
    shrunk = r * torch.eye(5, dtype=torch.float64) + (1 - r) * spread
    expected = torch.linalg.solve(shrunk, samples.mean(0) - x)
    torch.testing.assert_close(posterior_step(samples, x, rho), expected, rtol=1e-12, atol=1e-12)


def method_of(**arguments: Any) -> FedPA:
    program = build.program(guide="delta", prior="flat")
    return FedPA(program, SGD(0.2), size=4, **{"epochs": 4, "burn_in": 1, **arguments})


def epoch_means(method: FedPA, down: Tree, key: torch.Tensor, rows: int) -> list[Tree]:
    """The mean iterate of each epoch, from FedAvg of ever more steps."""
    data, per_epoch, means = build.rows(rows), -(-rows // 4), []
    for epoch in range(int(method.epochs)):
        total: Tree | None = None
        for step in range(per_epoch):
            epochs = epoch + (step + 1) / per_epoch
            y = FedAvg(method.program, SGD(0.2), epochs=epochs, size=4).local(down, {}, data, key).up
            total = y if total is None else add(total, y)
        assert total is not None
        means.append(scale(total, 1 / per_epoch))
    return means


def test_without_covariance_the_move_is_to_the_mean_of_averaged_iterates() -> None:
    method, key = method_of(rho=0.0), root(3)
    down = method.down(method.init(root(1)), 0)
    x = {k: v for k, v in down.items() if k != "round"}
    _, *kept = epoch_means(method, x, key, 10)
    reply = method.local(down, {}, build.rows(10), key)
    mean = scale(add(add(kept[0], kept[1]), kept[2]), 1 / 3)
    close(part(reply.up, "move"), sub(mean, x), tolerance=1e-12)


def test_the_move_is_the_shrunk_solve_over_the_sampled_epochs() -> None:
    method, key = method_of(rho=2.0), root(3)
    down = method.down(method.init(root(1)), 0)
    x = {k: v for k, v in down.items() if k != "round"}
    flat = lambda t: torch.cat([v.reshape(-1) for v in t.values()])
    samples = torch.stack([flat(m) for m in epoch_means(method, x, key, 10)[1:]])
    shrunk = (torch.eye(samples.shape[1], dtype=torch.float64) + 4.0 * samples.T.cov()) / 5.0  # r = 1 / (1 + 2 * 2)
    expected = torch.linalg.solve(shrunk, samples.mean(0) - flat(x))
    move = flat(part(method.local(down, {}, build.rows(10), key).up, "move"))
    torch.testing.assert_close(move, expected, rtol=1e-9, atol=1e-12)


def server_after(method: FedAvg, rounds: int) -> Tree:
    run = Run(method, build.federation((9, 3, 8)), engine=Sequential(), rounds=rounds, seed=1)
    list(run)
    return run.server


def test_rounds_of_warmup_are_fedavg_and_later_ones_are_not() -> None:
    method = method_of(rho=1.0, warmup=2, server=SGD(1.0))
    plain = FedAvg(method.program, SGD(0.2), epochs=4, size=4)
    pick = lambda server: {k: server[k] for k in plain.program.theta0}
    close(pick(server_after(method, 2)), server_after(plain, 2), tolerance=1e-12)
    assert distance(pick(server_after(method, 3)), server_after(plain, 3)) > 1e-3


def test_the_server_steps_with_its_own_rate_and_momentum() -> None:
    """Two clients of 3 and 1 rows that ask for moves of 1 and 5, twice: 2 a round, then momentum on it."""
    method = method_of(server=SGD(0.5, momentum=0.9))
    server = start = method.init(root(1))
    moves = lambda v: {k: torch.full_like(x, v) for k, x in method.message(method.down(server, 0)).items()}
    for number in (1, 2):
        cohort = Cohort(torch.arange(2), torch.tensor([3, 1]), root(1), number)
        server = method.aggregate(server, stack([moves(1.0), moves(5.0)]), cohort)
    for name in method.program.theta0:
        torch.testing.assert_close(server[name], start[name] + 0.5 * 2.0 + 0.5 * (0.9 * 2.0 + 2.0))
    assert int(server["round"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 2, "burn_in": 2}, "leaves none"),
        ({"epochs": 2.5}, "part of one"),
        ({"epochs": 2, "burn_in": 1}, "one sample has no covariance"),
        ({"rho": -1.0}, r"method\.rho"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_of(**arguments)


def test_posteriors_of_scales_are_refused() -> None:
    with pytest.raises(ValueError, match="use guide = 'delta'"):
        FedPA(build.program())
