"""Posteriors of sites: Tweedie's formula, hand-made numbers, quantiles, draws; storing a prior."""

import json

import numpy as np
import pytest
from scipy.stats import norm

from pyrofl.empirical_bayes import Mixture, Posterior, QuadraticVariance, npmle
from pyrofl.random import root


def test_the_posterior_mean_is_the_generalised_tweedie_formula():
    """z_k + (1/f_k) sum_j w_j V_k(a_j) grad_z phi_k, with the covariance inside the sum."""
    rng = np.random.default_rng(0)
    atoms, weights = rng.normal(0, 2, (7, 2)), rng.dirichlet(np.ones(7))
    z, n, family = rng.normal(0, 2, (9, 2)), rng.integers(2, 9, 9), QuadraticVariance(0.3, 0.2, 0.4)
    mean = Mixture(atoms, weights).posterior(family.kernel(z, n)).mean
    V = family.variance(atoms)[None] / n[:, None, None]  # (K, M, d)
    gap = z[:, None] - atoms
    phi = np.exp(-0.5 * (gap**2 / V + np.log(2 * np.pi * V)).sum(axis=2))
    f = phi @ weights
    gradient = -gap / V * phi[:, :, None]
    tweedie = z + np.einsum("j,kjd,kjd->kd", weights, V, gradient) / f[:, None]
    np.testing.assert_allclose(mean, tweedie, atol=1e-10)


def test_one_covariance_a_client_in_tweedie_is_wrong():
    # two atoms 0 and 1 with equal weights, variances 0.25 and 1 there; z = 0.8
    family = QuadraticVariance(0.25, 0.0, 0.75)
    mean = (
        Mixture(np.array([[0.0], [1.0]]), np.full(2, 0.5))
        .posterior(family.kernel(np.array([[0.8]]), np.ones(1)))
        .mean[0, 0]
    )
    phi = norm.pdf(0.8, [0.0, 1.0], [0.5, 1.0])
    assert mean == pytest.approx(phi[1] / phi.sum(), abs=1e-12)
    gradient = -(0.8 - np.array([0.0, 1.0])) / np.array([0.25, 1.0]) * phi
    assert abs(0.8 + family.variance(np.array([0.8]))[0] * gradient.sum() / phi.sum() - mean) > 0.1


def test_a_gaussian_prior_by_hand():
    prior = Mixture(np.array([[1.0]]), np.ones(1), np.array([[[3.0]]]))
    post = prior.posterior([5.0], [1.0])
    assert post.mean[0, 0] == pytest.approx(4.0)  # 1 + 3/4 * 4
    assert post.covariance[0, 0, 0] == pytest.approx(0.75)
    low, high = post.interval(0.9)
    np.testing.assert_allclose([low[0, 0], high[0, 0]], norm.ppf([0.05, 0.95], 4.0, np.sqrt(0.75)), atol=1e-9)
    assert post.log_marginal[0] == pytest.approx(norm.logpdf(5.0, 1.0, 2.0))


def test_zero_and_infinite_variance_under_a_gaussian_prior():
    prior = Mixture(np.array([[1.0]]), np.ones(1), np.array([[[3.0]]]))
    post = prior.posterior([5.0, 5.0], [0.0, np.inf])
    np.testing.assert_allclose(post.mean[:, 0], [5.0, 1.0])
    np.testing.assert_allclose(post.covariance[:, 0, 0], [0.0, 3.0])


def test_a_narrow_mixture_tends_to_its_atoms():
    rng = np.random.default_rng(1)
    atoms, weights, z = rng.normal(size=(4, 2)), rng.dirichlet(np.ones(4)), rng.normal(size=(6, 2))
    V = rng.uniform(0.2, 1, (6, 2))
    points = Mixture(atoms, weights).posterior(z, V)
    narrow = Mixture(atoms, weights, np.repeat(1e-10 * np.eye(2)[None], 4, axis=0)).posterior(z, V)
    np.testing.assert_allclose(narrow.mean, points.mean, atol=1e-6)
    np.testing.assert_allclose(narrow.covariance, points.covariance, atol=1e-6)
    np.testing.assert_allclose(narrow.log_marginal, points.log_marginal, atol=1e-6)


