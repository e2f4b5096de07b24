"""Gaussian and Gaussian-mixture priors."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal, norm

from pyrofl.empirical_bayes import adamix, gaussian_prior
from pyrofl.random import root

# Efron and Morris (1975): hits in the first 45 at-bats of 1970, and the averages of the rest of the season
HITS = [18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7]
SEASON = [
    0.346,
    0.298,
    0.276,
    0.222,
    0.273,
    0.270,
    0.263,
    0.210,
    0.269,
    0.230,
    0.264,
    0.256,
    0.303,
    0.264,
    0.226,
    0.286,
    0.316,
    0.200,
]


def test_equal_variances_have_a_closed_form():
    z = np.array([1.0, 2.0, 4.0, 9.0])
    fit = gaussian_prior(z, np.full(4, 2.0))
    assert fit.atoms[0, 0] == pytest.approx(4.0)
    assert fit.spread[0, 0, 0] == pytest.approx(z.var() - 2.0, rel=1e-6)
    shrink = (z.var() - 2.0) / z.var()
    np.testing.assert_allclose(fit.sites.mean[:, 0], 4.0 + shrink * (z - 4.0), rtol=1e-6)
    assert fit.log_likelihood == pytest.approx(norm.logpdf(z, 4.0, z.std()).mean(), abs=1e-9)


def test_no_spread_beyond_the_errors_is_complete_pooling():
    z, V = np.array([1.0, 1.2, 0.9]), np.array([1.0, 2.0, 4.0])
    fit = gaussian_prior(z, V)
    assert fit.spread[0, 0, 0] == 0.0
    assert fit.atoms[0, 0] == pytest.approx((z / V).sum() / (1 / V).sum())
    assert "no spread" in fit.status


def test_the_likelihood_is_maximal_in_two_dimensions():
    rng = np.random.default_rng(0)
    V = rng.uniform(0.2, 1, (80, 2))
    z = rng.multivariate_normal([1, -1], [[1.0, 0.6], [0.6, 0.8]], 80) + np.sqrt(V) * rng.normal(size=(80, 2))
    fit = gaussian_prior(z, V)

    def negative(p):
        A = np.array([[p[2], 0], [p[3], p[4]]])
        return -np.mean([multivariate_normal.logpdf(a, p[:2], A @ A.T + np.diag(v)) for a, v in zip(z, V)])

    other = minimize(
        negative, [1, -1, 1, 0.5, 0.5], method="Nelder-Mead", options={"maxiter": 4000, "fatol": 1e-10, "xatol": 1e-7}
    )
    assert fit.log_likelihood == pytest.approx(-other.fun, abs=1e-7)
    assert fit.log_likelihood == pytest.approx(fit.sites.log_marginal.mean(), abs=1e-9)
    np.testing.assert_allclose(fit.atoms[0], other.x[:2], atol=1e-3)


def test_efron_and_morris_baseball():
    """James-Stein on the arcsine scale: about 0.29 of the raw total squared error (published: 3.5 times smaller)."""
    turn = lambda p: np.sqrt(45) * np.arcsin(2 * np.asarray(p) - 1)
    z, truth = turn(np.array(HITS) / 45), turn(SEASON)
    james_stein = z.mean() + (1 - 15 / ((z - z.mean()) ** 2).sum()) * (z - z.mean())
    raw = ((z - truth) ** 2).sum()
    assert ((james_stein - truth) ** 2).sum() / raw == pytest.approx(0.29, abs=0.01)
    ours = gaussian_prior(z, np.ones(18)).sites.mean[:, 0]
    assert ((ours - truth) ** 2).sum() / raw == pytest.approx(0.29, abs=0.03)


def test_sites_without_error_or_information_do_not_shape_the_prior():
    z, V = np.array([1.0, 2.0, 4.0, 9.0]), np.full(4, 2.0)
    fit = gaussian_prior(z, V)
    more = gaussian_prior(np.append(z, [100.0, 50.0]), np.append(V, [0.0, np.inf]))
    np.testing.assert_allclose(more.atoms, fit.atoms)
    np.testing.assert_allclose(more.sites.mean[-2:, 0], [100.0, fit.atoms[0, 0]], rtol=1e-6)
    mixed = adamix(np.append(z, 100.0), np.append(V, 0.0), components=1)
    assert mixed.atoms[0, 0] < 10


def test_one_component_is_the_gaussian():
    rng = np.random.default_rng(1)
    V = rng.uniform(0.1, 0.5, 60)
    z = rng.normal(2, 1.5, 60) + np.sqrt(V) * rng.normal(size=60)
    one, gauss = adamix(z, V, components=1, tolerance=1e-12, max_steps=5000), gaussian_prior(z, V)
    assert one.log_likelihood == pytest.approx(gauss.log_likelihood, abs=1e-6)
    np.testing.assert_allclose(one.sites.mean, gauss.sites.mean, atol=5e-3)


def test_two_groups_are_found_and_keys_repeat():
    rng = np.random.default_rng(2)
    theta = np.where(np.arange(200) % 4 == 0, 5.0, -1.0) + 0.3 * rng.normal(size=200)
    V = np.full(200, 0.25)
    z = theta + 0.5 * rng.normal(size=200)
    fit = adamix(z, V, components=2, key=root(3))
    np.testing.assert_allclose(fit.atoms[:, 0], [-1.0, 5.0], atol=0.2)
    np.testing.assert_allclose(fit.weights, [0.75, 0.25], atol=0.02)
    np.testing.assert_allclose(np.sqrt(fit.spread[:, 0, 0]), 0.3, atol=0.12)
    np.testing.assert_array_equal(fit.atoms, adamix(z, V, components=2, key=root(3)).atoms)
    assert fit.log_likelihood > gaussian_prior(z, V).log_likelihood + 0.2


def test_more_components_than_sites_and_stopping():
    fit = adamix([1.0, 2.0], [0.1, 0.1], components=5)
    assert len(fit.weights) <= 2
    assert adamix([1.0, 2.0, 9.0], [0.1] * 3, components=2, max_steps=1).status == "stopped after 1 steps"
    with pytest.raises(ValueError, match="at least 1"):
        adamix([1.0], [1.0], components=0)
