"""The closed forms of FedMAP's upper level."""

import numpy as np
import pytest

from pyrofl.empirical_bayes import log_weights, upper_level

THETA = np.array([[0.0, 0.0, 2.0], [4.0, 0.0, 6.0]])


def test_mean_and_variances_by_hand():
    l = np.log([1.0, 3.0])
    one = upper_level(THETA, l)
    np.testing.assert_allclose(one.mean, [3.0, 0.0, 5.0])
    np.testing.assert_allclose(one.weights, [0.25, 0.75])
    # 0.25 * 9 + 0.75 * 1 = 3 on coordinates 0 and 2, nothing on 1
    np.testing.assert_allclose(one.variance, 2.0)
    np.testing.assert_allclose(upper_level(THETA, l, sharing="coordinate", floor=0.1).variance, [3.0, 0.1, 3.0])
    np.testing.assert_allclose(upper_level(THETA, l, sharing="tensor", sizes=(2, 1)).variance, [1.5, 1.5, 3.0])
    assert one.effective_clients == pytest.approx(1.6)


def test_the_isotropic_form_maximises_the_weighted_density():
    rng = np.random.default_rng(0)
    theta, l = rng.normal(size=(5, 4)), rng.normal(size=5)
    fit = upper_level(theta, l)
    density = lambda mu, v: fit.weights @ (-0.5 * ((theta - mu) ** 2 / v + np.log(v)).sum(axis=1))
    best = density(fit.mean, fit.variance[0])
    for _ in range(50):
        assert density(fit.mean + 0.1 * rng.normal(size=4), fit.variance[0] * np.exp(0.2 * rng.normal())) < best


def test_the_four_weightings():
    n, mean = np.array([10.0, 1000.0]), np.array([-0.5, -0.6])
    share = lambda kind: upper_level(np.zeros((2, 1)), log_weights(kind, rows=n, mean_log_likelihood=mean)).weights
    np.testing.assert_allclose(share("rows"), [10 / 1010, 1000 / 1010])
    ratio = np.exp(0.1)
    np.testing.assert_allclose(share("mean_loglik"), [ratio / (1 + ratio), 1 / (1 + ratio)])
    np.testing.assert_allclose(share("rows_times_likelihood"), np.array([10 * ratio, 1000]) / (10 * ratio + 1000))
    np.testing.assert_allclose(share("total_loglik"), [1.0, 0.0], atol=1e-200)  # log-weights -5 and -600


def test_total_log_likelihoods_do_not_underflow():
    fit = upper_level(THETA, np.array([-1e5, -1e5 + 1.0]))
    np.testing.assert_allclose(fit.weights, [1 / (1 + np.e), np.e / (1 + np.e)])


def test_a_misspelt_choice_is_told_the_nearest():
    with pytest.raises(ValueError, match='did you mean "mean_loglik"'):
        log_weights("mean_logliks", rows=np.ones(2), mean_log_likelihood=np.zeros(2))
    with pytest.raises(ValueError, match='did you mean "tensor"'):
        upper_level(THETA, np.zeros(2), sharing="tensors")
    with pytest.raises(ValueError, match="hold 2 numbers, the estimates 3"):
        upper_level(THETA, np.zeros(2), sharing="tensor", sizes=(1, 1))
    with pytest.raises(ValueError, match="client 1"):
        upper_level(THETA, np.array([0.0, np.nan]))
