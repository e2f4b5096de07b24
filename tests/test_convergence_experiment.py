"""The convergence experiment: its constants, its bounds and the steps of the derivation, on numbers known otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.convergence import claims, quadratic, report
from experiments.convergence.__main__ import main
from experiments.convergence.bounds import (
    Constants,
    li,
    li_b,
    li_iterated,
    li_rate,
    phi,
    theorem1,
    theorem2,
    theorem2_rate,
)
from experiments.convergence.measure import SCALES, curves
from experiments.convergence.problems import Problem, make
from experiments.convergence.training import SITE, Diminishing, train
from pyrofl.data import Batch, Client, Federation
from pyrofl.engines import Sequential
from pyrofl.methods import BayFL
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.run import Run

KINDS = ("logistic", "linear")
EXACT = "(eta + 1)/eta^2"
ONE = Constants(L=2.0, mu=1.0, gamma=0.5, noise=np.array([1.0, 3.0]), slope=4.0, steps=2, distance=10.0, gap=7.0)


# ---------------------------------------------------------------------- problems


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_trains_the_problems_own_objective(kind: str) -> None:
    problem = make(kind, seed=3)
    program, w = problem.program(), np.array([0.3, -0.2, 0.5, 1.0])
    theta = {program.loc_name(SITE): torch.tensor(w[None])}
    ours = []
    for at in (theta, program.theta0):
        ours.append([float(program.loss(at, Batch.of(d.x, d.y), root(0))) for d in problem.data()])
    difference = np.array(ours[0]) - ours[1]  # the likelihood's and the prior's constants cancel
    np.testing.assert_allclose(difference, problem.values(w) - problem.values(0 * w), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_minimum_and_hessian_agree(kind: str) -> None:
    problem, w, h = make(kind, seed=3), np.array([0.3, -0.2, 0.5, 1.0]), 1e-5
    steps = h * np.eye(4)
    numeric = (problem.value(w + steps) - problem.value(w - steps)) / (2 * h)
    np.testing.assert_allclose(problem.gradient(w), numeric, rtol=1e-6)
    curved = (problem.gradient(w + steps) - problem.gradient(w - steps)) / (2 * h)
    np.testing.assert_allclose(problem.hessian(w), curved, rtol=1e-6, atol=1e-9)
    assert np.abs(problem.gradient(problem.minimum)).max() < 1e-14
    assert problem.heterogeneity > 0.01


def test_constants_by_hand() -> None:
    x = np.array([[[2.0, 0.0], [0.0, 1.0]]])  # X'X / n = diag(2, 1/2)
    logistic = Problem("logistic", x, np.zeros((1, 2)), ridge=0.1)
    assert logistic.smoothness == pytest.approx(2 / 4 + 0.1) and logistic.convexity == 0.1
    linear = Problem("linear", x, np.array([[2.0, 3.0]]), ridge=0.1)
    assert linear.smoothness == pytest.approx(2.1) and linear.convexity == pytest.approx(0.6)
    np.testing.assert_allclose(linear.minimum, [2 / 2.1, 1.5 / 0.6])  # (X'X/n + mu I) w = X'y / n
    assert linear.heterogeneity == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_curvature_lies_between_mu_and_l_everywhere(kind: str) -> None:
    problem = make(kind, seed=3)
    for w in np.random.default_rng(0).normal(size=(20, 4)) * 3:
        eigenvalues = np.linalg.eigvalsh(problem.hessian(w))
        assert problem.convexity - 1e-12 <= eigenvalues[0] and eigenvalues[-1] <= problem.smoothness + 1e-12


def test_noise_is_that_of_batches_without_replacement() -> None:
    problem = Problem("linear", np.array([[[1.0], [1.0], [1.0]]]), np.array([[0.0, 1.0, 5.0]]), ridge=0.0)
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    w = np.array([[2.0]])  # gradients of the rows: 2, 1, -3
    means = np.array([2.0, 1.0, -3.0])[pairs].mean(1)
    spread, square = problem.noise(w, 2)
    assert spread[0] == pytest.approx(means.var()) and square[0] == pytest.approx(np.square(means).mean())


# ---------------------------------------------------------------------- training


def test_full_batches_follow_the_closed_form() -> None:
    problem = make("linear", seed=3)
    c, rows = _constants(problem), problem.x.shape[1]
    method = Diminishing(
        problem.program(), optimizer=SGD(2 / (c.mu * 5)), shift=8 * c.kappa / 5 - 1, epochs=5, size=rows
    )
    found = train(method, problem, rounds=12, seeds=1)
    rates = li_rate(5 * np.arange(12), c)
    np.testing.assert_allclose(found.rates[:, 0], rates, rtol=1e-12)
    np.testing.assert_allclose(found.w[:, 0], quadratic.path(problem, found.w[0, 0], rates, 5), atol=1e-12)
    np.testing.assert_allclose(found.noise, 0, atol=1e-12)


def test_without_noise_drift_alone_falls_like_the_square_of_the_rate() -> None:
    problem = make("linear", seed=3)
    w = quadratic.path(problem, np.zeros(4), li_rate(5 * np.arange(4000), _constants(problem)), 5)
    gap = problem.value(w) - problem.value(problem.minimum)
    assert np.log10(gap[4000] / gap[400]) == pytest.approx(-2, abs=0.03)


def test_one_step_a_round_has_no_drift() -> None:
    problem = make("linear", seed=3)
    np.testing.assert_allclose(quadratic.fixed_point(problem, 0.1, 1), problem.minimum, rtol=1e-12)
    # the drift of the fixed point is of order eta, the gap of order eta^2
    small, large = (claims.floor_without_noise(problem, eta, 5) for eta in (0.005, 0.01))
    assert large / small == pytest.approx(4, rel=0.1)


def test_the_stacked_seeds_are_runs() -> None:
    problem = make("logistic", seed=3)
    method = BayFL(
        problem.program(), optimizer=SGD(0.5), epochs=0.25, size=5, schedule="a/sqrt(k)", weighting="uniform"
    )
    found = train(method, problem, rounds=3, seeds=2)
    clients = tuple(Client(f"client-{i}", d, d) for i, d in enumerate(problem.data()))
    run = Run(method, Federation(clients, "bernoulli"), engine=Sequential(), rounds=3, seed=1)
    for _ in run:
        pass
    np.testing.assert_allclose(found.w[3, 1], run.server[method.program.loc_name(SITE)][0].numpy(), rtol=1e-10)
    assert np.abs(found.w[3, 0] - found.w[3, 1]).max() > 1e-3
    np.testing.assert_allclose(found.rates[:, 0], [0.5, 0.5 / 2**0.5, 0.5 / 3**0.5])


def test_a_run_that_diverges_is_not_finite_to_its_end() -> None:
    problem = make("linear", seed=3)
    found = train(BayFL(problem.program(), optimizer=SGD(1e80), epochs=0.25, size=5), problem, rounds=4, seeds=1)
    assert np.isfinite(found.w[0]).all() and np.isnan(found.w[-1]).all() and len(found.w) == 5


# ---------------------------------------------------------------------- bounds


def test_theorem_2_by_hand() -> None:
    # eta_2 = 16 / (2 + 2) = 4; Phi = 4 (4 + 1)/16 * 2 * 4 + 3/4 = 10.75
    assert theorem2_rate(np.array(2), ONE) == 4 and phi(np.array(4.0), ONE, EXACT) == pytest.approx(10.75)
    assert theorem2(np.array(2), ONE, EXACT) == pytest.approx(2 / 8 * (16 * 10.75 / 15 + 3 * 10))
    # the other reading: 4 (4 + 1/16) * 8 + 3/4 = 130.75
    assert phi(np.array(4.0), ONE, "eta + 1/eta^2") == pytest.approx(130.75)
    # equation 76 is what the first reading satisfies: eta^2 Phi = 4 (1 + 1/eta) eta T B^2 + eta^2 sigma^2 / N^2
    eta = 0.3
    assert eta**2 * phi(np.array(eta), ONE, EXACT) == pytest.approx(4 * (1 + 1 / eta) * eta * 8 + eta**2 * 0.75)


def test_li_by_hand() -> None:
    # B = 4/4 + 6 * 2 * 0.5 + 8 * 1 * 4 = 39; gamma = 16; after 4 steps 2 / 20 (2 * 39 + 16 / 2 * 10)
    assert li_b(ONE) == pytest.approx(39) and li(np.array(4), ONE) == pytest.approx(0.1 * (78 + 80))
    assert li_rate(np.array(4), ONE) == pytest.approx(0.1)


def test_lis_inequality_iterated_stays_below_the_theorem() -> None:
    single = Constants(2.0, 1.0, 0.5, ONE.noise, 4.0, 1, 10.0, 7.0)  # one step a round: the rates are the theorem's
    iterated = li_iterated(li_rate(np.arange(500), single), single)
    assert (iterated <= li(np.arange(501), single) * (1 + 1e-12)).all()
    assert np.isnan(li_iterated(np.array([0.2]), ONE)[1])  # above 1 / (4 L) it says nothing


def test_theorem_1_by_hand() -> None:
    assert theorem1(np.array([1.0, 0.5]), ONE) == pytest.approx((14 + 2 * 3 * 1.25) / 1.5)


# ---------------------------------------------------------------------- what is loose in the derivation


@pytest.mark.parametrize("reading", ["(eta + 1)/eta^2", "eta + 1/eta^2"])
def test_the_bound_of_theorem_2_grows_with_the_rounds(reading: str) -> None:
    late = [float(theorem2(np.array(k), ONE, reading)) for k in (100, 1000, 10_000)]  # type: ignore[arg-type]
    assert late[0] < late[1] < late[2] and late[2] / late[1] == pytest.approx(10, rel=0.1)
    held = [float(theorem2(np.array(k), ONE, reading, frozen=True)) for k in (1000, 10_000)]  # type: ignore[arg-type]
    assert held[0] / held[1] == pytest.approx(10, rel=0.01)


def test_the_rate_of_theorem_2_breaks_the_proofs_condition_at_first() -> None:
    k = claims.first_allowed_round(ONE)
    assert k == 126  # 63 L / mu
    assert theorem2_rate(np.array(0), ONE) * ONE.L == 16  # beyond 2, where gradient descent diverges
    assert theorem2_rate(np.array(k), ONE) <= 1 / (4 * ONE.L) < theorem2_rate(np.array(k - 1), ONE)


def test_the_induction_misses_a_factor_of_16() -> None:
    assert claims.induction_ratio(ONE, 20_000) == pytest.approx(16, rel=1e-3)


def test_an_average_of_n_has_an_nth_of_the_variance() -> None:
    assert claims.variance_of_average(2.0, 5) == pytest.approx(2 / 5)  # not 2 / 25


def test_local_models_drift_with_the_square_of_rate_and_steps() -> None:
    assert claims.drift(0.1, 5, 2.0) == pytest.approx((0.1 * 5 * 2) ** 2)
    assert claims.drift(2.0, 5, 1.0) > 4 * 2.0 * 5  # the bound 4 eta T B^2 holds only for small eta T
    assert claims.drift(0.1, 5, 1.0) < 4 * 0.1 * 5


@pytest.mark.parametrize("kind", KINDS)
def test_local_gradients_do_not_vanish_at_the_common_minimum(kind: str) -> None:
    measured, said = claims.local_slopes(make(kind, seed=3))
    assert measured > 0.01 and said == pytest.approx(0, abs=1e-12)


def test_the_series_of_theorem_1_are_below_their_constants() -> None:
    k = np.arange(1.0, 2e6)
    sums = (np.log(k) / k**2).sum(), (k**-1.5).sum(), (np.log(k) / k**1.5).sum()
    for partial, (value, bound) in zip(sums, claims.series().values()):
        assert partial < value < bound and value - partial < 0.03


# ---------------------------------------------------------------------- report


def test_slopes_of_powers() -> None:
    k = np.arange(1.0, 50)
    assert report.slope(k, 3 * k**-0.5) == pytest.approx(-0.5)
    assert np.isnan(report.slope(k, np.append(k[:-1], np.inf)))


def test_table_figure_and_page_of_one_problem(tmp_path: Path) -> None:
    problem = make("logistic", seed=1)
    frame = curves(problem, SCALES["smoke"]).assign(problem="logistic")
    page = report.write(frame, {"logistic": problem}, tmp_path, command="here", seconds=1.0)
    found = pd.read_csv(tmp_path / "convergence.csv")
    assert found["schedule"].nunique() == 7
    li_et_al = found[found["schedule"] == "li"]
    assert (li_et_al["gap"] < li_et_al["li"]).all() and li_et_al["gap"].iloc[-1] < li_et_al["gap"].iloc[0]
    assert "| logistic | theorem 2 |" in page and "| logistic | a/k |" in page
    assert (tmp_path / "convergence.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_command_runs_both_problems(tmp_path: Path) -> None:
    main(["--scale", "smoke", "--out", str(tmp_path)])
    assert set(pd.read_csv(tmp_path / "convergence.csv")["problem"]) == set(KINDS)
    assert "--scale smoke" in (tmp_path / "convergence.md").read_text(encoding="utf-8")


def _constants(problem: Problem) -> Constants:
    return Constants(problem.smoothness, problem.convexity, problem.heterogeneity, np.ones(5), 1.0, 5, 1.0, 1.0)
