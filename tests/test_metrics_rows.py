"""Curves and numbers from single rows: isotonic reliability, PIT, temperature, foreign rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax

from pyrofl import metrics


def calibrated(n: int, seed: int, *, sharpen: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """(confidence, right) with P(right | confidence) = confidence, then said `sharpen` times as sure in log-odds."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.5, 1.0, n)
    right = (rng.random(n) < truth).astype(float)
    return 1 / (1 + np.exp(-sharpen * np.log(truth / (1 - truth)))), right


# ------------------------------------------------------------------ isotonic reliability


def test_isotonic_curve_pools_adjacent_violators_by_hand():
    """Rows at 0.6 and 0.7 are out of order, so they share their mean 1/2."""
    curve = metrics.isotonic([0.5, 0.6, 0.7, 0.9], [0, 1, 0, 1], rng=np.random.default_rng(0), points=5, resamples=10)
    np.testing.assert_allclose(curve.confidence, [0.5, 0.6, 0.7, 0.8, 0.9])
    np.testing.assert_allclose(curve.accuracy, [0, 0.5, 0.5, 0.75, 1])
    fit = (0.25 + 0.25) / 4
    assert curve.miscalibration == pytest.approx((0.25 + 0.16 + 0.49 + 0.01) / 4 - fit)
    assert curve.discrimination == pytest.approx(0.25 - fit)


def test_isotonic_band_holds_a_calibrated_model_and_not_an_overconfident_one():
    inside = lambda c: float(np.mean((c.low - 1e-12 <= c.accuracy) & (c.accuracy <= c.high + 1e-12)))
    good = metrics.isotonic(*calibrated(2000, 1), rng=np.random.default_rng(2))
    sure = metrics.isotonic(*calibrated(2000, 1, sharpen=3), rng=np.random.default_rng(2))
    assert inside(good) > 0.85 and inside(sure) < 0.5
    assert good.miscalibration < 0.005 < 0.02 < sure.miscalibration
    assert good.discrimination == pytest.approx(sure.discrimination, abs=1e-9)  # the order is the same


@pytest.mark.parametrize("right", [[1, 1, 1], [0, 0, 0]])
def test_isotonic_of_rows_equally_sure_and_all_alike(right):
    curve = metrics.isotonic([1.0, 1.0, 1.0], right, rng=np.random.default_rng(0), resamples=5)
    np.testing.assert_array_equal(curve.accuracy, float(right[0]))
    assert curve.miscalibration == 1.0 - right[0]


# ------------------------------------------------------------------ interval of the calibration error


def test_interval_from_confidences_is_the_interval_from_probabilities():
    confidence, right = calibrated(300, 3)
    p = np.stack([1 - confidence, confidence], axis=-1)
    asked = metrics.ece_interval(p, right.astype(int), rng=np.random.default_rng(4))
    assert metrics.confidence_interval(confidence, right, rng=np.random.default_rng(4)) == asked


# ------------------------------------------------------------------ probability integral transform


@pytest.mark.parametrize("counts", [False, True])
def test_pit_of_exchangeable_draws_is_uniform(counts):
    rng = np.random.default_rng(5)
    some = rng.poisson(1.5, (10, 4000)).astype(float) if counts else rng.normal(size=(10, 4000))
    u = metrics.pit(some[1:], some[0], rng=rng)
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert u.min() > 0 and u.max() < 1


def test_pit_by_hand_and_its_coverage():
    u = metrics.pit(np.tile([[1.0], [2.0], [3.0]], 3), [0.0, 2.5, 9.0], rng=np.random.default_rng(6))
    assert (np.floor(4 * u) == [0, 2, 3]).all()  # 0, 2 and 3 of 3 draws lie below
    rng = np.random.default_rng(7)
    narrow = metrics.pit(0.3 * rng.normal(size=(99, 2000)), rng.normal(size=2000), rng=rng)
    central = float(np.mean(np.abs(2 * narrow - 1) <= 0.9))
    assert central == pytest.approx(2 * stats.norm.cdf(1.645 * 0.3) - 1, abs=0.04)


# ------------------------------------------------------------------ temperature


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
def test_temperature_finds_how_much_too_sure_the_logits_are(truth):
    rng = np.random.default_rng(8)
    logits = rng.normal(scale=2, size=(4000, 3))
    p = np.exp(log_softmax(logits, axis=-1))
    y = (rng.random((4000, 1)) > p.cumsum(1)).sum(1)
    assert metrics.temperature(truth * logits[None], y) == pytest.approx(truth, rel=0.1)


def test_temperature_needs_no_rows_and_stays_finite_where_all_are_right():
    assert metrics.temperature(np.zeros((2, 0, 3)), []) == 1.0
    assert metrics.temperature(np.zeros((2, 5, 3)), [0, 1, 2, 0, 1]) == pytest.approx(1.0, abs=1e-4)  # nothing to say
    sure = metrics.temperature(np.log([[[0.9, 0.1], [0.2, 0.8]]]), [0, 1])
    assert 0.2 < sure < 1.0


def test_temperature_averages_probabilities_over_draws():
    """Draws that contradict each other are unsure on average, whatever the temperature of each: T stays near 1."""
    logits = np.array([[[9.0, -9.0]] * 50, [[-9.0, 9.0]] * 50])
    assert math.log(metrics.temperature(logits, [0, 1] * 25)) == pytest.approx(0, abs=0.3)


# ------------------------------------------------------------------ foreign rows


def test_ood_auroc_counts_pairs_in_the_right_order():
    assert metrics.ood_auroc([0.1, 0.4], [0.3, 0.5]).value == 0.75
    assert metrics.ood_auroc([0.2], [0.2]).value == 0.5
    assert "undefined" in metrics.ood_auroc([0.2], []).note


# ------------------------------------------------------------------ what is kept of each row


def test_by_row_keeps_what_the_scores_are_made_of():
    p = np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.7, 0.3], [0.5, 0.5]]])  # (draws, rows, classes)
    y, ll = np.array([0, 0]), np.log(p[:, :, 0])
    rows = metrics.by_row("categorical", y, p=p, log_likelihood=ll, rng=np.random.default_rng(0))
    np.testing.assert_allclose(rows["confidence"], [0.8, 0.6])
    np.testing.assert_array_equal(rows["right"], [1, 0])
    scores = metrics.scores("categorical", y, p=p, log_likelihood=ll)
    assert rows["nll"].mean() == pytest.approx(scores["nll"])
    assert rows["entropy"].mean() == pytest.approx(scores["entropy"])
    assert rows["epistemic"].mean() == pytest.approx(scores["entropy_epistemic"])


def test_by_row_of_numbers():
    draws = np.array([[1.0, 2.0], [3.0, 2.5]])
    rows = metrics.by_row("gaussian", [2.0, 9.0], draws=draws, log_likelihood=-draws, rng=np.random.default_rng(0))
    assert rows.keys() == {"y", "nll", "mean", "pit"}
    np.testing.assert_allclose(rows["mean"], [2, 2.25])
    assert 1 / 3 < rows["pit"][0] < 2 / 3 < rows["pit"][1]
