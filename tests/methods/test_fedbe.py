"""FedBE: who teaches, what is drawn, and when the student stays where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.compare import close, distance

from pyrofl.distill import Distillation, distill, ensemble
from pyrofl.method import Cohort
from pyrofl.methods import FedAvg, FedBE
from pyrofl.optim import SGD
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import Tree, only, stack, unstack

X = build.rows(20, seed=7).x
PLAIN = Distillation(SGD(0.05), epochs=3, size=8, temperature=1.0, average_every=0)
COHORT = Cohort(torch.arange(3), torch.tensor([20, 10, 10]), root(5), 1)


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program(guide="delta", prior="flat")


def ups_of(program: Program) -> Tree:
    return stack([program.init(root(s)) for s in (1, 2, 3)])


def made(program: Program, **arguments: Any) -> FedBE:
    return FedBE(program, **{"unlabelled": X, "distillation": PLAIN, **arguments})


def test_with_the_average_as_its_only_teacher_it_is_fedavg(program: Program) -> None:
    method = made(program, samples=0, clients_teach=False)
    server, ups = method.init(root(1)), ups_of(program)
    new = method.aggregate(server, ups, COHORT)
    average = FedAvg(program).aggregate(program.init(root(1)), ups, COHORT)
    close(only(new, average), average, tolerance=1e-12)
    assert float(new["report/distillation_kl"]) == pytest.approx(0, abs=1e-12)


def test_the_student_starts_at_the_average_and_learns_from_all_teachers(program: Program) -> None:
    method = made(program, samples=2)
    ups = ups_of(program)
    w = FedAvg(program).aggregate({}, ups, COHORT)
    teachers = [w, *method.drawn(w, ups, COHORT), *(unstack(ups, k) for k in range(3))]
    assert len(teachers) == 6
    log_p = ensemble(program, teachers, X, root(0))
    expected, kl = distill(program, w, log_p, X, fold(root(5), "distill"), PLAIN)
    new = method.aggregate(method.init(root(1)), ups, COHORT)
    close(only(new, expected), expected, tolerance=1e-12)
    assert float(new["report/distillation_kl"]) == pytest.approx(float(kl)) and float(kl) > 1e-4
    assert distance(expected, w) > 1e-4


def test_gaussian_samples_have_the_weighted_mean_and_variance(program: Program) -> None:
    method = made(program, samples=4000)
    ups = ups_of(program)
    w = FedAvg(program).aggregate({}, ups, COHORT)
    drawn = stack(method.drawn(w, ups, COHORT))
    share = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for k, v in drawn.items():
        spread = torch.tensordot(share, (ups[k] - w[k]).square(), 1).sqrt()
        torch.testing.assert_close(v.mean(0), w[k], atol=5 * float(spread.max()) / 4000**0.5, rtol=0)
        torch.testing.assert_close(v.std(0), spread, atol=1e-12, rtol=0.07)


@pytest.mark.parametrize("concentration", [0.5, 20.0])
def test_dirichlet_samples_are_mixtures_of_the_clients(program: Program, concentration: float) -> None:
    method = made(program, sampler="dirichlet", samples=4000, concentration=concentration)
    ups = {k: torch.zeros_like(v) for k, v in ups_of(program).items()}
    name = program.loc_name("net.head.bias")
    ups[name] = torch.eye(3, dtype=torch.float64)  # so that the head's bias is the mixture's weights
    w = FedAvg(program).aggregate({}, ups, COHORT)
    g = stack(method.drawn(w, ups, COHORT))[name]  # (M, 3)
    torch.testing.assert_close(g.sum(1), torch.ones(4000, dtype=torch.float64))
    assert float(g.min()) >= 0
    a = 3 * concentration * torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    mean = a / a.sum()
    torch.testing.assert_close(g.mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(g.var(0), mean * (1 - mean) / (a.sum() + 1), atol=0, rtol=0.12)


@pytest.mark.parametrize("sampler", ["gaussian", "dirichlet"])
def test_running_variances_are_averaged_and_never_drawn(sampler: Any) -> None:
    p = build.program(guide="delta", prior="flat", batch_norm=True)
    ups = stack([p.refresh(p.init(root(s)), build.rows(9, seed=s)) for s in (1, 2, 3)])
    w = FedAvg(p).aggregate({}, ups, COHORT)
    method = made(p, sampler=sampler, samples=5)
    for sample in method.drawn(w, ups, COHORT):
        close(only(sample, p.buffers), only(w, p.buffers), tolerance=0)
        assert all(not torch.equal(sample[k], w[k]) for k in p.names("head"))
    new = method.aggregate(method.init(root(1)), ups, COHORT)
    assert all(float(v.min()) >= 0 for k, v in new.items() if k.endswith("running_var"))


def test_only_those_who_took_part_have_a_weight(program: Program) -> None:
    """Two of five clients: the samples are mixtures of these two, by their own rows."""
    ups = {k: v[:2] for k, v in ups_of(program).items()}
    cohort = Cohort(torch.tensor([1, 4]), torch.tensor([30, 10]), root(5), 1)
    method = made(program, samples=0, clients_teach=False)
    new = method.aggregate(method.init(root(1)), ups, cohort)
    for k in program.trainable:
        torch.testing.assert_close(new[k], 0.75 * ups[k][0] + 0.25 * ups[k][1])


def test_one_client_has_no_spread(program: Program) -> None:
    ups = stack([program.init(root(1))])
    cohort = Cohort(torch.tensor([0]), torch.tensor([9]), root(5), 1)
    for sampler in ("gaussian", "dirichlet"):
        for sample in made(program, sampler=sampler, samples=2).drawn(unstack(ups, 0), ups, cohort):
            close(sample, unstack(ups, 0), tolerance=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unlabelled": None}, r"fedbe distils on unlabelled rows"),
        ({"samples": -1}, r"method\.samples must be at least 0"),
        ({"concentration": 0.0}, r"method\.concentration must be positive"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(program: Program, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(program, **arguments)


def test_a_normal_guide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bayfl with distillation.*: use guide = 'delta'"):
        made(build.program())
