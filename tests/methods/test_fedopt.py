"""Server optimizers: hand-computed steps, and what they become at the ends of their settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close
from torch import Tensor

from pyrofl.engines import Sequential
from pyrofl.method import Cohort
from pyrofl.methods import FedAdam, FedAvg, FedAvgM, FedYogi
from pyrofl.methods.fedopt import FedOpt
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.run import Run
from pyrofl.tree import Tree, only, stack

KINDS = [FedAvgM, FedAdam, FedYogi]
COHORT = Cohort(torch.arange(2), torch.tensor([30, 10]), root(0), 1)


def moved(server: Tree, names: frozenset[str], by: float) -> Tree:
    """What two clients of 30 and 10 rows send whose weighted mean is the model moved by `by`."""
    shift = lambda far: {k: v + far if k in names else v for k, v in server.items()}
    return stack([shift(2 * by), shift(-2 * by)])


def steps(method: FedOpt, *moves: float) -> list[Tensor]:
    """How far the server goes in successive rounds in which the clients' mean moves by `moves`, one tensor of each."""
    server, names, out = method.init(root(1)), method.program.trainable, []
    name = sorted(names)[0]
    for d in moves:
        new = method.aggregate(server, moved(method.down(server, 0), names, d), COHORT)
        out.append(new[name] - server[name])
        assert all(torch.allclose(new[k] - server[k], torch.full_like(server[k], float(out[-1].mean()))) for k in names)
        server = new
    return out


def expect(got: list[Tensor], *values: float) -> None:
    for step, value in zip(got, values, strict=True):
        torch.testing.assert_close(step, torch.full_like(step, value), rtol=1e-9, atol=1e-12)


def delta() -> Any:
    return build.program(guide="delta", prior="flat")


def test_momentum_by_hand() -> None:
    got = steps(FedAvgM(delta(), server_rate=0.5, momentum=0.9), 1.0, -2.0)
    expect(got, 0.5 * 1.0, 0.5 * (0.9 * 1.0 - 2.0))


def test_adam_by_hand_from_tau_squared_and_without_bias_correction() -> None:
    got = steps(FedAdam(delta(), server_rate=0.1, b1=0.9, b2=0.75, tau=0.2), 1.0, -2.0)
    m1, v1 = 0.1 * 1.0, 0.75 * 0.04 + 0.25 * 1.0
    m2, v2 = 0.9 * m1 + 0.1 * -2.0, 0.75 * v1 + 0.25 * 4.0
    expect(got, *(0.1 * m / (math.sqrt(v) + 0.2) for m, v in ((m1, v1), (m2, v2))))


def test_yogi_by_hand_where_the_second_moment_rises_and_falls() -> None:
    got = steps(FedYogi(delta(), server_rate=0.1, b1=0.9, b2=0.75, tau=0.2), 1.0, 0.1)
    m1, v1 = 0.1 * 1.0, 0.04 + 0.25 * 1.0
    m2, v2 = 0.9 * m1 + 0.1 * 0.1, v1 - 0.25 * 0.01
    expect(got, *(0.1 * m / (math.sqrt(v) + 0.2) for m, v in ((m1, v1), (m2, v2))))


def server_after(method: FedAvg) -> Tree:
    run = Run(method, build.federation((17, 3, 8), test=0), engine=Sequential(), rounds=2, seed=1)
    list(run)
    return only(run.server, method.program.theta0)


NETWORKS: list[dict[str, Any]] = [{"guide": "delta", "batch_norm": True}, {"guide": "normal"}]


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("pooling", ["scale", "mixture"])
def test_a_server_step_of_rate_one_is_fedavg(network: dict[str, Any], pooling: Any) -> None:
    program = build.program(**network)
    if pooling != "scale" and not program.mean_field:
        return
    how: dict[str, Any] = {"optimizer": SGD(0.1), "size": 4, "pooling": pooling}
    close(server_after(FedAvgM(program, momentum=0.0, **how)), server_after(FedAvg(program, **how)), tolerance=1e-10)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_a_huge_tau_makes_the_adaptive_ones_fedavg(kind: type[FedAdam]) -> None:
    program = build.program(guide="delta")
    far = kind(program, size=4, server_rate=2e9, tau=1e9, b1=0.0, b2=1 - 1e-12)  # d server_rate / (2 tau)
    close(server_after(far), server_after(FedAvg(program, size=4)), tolerance=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_running_statistics_are_averaged_and_never_stepped(kind: type[FedOpt]) -> None:
    """A step along the move of a variance from 1 to 0.01 would take it below 0."""
    program = build.program(guide="delta", batch_norm=True)
    method = kind(program, server_rate=10.0)
    server = method.init(root(1))
    small = {k: torch.full_like(v, 0.01) if k in program.buffers else v for k, v in method.down(server, 0).items()}
    new = method.aggregate(server, stack([small, small]), COHORT)
    for name in program.buffers:
        torch.testing.assert_close(new[name], small[name])
        assert not any(k.endswith(name) and k != name for k in server), "nor are there moments of them"


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_the_optimizers_state_does_not_travel(name: str) -> None:
    run = Case(name).run(rounds=1)
    run.step()
    names = run.method.program.theta0.keys()
    assert run.method.down(run.server, 0).keys() == names == (run.method.common(run.server) or {}).keys()
    assert {k.partition("/")[0] for k in run.server.keys() - names} == ({"m"} if name == "fedavgm" else {"m", "v"})


BAD = [(FedAvgM, "momentum", 1.0), (FedAdam, "b1", -0.1), (FedYogi, "b2", 1.0), (FedAdam, "tau", 0.0)]


@pytest.mark.parametrize(("kind", "name", "value"), [*BAD, (FedAvgM, "server_rate", math.inf)])
def test_what_makes_no_sense_is_refused(kind: type[FedOpt], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"method\.{name} must be "):
        kind(delta(), **{name: value})
