"""BayFL: the rates of the paper's schedules, and the pooling of posteriors."""

from __future__ import annotations

import math

import pytest
import torch
from support import build
from support.compare import close

from pyrofl.engines import Sequential
from pyrofl.meanfield import pool
from pyrofl.method import Cohort
from pyrofl.methods import BayFL, FedAvg
from pyrofl.optim import SGD, Adam
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.tree import stack

K = 4


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ("a", lambda k: 0.2),
        ("a/sqrt(K)", lambda k: 0.2 / math.sqrt(K)),
        ("a/k", lambda k: 0.2 / k),
        ("a/sqrt(k)", lambda k: 0.2 / math.sqrt(k)),
    ],
)
def test_the_rates_of_rounds_1_to_K_are_the_schedules(schedule: str, rate: object) -> None:
    program = build.program()
    method = BayFL(program, SGD(0.2), size=4, schedule=schedule, rounds=K)  # type: ignore[arg-type]
    run = Run(method, build.federation((6, 3)), engine=Sequential(), rounds=K, seed=2)
    for k in range(1, K + 1):
        start, key = run.server, fold(run.key, "round", k)
        now = run.step()
        expected = rate(k)  # type: ignore[operator]
        if schedule != "a":
            assert now.info["site0"]["rate"] == pytest.approx(expected, rel=1e-12)
        plain = BayFL(program, SGD(expected), size=4)
        ups = [plain.local(start, {}, run.train[i], fold(key, "client", i)).up for i in range(2)]
        new = plain.aggregate(start, stack(ups), Cohort(torch.arange(2), torch.tensor([6, 3]), key, k))
        close(
            {name: run.server[name] for name in new if name != "round"}, {n: v for n, v in new.items() if n != "round"}
        )


def test_a_schedule_survives_a_skipped_round() -> None:
    method = BayFL(build.program(), SGD(0.2), size=4, schedule="a/k", rounds=5)
    server = method.init(root(1))
    up = method.local(server, {}, build.rows(6), root(2)).up
    assert "round" not in up, "the server's counter does not travel back"
    later = method.aggregate(server, stack([up]), Cohort(torch.tensor([0]), torch.tensor([6]), root(3), 3))
    assert int(later["round"]) == 4 and later["round"].dtype == torch.int64


@pytest.mark.parametrize("rule", ["scale", "variance", "mixture", "product"])
def test_the_server_pools_posteriors_by_the_rule(rule: str) -> None:
    program = build.program()
    method = BayFL(program, pooling=rule)  # type: ignore[arg-type]
    ups = [program.init(root(s)) for s in (1, 2)]
    for i, up in enumerate(ups):
        up.update({program.scale_name(s): up[program.scale_name(s)] + i for s in program.sites})
    cohort = Cohort(torch.arange(2), torch.tensor([30, 10]), root(0), 1)
    got = program.posterior(method.aggregate(ups[0], stack(ups), cohort))
    expected = pool(
        {
            s: tuple(torch.stack(p) for p in zip(*(program.posterior(u)[s] for u in ups), strict=True))
            for s in program.sites
        },  # type: ignore[misc]
        torch.tensor([30.0, 10.0]),
        rule,
        prior={s: (torch.zeros_like(v), torch.ones_like(v)) for s, (v, _) in program.posterior(ups[0]).items()},
    )
    for s in program.sites:
        torch.testing.assert_close(got[s], expected[s], rtol=1e-7, atol=1e-9)


def test_the_unconstrained_rule_averages_the_numbers_that_travel() -> None:
    program = build.program()
    ups = [program.init(root(s)) for s in (1, 2)]
    name = program.scale_name(program.sites[0])
    ups[1][name] = ups[1][name] + 2
    cohort = Cohort(torch.arange(2), torch.tensor([30, 10]), root(0), 1)
    new = BayFL(program, pooling="unconstrained").aggregate(ups[0], stack(ups), cohort)
    torch.testing.assert_close(new[name], 0.75 * ups[0][name] + 0.25 * ups[1][name])


def test_rules_that_need_scales_or_gaussian_priors_say_so() -> None:
    with pytest.raises(ValueError, match="a point guide has none; use guide = 'normal'"):
        FedAvg(build.program(guide="delta"), pooling="mixture")
    with pytest.raises(ValueError, match=r"'product' counts the prior once, .*such Normals in a Pyro model"):
        BayFL(build.program(prior="laplace"), pooling="product")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "method.epochs must be positive, got 0"),
        ({"epochs": math.nan}, "method.epochs must be positive"),
        ({"epochs": math.inf}, "method.epochs must be positive"),
        ({"size": 0}, "method.size must be at least 1 row, got 0"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayFL(build.program(), **arguments)


def test_adam_starts_afresh_every_round() -> None:
    program, data = build.program(), build.rows(8)
    method = BayFL(program, Adam(0.05), size=4)
    first = method.local(program.init(root(1)), {}, data, root(2))
    assert first.own == {}, "an optimizer's state is no state of the client"
