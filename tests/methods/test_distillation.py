"""Distillation as an option of BayFL and Meta-BayFL: what teaches, what moves, and what stays."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.compare import close, distance, same
from support.tables import small

from pyrofl.assembly import assemble
from pyrofl.config import config_of
from pyrofl.distill import Distillation, distill, ensemble
from pyrofl.method import Cohort
from pyrofl.methods import BayFL, MetaBayFL
from pyrofl.optim import SGD
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import only, stack, unstack, without

X = build.rows(20, seed=7).x
HOW = Distillation(SGD(0.05), epochs=3, size=8, temperature=1.0, average_every=0)
COHORT = Cohort(torch.arange(2), torch.tensor([20, 10]), root(5), 1)


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program()


@pytest.mark.parametrize("kind", [BayFL, MetaBayFL])
def test_the_means_learn_what_all_posteriors_predict_and_the_scales_stay(program: Program, kind: type[BayFL]) -> None:
    ups = stack([program.init(root(s)) for s in (1, 2)])
    pooled = kind(program).aggregate({}, ups, COHORT)
    new = kind(program, distillation=HOW, teacher_draws=3, unlabelled=X).aggregate({}, ups, COHORT)
    scales = {program.scale_name(s) for s in program.sites}
    same(only(new, scales), only(pooled, scales))
    assert distance(without(new, scales), without(pooled, scales)) > 1e-4
    log_p = ensemble(program, [pooled, unstack(ups, 0), unstack(ups, 1)], X, root(5), draws=3)
    expected, _ = distill(program, pooled, log_p, X, fold(root(5), "distill"), HOW, names=program.trainable - scales)
    close(new, expected, tolerance=1e-12)


def test_clients_that_agree_teach_nothing_new() -> None:
    p = build.program(guide="delta")
    theta = p.init(root(1))
    new = BayFL(p, distillation=HOW, unlabelled=X).aggregate({}, stack([theta, theta]), COHORT)
    close(new, theta, tolerance=1e-12)


def test_it_is_off_unless_asked_for(program: Program) -> None:
    assert BayFL(program).distillation is None and MetaBayFL(program).distillation is None
    ups = stack([program.init(root(s)) for s in (1, 2)])
    same(
        MetaBayFL(program, unlabelled=X).aggregate({}, ups, COHORT),
        MetaBayFL(program).aggregate({}, ups, COHORT),
    )


@pytest.mark.parametrize("kind", [BayFL, MetaBayFL])
def test_it_needs_rows(program: Program, kind: type[BayFL]) -> None:
    with pytest.raises(ValueError, match=r"its distillation, distils on unlabelled rows .* data\.unlabelled = 1000"):
        kind(program, distillation=HOW)
    with pytest.raises(ValueError, match=r"method\.teacher_draws must be at least 1"):
        kind(program, teacher_draws=0)


def test_by_configuration() -> None:
    table = small(
        data={"name": "digits", "clients": 3, "limit": 20, "unlabelled": 30},
        method={"name": "meta_bayfl", "epochs": 1.0, "size": 16, "distillation": {"epochs": 1.0}},
        rounds=1,
    )
    run = assemble(config_of(table)).run()
    assert run.step().left_out == {} and run.round == 1
    assert isinstance(run.method, MetaBayFL)
    assert run.method.unlabelled is not None and run.method.unlabelled.shape == (30, 64)