def test_quantiles_of_a_discrete_posterior():
    prior = Mixture(np.array([[3.0], [1.0], [2.0]]), np.array([0.2, 0.5, 0.3]))
    post = Posterior(prior, npmle([2.0], [1e12]).kernel)
    assert post.quantile(0.4)[0, 0] == 1.0
    assert post.quantile(0.6)[0, 0] == 2.0
    assert post.quantile(0.9)[0, 0] == 3.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        post.quantile(1.0)


@pytest.mark.parametrize("spread", [None, 0.2])
def test_draws_have_the_posterior_moments(spread):
    rng = np.random.default_rng(2)
    C = None if spread is None else np.repeat(spread * np.eye(2)[None], 3, axis=0)
    post = Mixture(rng.normal(size=(3, 2)), np.array([0.2, 0.3, 0.5]), C).posterior(
        rng.normal(size=(4, 2)), np.full((4, 2), 0.5)
    )
    draws = post.draws(root(0), 20_000)  # (S, K, d)
    np.testing.assert_allclose(draws.mean(axis=0), post.mean, atol=0.03)
    centred = draws - draws.mean(axis=0)
    np.testing.assert_allclose(np.einsum("ska,skb->kab", centred, centred) / 20_000, post.covariance, atol=0.03)
    np.testing.assert_array_equal(post.draws(root(0), 5), post.draws(root(0), 5))
    low, high = post.interval(0.8)
    assert ((draws >= low) & (draws <= high)).mean() >= 0.79


def test_draws_open_in_arviz():
    fit = npmle([0.0, 1.0, 5.0], [1.0, 1.0, 1.0])
    data = fit.sites.dataset(root(1), 300, sites=["a", "b", "c"])
    assert data["theta"].dims == ("chain", "draw", "site", "coordinate")
    import arviz

    table = arviz.summary(data, kind="stats")
    assert table.loc["theta[c, 0]", "mean"] == pytest.approx(fit.sites.mean[2, 0], abs=0.5)


def test_a_stored_prior_comes_back_bit_for_bit(tmp_path):
    fit = npmle(np.random.default_rng(3).normal(size=30), np.full(30, 0.1))
    fit.save(tmp_path / "prior.json")
    again = Mixture.load(tmp_path / "prior.json")
    np.testing.assert_array_equal(again.atoms, fit.atoms)
    np.testing.assert_array_equal(again.weights, fit.weights)
    assert (again.gap, again.status, again.notes) == (fit.gap, fit.status, fit.notes)
    np.testing.assert_array_equal(again.posterior([0.3], [0.2]).mean, fit.posterior([0.3], [0.2]).mean)
    with pytest.raises(ValueError, match="keeps no sites"):
        again.sites  # noqa: B018


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a stored prior"),
        ({"version": 2}, "version 2"),
        ({"weights": [0.5]}, "shapes do not fit"),
        ({"weights": [0.9, 0.9]}, "sum is 1.8"),
    ],
)
def test_a_damaged_prior_is_refused(tmp_path, change, message):
    Mixture(np.array([[0.0], [1.0]]), np.array([0.5, 0.5])).save(tmp_path / "prior.json")
    record = json.loads((tmp_path / "prior.json").read_text())
    (tmp_path / "prior.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(ValueError, match=message):
        Mixture.load(tmp_path / "prior.json")
    (tmp_path / "prior.json").write_text("{")
    with pytest.raises(ValueError, match="not a JSON file"):
        Mixture.load(tmp_path / "prior.json")


def test_prior_moments_and_dimensions():
    prior = Mixture(np.array([[0.0], [4.0]]), np.array([0.25, 0.75]))
    assert prior.mean[0] == 3.0
    assert prior.covariance[0, 0] == 3.0
    with pytest.raises(ValueError, match="2 coordinates, the prior has 1"):
        prior.posterior(np.zeros((1, 2)), np.ones((1, 2)))
