"""Scores have known answers: by hand, in closed form, by scikit-learn, and by what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import rel_entr, softmax
from sklearn import metrics as sk

from pyrofl import metrics as m

SETTINGS = settings(max_examples=40, deadline=None)


def forecasts(seed: int, *, draws: int = 4, rows: int = 30, classes: int = 3):
    """Random class probabilities (S, B, K), labels and their log-likelihood; every class occurs."""
    rng = np.random.default_rng(seed)
    p = softmax(2 * rng.normal(size=(draws, rows, classes)), axis=-1)
    y = np.append(np.arange(classes), rng.integers(classes, size=rows - classes))
    return p, y, np.log(p[:, np.arange(rows), y])


# ---- classification ----


def test_scores_by_hand():
    p = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
    y = [0, 1, 0, 2]
    assert m.accuracy(p, y) == 0.5
    assert_allclose(m.balanced_accuracy(p, y), (1 / 2 + 1 + 0) / 3)
    assert_allclose(m.brier(p, y), (0.02 + 0.38 + 0.74 + 1.46) / 4)
    assert_allclose(m.selective_accuracy(p, y, share=0.5), 1 / 2)  # rows 0 and 3 are the surest
    assert_allclose(m.selective_accuracy(p, y, share=0.25), 1.0)
    assert m.selective_accuracy(p, y, share=1.0) == m.accuracy(p, y)


@SETTINGS
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 5]), st.booleans())
def test_scores_agree_with_scikit_learn(seed, classes, weighted):
    p, y, _ = forecasts(seed, classes=classes)
    w = np.random.default_rng(seed).uniform(0.1, 2, len(y)) if weighted else None
    q = p.mean(axis=0)
    guess = q.argmax(axis=1)
    assert_allclose(m.accuracy(p, y, weights=w), sk.accuracy_score(y, guess, sample_weight=w))
    assert_allclose(m.balanced_accuracy(p, y, weights=w), sk.balanced_accuracy_score(y, guess, sample_weight=w))
    assert_allclose(
        m.nll(np.log(q[np.arange(len(y)), y])[None], weights=w).value,
        sk.log_loss(y, q, sample_weight=w, labels=range(classes)),
    )
    if classes == 2:
        assert_allclose(m.brier(p, y, weights=w), sk.brier_score_loss(y, q[:, 1], sample_weight=w))
        assert_allclose(m.auroc(p, y, weights=w).value, sk.roc_auc_score(y, q[:, 1], sample_weight=w))
    else:
        auroc = sk.roc_auc_score(y, q, sample_weight=w, multi_class="ovr", average="macro")
        assert_allclose(m.auroc(p, y, weights=w).value, auroc)


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    p = m.two_classes(np.array([0.1, 0.4, 0.35, 0.8, 0.4]))
    # events 0.35, 0.8, 0.4 against non-events 0.1, 0.4: won 1, 2, 1 pairs, tied 0, 0, 1 of 6
    assert_allclose(m.auroc(p, [0, 0, 1, 1, 1]).value, 4.5 / 6)


@pytest.mark.parametrize("y", [[0, 0, 0], [1, 1, 1]])
def test_auroc_of_one_class_is_undefined_with_a_reason(y):
    score = m.auroc(m.two_classes(np.array([0.2, 0.6, 0.9])), y)
    assert score.value is None
    assert "one class" in score.note


def test_auroc_ignores_classes_that_a_client_lacks_and_rows_without_weight():
    p, y, _ = forecasts(0, classes=3)
    two = y != 2
    q = p.mean(axis=0)[two]
    expected = np.mean([sk.roc_auc_score(y[two] == k, q[:, k]) for k in (0, 1)])
    assert_allclose(m.auroc(p[:, two], y[two]).value, expected)
    assert_allclose(m.auroc(p, y, weights=two).value, expected)
    assert m.auroc(p, y, weights=y == 1).value is None


def test_ties_at_the_border_of_selective_accuracy_count_in_part():
    p = m.two_classes(np.array([0.9, 0.8, 0.8, 0.8, 0.6]))
    y = [1, 1, 0, 0, 1]
    # 2 of 5 rows: the surest is right; one of three tied rows, of which one is right
    assert_allclose(m.selective_accuracy(p, y, share=0.4), (1 + 1 / 3) / 2)
    for order in ([0, 2, 1, 3, 4], [4, 3, 2, 1, 0]):
        assert_allclose(m.selective_accuracy(p[order], np.take(y, order), share=0.4), (1 + 1 / 3) / 2)


# ---- log score ----


def test_nll_averages_probabilities_over_draws_not_their_logarithms():
    p = np.array([[0.5, 0.2], [0.1, 0.4]])
    assert_allclose(m.nll(np.log(p)).value, -(math.log(0.3) + math.log(0.3)) / 2)


def test_nll_survives_underflow_of_the_probability():
    assert_allclose(m.nll([[-2000.0], [-2001.0]]).value, 2000 + math.log(2) - math.log1p(math.exp(-1)))
    assert math.exp(-2000) == 0


def test_nll_takes_sure_float32_predictions():
    """sigmoid(17) rounds to 1 in float32; the log-likelihood of the other label is still -17."""
    logit = np.float32(17)
    p = np.float32(1) / (np.float32(1) + np.exp(-logit, dtype=np.float32))
    assert p == 1
    ll = -np.logaddexp(0, np.array([[-17.0, 17.0]]))
    out = m.explained("bernoulli", [1, 0], p=np.full((1, 2), p), log_likelihood=ll)
    assert_allclose(out["nll"].value, (17 + 2 * math.log1p(math.exp(-17))) / 2)
    assert out["ece"].value == 0.5
    assert out["brier"].value == 0.5


def test_an_impossible_row_is_infinite_and_named_but_one_impossible_draw_is_not():
    ll = np.log(np.full((3, 5), 0.5))
    ll[1, 2] = -np.inf
    assert_allclose(m.nll(ll).value, -(4 * math.log(0.5) + math.log(1 / 3)) / 5)
    ll[:, 2] = -np.inf
    score = m.nll(ll)
    assert score.value == math.inf
    assert "row 2 has probability 0" in score.note
    assert_allclose(m.nll(ll, weights=[1, 1, 0, 1, 1]).value, math.log(2))


def test_nan_in_the_log_likelihood_is_an_error_that_names_row_and_draw():
    ll = np.zeros((2, 3))
    ll[1, 2] = np.nan
    with pytest.raises(ValueError, match="row 2 under draw 1"):
        m.nll(ll)


# ---- calibration ----


def test_ece_by_hand():
    p = m.two_classes(np.array([0.95, 0.85, 0.15, 0.65, 0.55]))
    y = [1, 1, 1, 0, 1]
    # five bins of width 0.2: 0.8-1 holds confidences 0.95, 0.85, 0.85 (right, right, wrong);
    # 0.6-0.8 holds 0.65 (wrong); 0.4-0.6 holds 0.55 (right)
    table = m.reliability(p, y, bins=5)
    assert table.rows.tolist() == [0, 0, 1, 1, 3]
    assert_allclose(table.accuracy[2:], [1, 0, 2 / 3])
    assert_allclose(table.confidence[2:], [0.55, 0.65, 2.65 / 3])
    expected = (0.45 + 0.65 + abs(2 - 2.65)) / 5
    assert_allclose(table.ece, expected)
    assert m.ece(p, y, bins=5) == table.ece


def test_perfectly_calibrated_forecasts_have_no_calibration_error():
    """Ten rows at confidence 0.7 of which seven are right, ten at 0.9 of which nine are."""
    confidence = np.repeat([0.7, 0.9], 10)
    y = np.array([1] * 7 + [0] * 3 + [1] * 9 + [0])
    p = m.two_classes(confidence)
    assert_allclose(m.ece(p, y), 0, atol=1e-12)
    assert_allclose(m.adaptive_ece(p, y), 0, atol=1e-12)
    wrong = m.two_classes(np.clip(confidence + 0.05, 0, 1))
    assert_allclose(m.ece(wrong, y), 0.05, atol=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 15, 1000])
@pytest.mark.parametrize("adaptive", [False, True])
def test_confidence_one_and_more_bins_than_rows(bins, adaptive):
    p = m.two_classes(np.array([1.0, 1.0, 0.5, 0.0]))
    table = m.reliability(p, [1, 0, 1, 0], bins=bins, adaptive=adaptive)
    assert table.rows.sum() == 4
    assert len(table.rows) <= min(bins, 4)
    assert table.rows[-1] >= 3  # the rows of confidence 1 are in the last bin
    assert_allclose(table.weight.sum(), 1)
    assert math.isfinite(table.ece)


def test_adaptive_bins_hold_equally_many_rows_and_never_split_ties():
    rng = np.random.default_rng(0)
    p = m.two_classes(rng.uniform(0.5, 1, 103))
    rows = m.reliability(p, rng.integers(2, size=103), bins=10, adaptive=True).rows
    assert rows.sum() == 103
    assert rows.max() - rows.min() <= 1
    tied = m.reliability(m.two_classes(np.full(20, 0.75)), [1] * 15 + [0] * 5, bins=10, adaptive=True)
    assert tied.rows.tolist() == [20]
    assert_allclose(tied.ece, 0)


def test_a_whole_weight_is_a_repeated_row():
    p, y, ll = forecasts(3)
    w = np.random.default_rng(3).integers(0, 4, len(y))
    again = np.repeat(np.arange(len(y)), w)
    for score in (m.accuracy, m.balanced_accuracy, m.brier, m.ece, m.selective_accuracy):
        assert_allclose(score(p, y, weights=w), score(p[:, again], y[again]), err_msg=score.__name__)
    assert_allclose(m.auroc(p, y, weights=w).value, m.auroc(p[:, again], y[again]).value)
    assert_allclose(m.nll(ll, weights=w).value, m.nll(ll[:, again]).value)


def test_interval_of_the_calibration_error_covers_the_truth():
    """Coverage over 60 data sets of a calibrated and of an over-confident model, nominal 95%."""
    rng = np.random.default_rng(5)
    for excess, truth in ((0.0, 0.0), (0.2, 0.2)):
        inside = 0
        for _ in range(60):
            confidence = rng.uniform(0.75, 0.95, 150)
            right = rng.random(150) < confidence - excess
            p = m.two_classes(confidence)
            found = m.ece_interval(p, right.astype(int), rng=rng, bins=4, resamples=200)
            inside += found.low <= truth <= found.high
        assert inside >= 52, excess  # below 52 with probability 0.6% if coverage is 95%


def test_interval_is_a_function_of_the_generator_and_names_itself():
    p, y, _ = forecasts(1)
    a, b, c = (m.ece_interval(p, y, rng=np.random.default_rng(k), level=0.9) for k in (1, 1, 2))
    assert a == b != c
    assert a.level == 0.9
    assert a.kind == "basic bootstrap"
    assert a.low <= m.ece(p, y) <= a.high


# ---- entropy ----


@SETTINGS
@given(st.integers(0, 10_000), st.sampled_from([np.float32, np.float64]))
def test_entropy_splits_into_noise_and_mutual_information(seed, dtype):
    p, _, _ = forecasts(seed)
    parts = m.entropy(p.astype(dtype))
    mutual = rel_entr(p, p.mean(axis=0)).sum(axis=-1).mean(axis=0)  # mean KL from the mean, another way
    assert_allclose(parts.epistemic, mutual, rtol=1e-4 if dtype == np.float32 else 1e-9)
    assert_allclose(parts.total, parts.aleatoric + parts.epistemic)


def test_entropy_of_draws_that_agree_or_contradict():
    agree = m.entropy(np.full((5, 1, 4), 0.25))
    assert_allclose([agree.total[0], agree.aleatoric[0], agree.epistemic[0]], [math.log(4), math.log(4), 0])
    contradict = m.entropy([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert_allclose([contradict.total[0], contradict.aleatoric[0]], [math.log(2), 0])
    with pytest.raises(ValueError, match="draws"):
        m.entropy([[0.5, 0.5]])


# ---- numbers and counts ----


def test_crps_of_a_gaussian_in_closed_form():
    """CRPS(N(mu, s), y) = s (z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi)), z = (y - mu)/s."""
    mu, s, y = 2.0, 3.0, np.array([-4.0, 2.0, 2.5, 9.0])
    z = (y - mu) / s
    exact = s * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    quantiles = stats.norm.ppf((np.arange(4000) + 0.5) / 4000, mu, s)
    for value, expected in zip(y, exact):
        assert_allclose(m.crps(quantiles[:, None], [value]).value, expected, rtol=2e-3)


def test_crps_is_the_double_sum_and_unbiased_in_the_number_of_draws():
    rng = np.random.default_rng(0)
    draws, y = rng.poisson(3, size=(7, 5)), np.array([0, 2, 3, 5, 11])
    pairs = np.abs(draws[:, None] - draws[None]).sum(axis=(0, 1)) / (7 * 6)
    assert_allclose(m.crps(draws, y).value, np.mean(np.abs(draws - y).mean(axis=0) - pairs / 2))
    large = rng.normal(size=(3, 100_000))
    exact = (math.sqrt(2) - 1) / math.sqrt(math.pi)  # N(0, 1) at y = 0
    assert_allclose(m.crps(large, np.zeros(100_000)).value, exact, atol=0.01)


def test_crps_loses_no_digits_far_from_zero_and_needs_two_draws():
    draws, y = np.array([[1.0], [2.0], [4.0]]), np.array([2.0])
    assert_allclose(m.crps(draws + 1e9, y + 1e9).value, m.crps(draws, y).value, rtol=1e-6)
    assert m.crps([[1.0]], [1.0]).value is None


def test_coverage_of_exchangeable_draws_is_the_level():
    rng = np.random.default_rng(2)
    for S, level in ((19, 0.9), (25, 0.9), (200, 0.9), (3, 0.5), (50, 0.5)):
        draws, y = rng.normal(size=(S, 40_000)), rng.normal(size=40_000)
        assert_allclose(m.coverage(draws, y, level=level).value, level, atol=0.01, err_msg=str((S, level)))


def test_coverage_by_hand_closed_ends_and_too_few_draws():
    draws = np.arange(1.0, 20.0)[:, None] * np.ones(4)  # 90% interval from the 1st to the 19th of 19 draws
    assert m.coverage(draws, [1, 19, 0.9, 19.1], level=0.9).value == 0.5
    short = m.coverage(draws[:18], [1, 2, 3, 4], level=0.9)
    assert short.value is None
    assert "needs 19 draws, there are 18" in short.note


def test_rmse_by_hand():
    assert_allclose(m.rmse([[1.0, 2.0], [3.0, 2.0]], [0.0, 2.0]), math.sqrt((4 + 0) / 2))


# ---- weights ----


def test_balanced_weights_turn_accuracy_into_balanced_accuracy():
    p, y, _ = forecasts(4)
    w = m.balanced_weights(y)
    assert_allclose(m.accuracy(p, y, weights=w), m.balanced_accuracy(p, y))
    assert_allclose(w.sum(), len(y))
    assert_allclose([w[y == k].sum() for k in range(3)], len(y) / 3)


def test_matched_weights_give_common_rows_the_label_mix_of_the_client():
    y = np.array([0, 0, 1, 1, 1, 2])
    w = m.matched_weights(y, proportions=[30, 10, 0])
    assert_allclose(np.bincount(y, w) / w.sum(), [0.75, 0.25, 0])
    assert_allclose(w, np.array([0.75, 0.75, 0.25, 0.25, 0.25, 0]) / np.array([2, 2, 3, 3, 3, 1]) * 6)
    with pytest.raises(ValueError, match=r"class 3 is 40\.0% of the client's rows"):
        m.matched_weights(y, proportions=[6, 0, 0, 4])


# ---- all scores of a client, and over clients ----


@SETTINGS
@given(st.integers(0, 10_000))
def test_the_order_of_rows_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    p, y, ll = forecasts(seed)
    p = np.round(p, 1) + 1e-3  # many ties
    p /= p.sum(axis=-1, keepdims=True)
    w, order, shuffled = rng.uniform(size=len(y)), rng.permutation(len(y)), rng.permutation(len(p))
    a = m.scores("categorical", y, p=p, log_likelihood=ll, weights=w)
    b = m.scores("categorical", y[order], p=p[:, order], log_likelihood=ll[:, order], weights=w[order])
    c = m.scores("categorical", y, p=p[shuffled], log_likelihood=ll[shuffled], weights=w)
    assert a.keys() == b.keys() == c.keys()
    assert_allclose(list(b.values()), list(a.values()))
    for name in ("nll", "brier", "entropy_epistemic"):  # continuous in the last digit of the mean over draws
        assert_allclose(c[name], a[name])


def test_codes_of_the_classes_do_not_matter():
    p, y, ll = forecasts(6)
    new = np.array([2, 0, 1])  # class k is renamed new[k]
    renamed = np.empty_like(p)
    renamed[..., new] = p
    a = m.scores("categorical", y, p=p, log_likelihood=ll)
    b = m.scores("categorical", new[y], p=renamed, log_likelihood=ll)
    assert_allclose(list(b.values()), list(a.values()))


def test_bernoulli_is_categorical_with_two_classes():
    p, y, ll = forecasts(7, classes=2)
    a = m.scores("categorical", y, p=p, log_likelihood=ll)
    b = m.scores("bernoulli", y, p=p[..., 1], log_likelihood=ll)
    assert a.keys() == b.keys()
    assert_allclose(list(b.values()), list(a.values()))


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_numbers_and_counts(kind):
    rng = np.random.default_rng(1)
    draws, y = rng.poisson(4.0, size=(40, 6)), rng.poisson(4.0, size=6)
    ll = stats.poisson.logpmf(y, 4.0) * np.ones((40, 1))
    out = m.scores(kind, y, draws=draws, log_likelihood=ll)
    assert list(out) == ["rmse", "crps", "coverage_50", "coverage_90", "nll"]
    assert_allclose(out["nll"], -stats.poisson.logpmf(y, 4.0).mean())
    assert out["crps"] == m.crps(draws, y).value


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian", "poisson"])
def test_a_client_without_rows_has_no_scores_and_every_score_has_a_meaning(kind):
    shape = (3, 0, 4) if kind == "categorical" else (3, 0)
    empty = np.zeros(shape)
    out = m.explained(kind, [], p=empty, draws=empty, log_likelihood=np.zeros((3, 0)))
    assert {score for score in out.values()} == {m.Score(None, "undefined: no rows")}
    assert out.keys() <= m.SCORES.keys()


def test_pooled_counts_rows_and_the_summary_counts_clients():
    p, y, ll = forecasts(8, rows=30)
    cut = {"north": slice(0, 5), "south": slice(5, 30)}
    parts = {name: {"y": y[s], "p": p[:, s], "log_likelihood": ll[:, s]} for name, s in cut.items()}
    whole = m.explained("categorical", y, p=p, log_likelihood=ll)
    assert m.pooled("categorical", parts) == whole
    each = {name: m.scores("categorical", **arrays)["nll"] for name, arrays in parts.items()}
    over = m.summary("nll", each)
    assert_allclose(over.mean_over_clients, (each["north"] + each["south"]) / 2)
    assert_allclose(whole["nll"].value, (5 * each["north"] + 25 * each["south"]) / 30)
    parts["south"]["p"] = p[:2, 5:]
    with pytest.raises(ValueError, match="'south' has 2 draws and of 'north' 4"):
        m.pooled("categorical", parts)


def test_summary_by_hand():
    over = m.summary("auroc", {"a": 0.9, "b": None, "c": 0.7, "d": 0.8})
    assert_allclose([over.mean_over_clients, over.spread_over_clients, over.worst], [0.8, 0.1, 0.7])
    assert (over.worst_client, over.defined, over.undefined) == ("c", 3, 1)
    assert m.summary("nll", {"a": 0.9, "c": 0.7}).worst_client == "a"
    assert m.summary("personal/accuracy", {"a": 0.9, "c": 0.7}).worst_client == "c"
    assert m.summary("entropy", {"a": 0.9, "c": 0.7}).worst_client is None
    assert m.summary("auroc", {"a": None, "b": None}) == m.Summary(None, None, None, None, 0, 2)
    assert m.summary("nll", {"a": 1.0}).spread_over_clients is None


def test_one_infinite_client_is_the_worst_and_never_nan():
    over = m.summary("nll", {"a": 0.9, "b": math.inf, "c": 0.7})
    assert over == m.Summary(math.inf, math.inf, math.inf, "b", 3, 0)
    with pytest.raises(ValueError, match="client 'a' is NaN"):
        m.summary("nll", {"a": math.nan})


def test_paired_difference_is_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.8, 0.1, 12), rng.normal(0.7, 0.1, 12)
    found = m.paired_difference(dict(enumerate(a)), dict(enumerate(b)), level=0.9)
    reference = stats.ttest_rel(a, b).confidence_interval(0.9)
    assert_allclose(found.mean, np.mean(a - b))
    assert_allclose([found.interval.low, found.interval.high], [reference.low, reference.high])
    assert (found.pairs, found.interval.level, found.interval.kind) == (12, 0.9, "paired t, 11 df")


def test_seeds_that_deal_the_same_rows_anew_widen_the_interval():
    a, b = {1: 0.8, 2: 0.9, 3: 0.7}, {1: 0.7, 2: 0.85, 3: 0.72}
    plain, wide = (m.paired_difference(a, b, overlap=o).interval for o in (0.0, 0.25))
    ratio = (wide.high - wide.low) / (plain.high - plain.low)
    assert ratio == pytest.approx(math.sqrt((1 / 3 + 0.25) / (1 / 3)))  # Nadeau and Bengio's (1/n + n2/n1) for 1/n
    assert wide.kind == "paired t, 2 df, rows dealt anew (overlap 0.25)"
    for options in ({"overlap": -0.1}, {"overlap": 0.25, "kind": "bootstrap", "rng": np.random.default_rng(0)}):
        with pytest.raises(ValueError, match="overlap must be at least 0"):
            m.paired_difference(a, b, **options)


def test_corrected_intervals_cover_where_plain_ones_do_not():
    # two constant guesses of a mean, scored on half of 40 rows, dealt anew ten times: their gap on new rows is known
    rng, guesses, covered = np.random.default_rng(1), (0.0, 0.6), {0.0: 0, 1.0: 0}
    truth = guesses[0] ** 2 - guesses[1] ** 2  # E (y - g0)^2 - E (y - g1)^2 with E y = 0
    for _ in range(300):
        rows = rng.normal(size=40)
        one, other = ({s: 0.0 for s in range(10)} for _ in range(2))
        for s in range(10):
            test = rng.permutation(rows)[:20]
            one[s], other[s] = (float(((test - g) ** 2).mean()) for g in guesses)
        for overlap in covered:
            found = m.paired_difference(one, other, overlap=overlap).interval
            covered[overlap] += found.low <= truth <= found.high
    assert covered[0.0] < 0.7 * 300 and covered[1.0] > 0.93 * 300, covered


def test_paired_bootstrap_agrees_with_t_on_many_units_and_follows_the_generator():
    rng = np.random.default_rng(0)
    a = dict(enumerate(rng.normal(0.1, 1, 400)))
    b = dict.fromkeys(a, 0.0)
    t = m.paired_difference(a, b)
    one, two = (m.paired_difference(a, b, kind="bootstrap", rng=np.random.default_rng(3)) for _ in range(2))
    assert one == two
    assert_allclose([one.interval.low, one.interval.high], [t.interval.low, t.interval.high], atol=0.01)
    with pytest.raises(ValueError, match="rng"):
        m.paired_difference(a, b, kind="bootstrap")


def test_paired_difference_drops_undefined_pairs_and_says_so():
    found = m.paired_difference({"a": 1.0, "b": None, "c": 2.0}, {"a": 0.5, "b": 1.0, "c": 1.5})
    assert (found.mean, found.pairs, found.note) == (0.5, 2, "1 of 3 units are undefined")
    assert (found.interval.low, found.interval.high) == (0.5, 0.5)
    assert m.paired_difference({"a": math.inf}, {"a": 1.0}).mean is None
    assert m.paired_difference({"a": None}, {"a": 1.0}).mean is None
    assert m.paired_difference({"a": 1.5}, {"a": 1.0}).interval is None
    with pytest.raises(ValueError, match="first is b"):
        m.paired_difference({"a": 1.0, "b": 1.0}, {"a": 1.0})


# ---- errors ----

GOOD = np.array([[0.5, 0.5], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (
            np.array([[0.5, 0.5], [2.0, -1.0]]),
            [0, 1],
            "row 1 holds no class probabilities: it has a negative",
        ),
        (np.array([[0.5, 0.5], [0.5, 0.9]]), [0, 1], "row 1 .* the sum 1.4"),
        (np.array([[0.5, 0.5], [np.nan, 0.9]]), [0, 1], "row 1 .* the sum nan"),
        (np.array([[[0.5, 0.5], [1.5, -0.5]], [[0.5, 0.5], [0.5, 0.5]]]), [0, 1], "row 1 .* negative"),
        (GOOD, [0, 2], "row 1 has label 2, outside the model's classes 0..1"),
        (GOOD, [0.5, 1], "row 0 has label 0.5"),
        (GOOD, [0, 1, 1], "2 rows were predicted and 3 observed"),
        (np.zeros((0, 2)), [], "no rows"),
        (np.array([0.5, 0.5]), [0], "shape"),
    ],
)
def test_errors_say_what_and_where(p, y, message):
    with pytest.raises(ValueError, match=message):
        m.accuracy(p, y)


@pytest.mark.parametrize("weights", [[1.0], [1, -1], [0, 0], [1, np.nan]])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        m.accuracy(GOOD, [0, 1], weights=weights)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match='did you mean "categorical"'):
        m.scores("categorial", [0, 1], p=GOOD[None], log_likelihood=[[0, 0]])
    with pytest.raises(ValueError, match='did you mean "accuracy"'):
        m.summary("acuracy", {"a": 1.0})
    with pytest.raises(TypeError, match="need `draws`"):
        m.scores("gaussian", [0, 1], p=GOOD[None], log_likelihood=[[0, 0]])
