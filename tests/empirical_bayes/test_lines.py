"""Many one-dimensional problems at once, against one at a time."""

import numpy as np
import pytest

from pyrofl.empirical_bayes import npmle, npmle_lines
from pyrofl.empirical_bayes.line import _distinct


def problems(count, sites=60, seed=0):
    rng = np.random.default_rng(seed)
    V = rng.uniform(0.05, 1, (count, sites))
    return rng.choice([-1.0, 0.5, 2.0], (count, sites)) + np.sqrt(V) * rng.normal(size=(count, sites)), V


def test_each_problem_is_solved_to_the_certificate():
    z, V = problems(70)
    lines = npmle_lines(z, V, tolerance=1e-5)
    assert lines.gap.max() <= 1e-5
    assert lines.gap_atoms.max() <= 1e-8
    np.testing.assert_allclose(lines.weights.sum(axis=1), 1.0)
    for b in (0, 7, 69):
        fit = npmle(z[b], V[b], tolerance=1e-6)
        assert lines.log_likelihood[b] == pytest.approx(fit.log_likelihood, abs=1.1e-5)
        np.testing.assert_allclose(lines.mean[b], fit.sites.mean[:, 0], atol=0.02)
        np.testing.assert_allclose(lines.variance[b], fit.sites.covariance[:, 0, 0], atol=0.03)


def test_missing_sites_are_absent():
    z, V = problems(3)
    V[:, 40:] = np.inf
    z[:, 40:] = np.nan
    lines = npmle_lines(z, V)
    short = npmle_lines(z[:, :40], V[:, :40])
    np.testing.assert_allclose(lines.log_likelihood, short.log_likelihood, atol=1e-9)
    np.testing.assert_allclose(lines.mean[:, :40], short.mean, atol=1e-6)
    prior_mean = (lines.atoms * lines.weights).sum(axis=1)
    np.testing.assert_allclose(lines.mean[:, 40:], prior_mean[:, None].repeat(20, axis=1), atol=1e-9)


def test_neighbours_do_not_matter_and_progress_counts():
    z, V = problems(60)
    seen = []
    together = npmle_lines(z, V, progress=lambda done, total: seen.append((done, total)), workers=1)
    np.testing.assert_allclose(npmle_lines(z[11:12], V[11:12]).mean[0], together.mean[11], atol=1e-5)
    assert seen[-1] == (60, 60)


def test_equal_estimates_and_a_single_site():
    lines = npmle_lines(np.full((2, 5), 3.0), np.full((2, 5), 0.4))
    np.testing.assert_allclose(lines.mean, 3.0)
    np.testing.assert_allclose(npmle_lines([[2.0]], [[1.0]]).mean, 2.0)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="problem 1, site 2"):
        npmle_lines(np.zeros((2, 3)), [[1, 1, 1], [1, 1, 0]])
    with pytest.raises(ValueError, match="problem 0 has no site"):
        npmle_lines(np.zeros((1, 2)), np.full((1, 2), np.inf))
    with pytest.raises(ValueError, match="must both be"):
        npmle_lines(np.zeros(3), np.ones(3))


def test_of_points_near_each_other_the_best_is_kept():
    points = np.array([[3.0, 1.0, 1.004, 5.0], [2.0, 9.0, 9.0, 0.0]])
    value = np.array([[0.5, 0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4]])
    good = np.array([[True, True, True, True], [False, True, True, True]])
    kept, usable = _distinct(points, value, good, np.ones(2))
    np.testing.assert_array_equal(kept[0], [1.004, 3.0, 5.0])
    np.testing.assert_array_equal(kept[1, usable[1]], [0.0, 9.0])
