"""Weights at fixed atoms: hand-solved problems, a second algorithm, invariances, bad starts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrofl.empirical_bayes.line import interior
from pyrofl.empirical_bayes.weights import em_weights, quadratic_minimum, solve_weights


def random_likelihood(seed, sites=40, atoms=12):
    rng = np.random.default_rng(seed)
    z, a = rng.normal(0, 2, sites), np.linspace(-4, 4, atoms)
    return np.exp(-0.5 * ((z[:, None] - a) / rng.uniform(0.3, 1.5, sites)[:, None]) ** 2)


def test_two_atoms_by_hand():
    # log(2w + (1-w)) + log(w + 3(1-w)): derivative 1/(1+w) - 2/(3-2w) = 0 at w = 1/4
    solved = solve_weights(np.array([[2.0, 1.0], [1.0, 3.0]]))
    np.testing.assert_allclose(solved.weights, [0.25, 0.75], atol=1e-9)
    np.testing.assert_allclose(solved.marginal, [1.25, 2.5], atol=1e-8)
    assert solved.gap <= 1e-8


def test_one_atom_wins_when_it_explains_all():
    solved = solve_weights(np.array([[1.0, 0.5], [1.0, 0.2]]))
    np.testing.assert_allclose(solved.weights, [1.0, 0.0], atol=1e-12)


def test_em_run_to_the_end_agrees():
    L = random_likelihood(0, atoms=6)
    solved = solve_weights(L)
    oracle = em_weights(L, steps=200_000)
    np.testing.assert_allclose(L @ solved.weights, L @ oracle, rtol=1e-6)
    assert np.log(solved.marginal).mean() >= np.log(L @ oracle).mean() - 1e-12


def test_weights_inside_the_simplex_are_those_of_em_run_to_the_last_digit():
    z = np.repeat([-2.0, 0.0, 3.0], [20, 10, 15]) + np.random.default_rng(0).normal(0, 0.5, 45)
    L = np.exp(-0.5 * (z[:, None] - [-2.0, 0.0, 3.0]) ** 2)
    w, before = em_weights(L, steps=1), np.zeros(3)
    while np.abs(w - before).max() > 1e-12:
        w, before = em_weights(L, steps=1, start=w), w
    assert w.min() > 0.1
    np.testing.assert_allclose(solve_weights(L).weights, w, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_gap_is_the_certificate_over_all_atoms(seed):
    L = random_likelihood(seed)
    solved = solve_weights(L)
    derivative = (L / (L @ solved.weights)[:, None]).mean(axis=0) - 1
    assert solved.gap == pytest.approx(derivative.max(), abs=1e-12)
    assert solved.gap <= 1e-8


def test_an_interior_point_finds_the_same():
    L = random_likelihood(3)
    w = interior(L[None], np.full((1, 40), 1 / 40), 1e-12)[0]
    np.testing.assert_allclose(L @ w, L @ solve_weights(L).weights, rtol=1e-7)


@pytest.mark.parametrize("vertex", range(12))
def test_any_vertex_is_a_start(vertex):
    L = random_likelihood(1)
    start = np.eye(12)[vertex]
    solved = solve_weights(L, start)
    assert solved.gap <= 1e-8
    np.testing.assert_allclose(solved.marginal, solve_weights(L).marginal, rtol=1e-7)


def test_a_vertex_is_not_called_optimal_when_stopped_at_once():
    solved = solve_weights(random_likelihood(1), np.eye(12)[0], max_steps=0)
    assert solved.gap > 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_row_scales_do_not_matter(seed, factor):
    L = random_likelihood(seed, sites=15, atoms=8)
    scale = np.random.default_rng(seed).uniform(0.5, 2, 15) * factor
    a, b = solve_weights(L), solve_weights(L * scale[:, None])
    np.testing.assert_allclose(L @ a.weights, L @ b.weights, rtol=1e-6)


def test_doubled_rows_with_half_their_mass_change_nothing():
    L = random_likelihood(2)
    twice = solve_weights(np.concatenate([L, L]), mass=np.full(80, 0.5))
    np.testing.assert_allclose(L @ twice.weights, solve_weights(L).marginal, rtol=1e-8)


def test_dead_columns_and_far_rows_stay_finite():
    L = random_likelihood(4)
    L[:, 3] = 0.0
    L[5] *= 1e-250
    solved = solve_weights(L)
    assert solved.weights[3] == 0.0
    assert np.isfinite(solved.marginal).all()
    assert solved.gap <= 1e-8


def test_a_row_without_likelihood_is_named():
    L = random_likelihood(4)
    L[7] = 0.0
    with pytest.raises(ValueError, match="site row 7"):
        solve_weights(L)


@pytest.mark.parametrize("seed", range(4))
def test_quadratic_minimum_meets_the_optimality_conditions(seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(30, 15))
    H, b = A.T @ A, rng.normal(size=15)
    x = quadratic_minimum(H, b)
    dual = H @ x - b
    assert (x >= 0).all()
    assert dual.min() > -1e-8
    assert abs(x @ dual) < 1e-8
