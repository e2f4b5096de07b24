"""Distillation: what the ensemble predicts, what the student learns from it, and when it must not move."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support import build
from support.compare import close, distance, same
from support.tables import small

from pyrofl.assembly import assemble
from pyrofl.config import ConfigError, config_of
from pyrofl.distill import Distillation, distill, ensemble, log_probabilities, sharpened
from pyrofl.optim import SGD, Adam
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import only, without

X = build.rows(20, seed=7).x
PLAIN = Distillation(SGD(0.05), epochs=3, size=8, temperature=1.0, average_every=0)


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program(guide="delta", prior="flat")


def test_the_ensemble_averages_probabilities_not_logits(program: Program) -> None:
    a, b = program.init(root(1)), program.init(root(2))
    p = [torch.softmax(program.predict(t, X, None), -1) for t in (a, b)]
    got = ensemble(program, [a, b], X, root(0), rows=7)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got.exp(), (p[0] + p[1]) / 2)


def test_draws_of_a_posterior_are_averaged_too() -> None:
    p = build.program()
    theta = p.init(root(1))
    by_hand = torch.stack([torch.softmax(p.predict(theta, X, fold(root(0), 0, s)), -1) for s in range(5)]).mean(0)
    torch.testing.assert_close(ensemble(p, [theta], X, root(0), draws=5).exp(), by_hand)


def test_far_classes_do_not_underflow() -> None:
    out = torch.tensor([[0.0, -2000.0, -1000.0]])
    assert sharpened(log_probabilities("categorical", out), 0.5).tolist() == [[0.0, -4000.0, -2000.0]]


def test_sharpening_is_a_power() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    expected = torch.tensor([[0.25, 0.09, 0.04]], dtype=torch.float64) / 0.38
    torch.testing.assert_close(sharpened(p.log(), 0.5).exp(), expected)
    torch.testing.assert_close(sharpened(p.log(), 1.0).exp(), p)


def test_two_classes_of_one_logit() -> None:
    log_p = log_probabilities("bernoulli", torch.tensor([[0.3], [-40.0], [800.0]], dtype=torch.float64))
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(log_p[0, 1].exp(), torch.sigmoid(torch.tensor(0.3, dtype=torch.float64)))
    assert torch.isfinite(log_p).all()


@pytest.mark.parametrize("every", [0, 1])
def test_a_student_that_is_the_teacher_does_not_move(program: Program, every: int) -> None:
    theta = program.init(root(1))
    log_p = ensemble(program, [theta], X, root(0))
    how = dataclasses.replace(PLAIN, optimizer=SGD(0.5, momentum=0.9), epochs=20, average_every=every)
    student, kl = distill(program, theta, log_p, X, root(3), how)
    close(student, theta, tolerance=1e-12)
    assert float(kl) == pytest.approx(0, abs=1e-12)
    moved, _ = distill(program, theta, log_p, X, root(3), dataclasses.replace(how, temperature=0.5))
    assert distance(moved, theta) > 1e-3, "a sharper target moves it"


def test_the_student_comes_close_to_another_teacher(program: Program) -> None:
    teacher, student = program.init(root(1)), program.init(root(2))
    log_p = ensemble(program, [teacher], X, root(0))
    how = dataclasses.replace(PLAIN, optimizer=Adam(0.03), epochs=120)
    moved, kl = distill(program, student, log_p, X, root(3), how)
    before = (log_p.exp() * (log_p - program.predict(student, X, None))).sum(1).mean()
    after = (log_p.exp() * (log_p - program.predict(moved, X, None))).sum(1).mean()
    assert float(after) < 0.02 * float(before)
    assert float(kl) == pytest.approx(float(after), rel=0.5)


def test_the_targets_probabilities_weigh_the_logarithms(program: Program) -> None:
    """KL(target || student): the other direction would have another value, and another first step."""
    teacher, student = program.init(root(1)), program.init(root(2))
    log_p = ensemble(program, [teacher], X, root(0))
    weights = {k: v.clone().requires_grad_() for k, v in student.items()}
    log_q = program.predict(weights, X, None)
    forward, backward = (log_p.exp() * (log_p - log_q)).sum(1).mean(), (log_q.exp() * (log_q - log_p)).sum(1).mean()
    assert abs((forward - backward).item()) > 0.01 * forward.item()
    slope = dict(zip(weights, torch.autograd.grad(forward, list(weights.values())), strict=True))
    how = dataclasses.replace(PLAIN, optimizer=SGD(0.1), epochs=1, size=len(X))
    moved, kl = distill(program, student, log_p, X, root(3), how)
    assert float(kl) == pytest.approx(forward.item(), rel=1e-9)
    close(moved, {k: v - 0.1 * slope[k] for k, v in student.items()}, tolerance=1e-12)


def test_weight_averaging_is_the_mean_of_the_visited_steps(program: Program) -> None:
    teacher, student = program.init(root(1)), program.init(root(2))
    log_p = ensemble(program, [teacher], X, root(0))
    steps = math.ceil(20 / 8) * 4  # 12; the average begins after 3 of them, and takes every second: 3, 5, 7, 9, 11
    how = dataclasses.replace(PLAIN, epochs=4, average_after=0.25, average_every=2)
    after = [
        distill(program, student, log_p, X, root(3), dataclasses.replace(PLAIN, epochs=t / 3))[0]
        for t in range(1, steps + 1)
    ]
    expected = {k: torch.stack([after[t - 1][k] for t in (3, 5, 7, 9, 11)]).mean(0) for k in student}
    got, _ = distill(program, student, log_p, X, root(3), how)
    # a shorter run draws the same orders for the epochs that it has
    close(got, expected, tolerance=1e-9)


def test_an_average_that_never_begins_leaves_the_last_student(program: Program) -> None:
    teacher, student = program.init(root(1)), program.init(root(2))
    log_p = ensemble(program, [teacher], X, root(0))
    late = dataclasses.replace(PLAIN, average_after=1.0, average_every=5)
    same(
        distill(program, student, log_p, X, root(3), late)[0],
        distill(program, student, log_p, X, root(3), PLAIN)[0],
    )


def test_statistics_of_normalisation_are_those_of_the_unlabelled_rows() -> None:
    p = build.program(guide="delta", prior="flat", batch_norm=True)
    theta = p.refresh(p.init(root(1)), build.rows(15))
    student, _ = distill(p, theta, ensemble(p, [theta], X, root(0)), X, root(3), PLAIN)
    close(only(student, p.trainable), only(theta, p.trainable), tolerance=1e-12)
    expected = p.refresh(theta, build.rows(20)._replace(x=X))
    close(only(student, p.buffers), only(expected, p.buffers), tolerance=1e-12)
    assert distance(only(student, p.buffers), only(theta, p.buffers)) > 1e-3


def test_only_the_named_tensors_move(program: Program) -> None:
    teacher, student = program.init(root(1)), program.init(root(2))
    log_p = ensemble(program, [teacher], X, root(0))
    mine = program.names("head")
    how = dataclasses.replace(PLAIN, optimizer=SGD(0.1, decay=0.1), average_every=1)
    moved, _ = distill(program, student, log_p, X, root(3), how, names=mine)
    same(without(moved, mine), without(student, mine))
    assert distance(only(moved, mine), only(student, mine)) > 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0.0}, r"distillation\.epochs must be positive"),
        ({"temperature": 0.0}, r"distillation\.temperature must be positive"),
        ({"size": 0}, r"distillation\.size must be at least 1 row"),
        ({"average_after": 1.5}, r"distillation\.average_after is a part of the steps"),
        ({"average_every": -1}, r"distillation\.average_every is a number of steps"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Distillation(**arguments)


# ------------------------------------------------------------------ the configuration

DATA = {"name": "digits", "clients": 3, "limit": 20, "unlabelled": 30}


def test_a_table_inside_the_methods_table() -> None:
    how = {"optimizer": "adam:1e-3", "epochs": 2.0}
    made = assemble(config_of(small(data=DATA, method={"name": "fedbe", "distillation": how})))
    assert made.method.distillation == Distillation(Adam(1e-3), epochs=2.0)  # type: ignore[attr-defined]
    again = config_of({**small(data=DATA), "method": made.config._values()["method"]})
    assert assemble(again).method.distillation == made.method.distillation  # type: ignore[attr-defined]
    assert 'optimizer = "adam:0.001"' in made.config.toml()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"epoch": 2.0}, 'unknown key method.distillation.epoch; did you mean "epochs"?'),
        ({"epochs": "many"}, "method.distillation.epochs = 'many'"),
        ({"optimizer": "adm:1e-3"}, "method.distillation.optimizer"),
        ({"epochs": -1.0}, "distillation.epochs must be positive, got -1.0"),
    ],
)
def test_mistakes_in_it_are_named(how: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        assemble(config_of(small(data=DATA, method={"name": "fedbe", "distillation": how})))
    assert message in str(error.value)


def test_a_run_without_unlabelled_rows_is_told_how_to_get_them() -> None:
    with pytest.raises(ConfigError, match=r"fedbe distils on unlabelled rows .* data\.unlabelled = 1000"):
        assemble(config_of(small(method="fedbe")))
