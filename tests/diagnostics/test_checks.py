"""The checks of a posterior, against closed forms and numbers worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from pyrofl.diagnostics import agreement, contraction, elbo_trend, khat


def ratios(scale, draws=100_000, seed=0):
    """log p, log q of draws from q = N(0, scale^2) where p = N(0, 1)."""
    x = np.random.default_rng(seed).normal(0, scale, draws)
    return stats.norm(0, 1).logpdf(x), stats.norm(0, scale).logpdf(x)


@pytest.mark.parametrize("variance", [0.25, 0.5, 0.75])
def test_khat_of_a_guide_that_is_too_narrow_is_one_less_its_share_of_the_variance(variance):
    """log(p/q) = (1 - v) z^2 / 2, z normal: P(p/q > t) falls as t^(-1 / (1 - v)), up to logarithms, so k = 1 - v."""
    assert khat(*ratios(variance**0.5)).value == pytest.approx(1 - variance, abs=0.12)


def test_khat_of_a_guide_that_is_too_wide_is_negative():
    found = khat(*ratios(1.5))
    assert found.value < 0.1 and found.verdict == "good"


def test_khat_ranks_and_names_guides():
    near, far = khat(*ratios(0.95, 2000)), khat(*ratios(0.2, 2000))
    assert near.value < near.good and near.verdict == "good"
    assert far.value > near.value and far.verdict != "good"
    x = np.random.default_rng(0).normal(size=(2000, 30))  # far off in each of 30 dimensions
    q = stats.norm(0, 1).logpdf(x).sum(1)
    assert khat(stats.norm(2, 1).logpdf(x).sum(1), q).verdict == "bad: far from the posterior"


def test_khat_does_not_change_by_a_constant_and_has_the_published_threshold():
    p, q = ratios(0.8, 1000)
    assert khat(p + 1e4, q).value == pytest.approx(khat(p, q).value, abs=1e-6)
    assert khat(p, q).good == pytest.approx(1 - 1 / 3)
    assert khat(*ratios(0.8, 10_000)).good == 0.7


def test_khat_is_zero_where_the_guide_is_exact_and_undefined_where_it_cannot_be():
    q = np.linspace(-3, 0, 100)
    assert khat(q + 5.0, q).value == 0
    assert khat(q[:20], q[:20]).value is None
    p = q.copy()
    p[7] = -np.inf
    assert khat(p, q) == (None, khat(p, q).good, "undefined: log p - log q is -inf at draw 7")
    with pytest.raises(ValueError, match="same draws"):
        khat(q, q[:50])


def test_elbo_trends():
    noise = 0.02 * np.random.default_rng(0).normal(size=40)
    falling = elbo_trend(3 - 0.05 * np.arange(40) + noise)
    assert falling.verdict == "still falling" and falling.rounds == 20
    assert falling.low < -0.05 < falling.high and falling.slope == pytest.approx(-0.05, abs=0.005)
    assert elbo_trend(1 + noise).verdict == "settled"
    assert elbo_trend(1 + 0.05 * np.arange(40) + noise).verdict == "rising"
    early = np.concatenate([np.linspace(9, 1, 20), 1 + noise[:20]])
    assert elbo_trend(early).verdict == "settled"  # what happened before the window does not count
    assert elbo_trend(1 - 1e-5 * np.arange(40)).verdict == "settled"  # sure, and too little to matter
    assert elbo_trend([3.0, 2.0, 1.0]).verdict == "undefined: 3 rounds, at least 6 are needed"
    assert elbo_trend([1.0] * 10 + [np.nan]).slope is None
    assert elbo_trend([2.0 - 0.1 * t for t in range(8)]).rounds == 6


def test_contraction_by_hand():
    posterior = {"w": (np.zeros(4), np.array([0.5, 1.0, 2.0, 1.9])), "b": (0.0, 0.1)}
    prior = {"w": (np.ones(4), np.array([1.0, 1.0, 1.0, 2.0])), "b": (0.0, 1.0)}
    found = contraction(posterior, prior)
    np.testing.assert_allclose(found.sites["w"], [0.75, 0.0, -3.0, 1 - 0.9025])
    assert (found.sites["b"], found.median) == (pytest.approx(0.99), pytest.approx(1 - 0.9025))
    assert (found.idle, found.wider) == (0.6, 0.2)


def test_contraction_leaves_out_priors_without_spread_and_refuses_strangers():
    assert contraction({"w": (0, [0.5, 0.5])}, {"w": (0, [1.0, 0.0])}).median == 0.75
    with pytest.raises(ValueError, match="'v' has no prior moments; there are w"):
        contraction({"v": (0, 1)}, {"w": (0, 1)})
    with pytest.raises(ValueError, match=r"posterior has shape \(2,\), the prior \(3,\)"):
        contraction({"w": (0, np.ones(2))}, {"w": (0, np.ones(3))})


def test_contraction_is_undefined_without_a_finite_prior_variance():
    posterior = {"w": (0, [0.5, 0.5, 0.5])}
    found = contraction(posterior, {"w": (0, [1.0, np.inf, np.nan])})
    np.testing.assert_array_equal(found.sites["w"], [0.75, np.nan, np.nan])
    assert (found.median, found.idle, found.wider) == (0.75, 0, 0)
    for sd in (0.0, np.inf, np.nan):
        assert np.isnan(contraction(posterior, {"w": (0, np.full(3, sd))})[1:]).all()


def test_agreement_by_hand():
    a, b, c = ({"w": (np.array(m), np.array([1.0, 2.0]))} for m in ([0.0, 0.0], [0.5, 0.0], [3.0, 1.0]))
    found = agreement([a, b])
    assert (found.median, found.largest, found.apart, found.verdict) == (0.25, 0.5, 0.0, "agree")
    found = agreement([a, b, c])  # gaps 0.5, 0; 3, 0.5; 2.5, 0.5
    assert (found.sites["w"], found.median, found.apart) == (3.0, 0.5, pytest.approx(1 / 3))
    assert found.verdict == "disagree"
    unequal = agreement([{"w": (0.0, 1.0)}, {"w": (5.0, 7.0)}])
    assert unequal.largest == pytest.approx(1.0)  # 5 / sqrt((1 + 49) / 2)


def test_agreement_takes_two_runs_of_one_model():
    with pytest.raises(ValueError, match="at least two"):
        agreement([{"w": (0, 1)}])
    with pytest.raises(ValueError, match="different sites"):
        agreement([{"w": (0, 1)}, {"v": (0, 1)}])
    with pytest.raises(ValueError, match="shape"):
        agreement([{"w": (np.zeros(2), 1)}, {"w": (np.zeros(3), 1)}])
