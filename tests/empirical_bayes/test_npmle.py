"""The nonparametric estimate: hand-solved problems, the certificate, invariances, hard inputs."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrofl.empirical_bayes import QuadraticVariance, adamix, gaussian_prior, npmle
from pyrofl.empirical_bayes.weights import em_weights


def sites(seed=0, count=60, d=1):
    rng = np.random.default_rng(seed)
    theta = rng.choice([-1.5, 0.0, 2.0], (count, d))
    variance = rng.uniform(0.1, 0.6, (count, d))
    return theta + np.sqrt(variance) * rng.normal(size=(count, d)), variance


def derivative(fit, z, variance, theta):
    """D(theta) from its definition, diagonal variances."""
    density = lambda t: np.exp(-0.5 * ((z - t) ** 2 / variance + np.log(2 * np.pi * variance)).sum(axis=1))
    f = sum(w * density(a) for w, a in zip(fit.weights, fit.atoms))
    return (density(theta) / f).mean() - 1.0


def test_two_far_sites_are_two_atoms():
    fit = npmle([-10.0, 10.0], [1.0, 1.0])
    np.testing.assert_allclose(np.sort(fit.atoms[:, 0]), [-10, 10], atol=1e-6)
    np.testing.assert_allclose(fit.weights, [0.5, 0.5], atol=1e-9)
    assert fit.log_likelihood == pytest.approx(np.log(0.5) - 0.5 * np.log(2 * np.pi), abs=1e-9)
    assert any("barely identified" in note for note in fit.notes)


def test_two_near_sites_are_one_atom():
    # one atom is optimal for two sites with variance one when they lie less than two apart
    fit = npmle([-0.9, 0.9], [1.0, 1.0], tolerance=1e-7)
    np.testing.assert_allclose(fit.sites.mean, 0.0, atol=1e-2)
    assert fit.log_likelihood == pytest.approx(-0.5 * np.log(2 * np.pi) - 0.405, abs=1e-6)


def test_two_sites_beyond_two_apart_split():
    # symmetric atoms at +-a with a = b tanh(a b) at sites +-b
    b, a = 1.3, 1.0
    for _ in range(500):
        a = b * np.tanh(a * b)
    fit = npmle([-b, b], [1.0, 1.0], tolerance=1e-9)
    np.testing.assert_allclose(np.average(np.abs(fit.atoms[:, 0]), weights=fit.weights), a, atol=1e-3)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_equal_estimates_give_one_atom(d):
    fit = npmle(np.full((20, d), 0.7), np.full((20, d), 0.3))
    np.testing.assert_allclose(fit.atoms, 0.7, atol=1e-9)
    assert len(fit.weights) == 1
    assert fit.gap <= 1e-8


def of_one_atom(z, variance, place):
    """Log-likelihood of one atom, nats a site."""
    return float(np.mean(-0.5 * (z - place) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)))


def test_large_errors_give_one_place():
    z = np.random.default_rng(0).normal(size=50)
    fit = npmle(z, np.full(50, 100.0), tolerance=1e-6)
    np.testing.assert_allclose(fit.sites.mean[:, 0], z.mean(), atol=0.05)
    # the maximiser is one atom: the derivative there has its only peak, and more atoms gain nothing
    assert fit.log_likelihood == pytest.approx(of_one_atom(z, 100.0, z.mean()), abs=1e-6)


@pytest.mark.parametrize(("seed", "d"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_the_certificate_holds_on_a_fine_search(seed, d):
    z, V = sites(seed, 60, d)
    fit = npmle(z, V)
    assert fit.converged
    assert fit.gap_atoms <= 1e-8
    assert fit.gap <= 1e-4
    rng = np.random.default_rng(9)
    points = np.concatenate(
        [z, rng.uniform(z.min(0), z.max(0), (3000, d)), fit.atoms + 0.05 * rng.normal(size=fit.atoms.shape)]
    )
    assert max(derivative(fit, z, V, t) for t in points) <= 1e-4
    assert max(abs(derivative(fit, z, V, a)) for a, w in zip(fit.atoms, fit.weights) if w > 1e-3) <= 1e-6


def test_no_other_fit_is_more_likely():
    z, V = sites(4)
    fit = npmle(z, V)
    grid = np.linspace(z.min(), z.max(), 80)
    log = -0.5 * ((z - grid) ** 2 / V + np.log(2 * np.pi * V))
    em = np.log(np.exp(log) @ em_weights(np.exp(log), steps=3000)).mean()
    slack = fit.gap
    assert fit.log_likelihood >= log.mean(axis=0).max() - slack
    assert fit.log_likelihood >= em - slack
    assert fit.log_likelihood >= gaussian_prior(z, V).log_likelihood - slack
    assert fit.log_likelihood >= adamix(z, V, components=3).log_likelihood - slack
    assert fit.log_likelihood == pytest.approx(fit.sites.log_marginal.mean(), abs=1e-10)


def test_on_a_grid_the_weights_are_those_of_em():
    z, V = sites(5, 30)
    grid = np.linspace(-3, 3, 9)
    fit = npmle(z, V, atoms=grid, grid_only=True)
    L = np.exp(-0.5 * (z - grid) ** 2 / V)
    oracle = em_weights(L, steps=300_000)
    ours = np.zeros(9)
    ours[[int(np.argmin(abs(grid - a))) for a in fit.atoms[:, 0]]] = fit.weights
    np.testing.assert_allclose(L @ ours, L @ oracle, rtol=1e-6)
    assert fit.gap_atoms <= 1e-8


def means(z, V, **options):
    return npmle(z, V, tolerance=1e-7, **options).sites.mean


def test_shift_scale_and_order_of_rows():
    z, V = sites(6, 40, 2)
    base, shift = means(z, V), np.array([100.0, -7.0])
    np.testing.assert_allclose(means(z + shift, V), base + shift, atol=2e-3)
    np.testing.assert_allclose(means(1000 * z, 1e6 * V), 1000 * base, atol=2.0)
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(means(z[order], V[order]), base[order], atol=2e-3)


def test_rotation_with_isotropic_errors():
    z, _ = sites(7, 40, 2)
    V, angle = np.full((40, 2), 0.3), 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    np.testing.assert_allclose(means(z @ turn.T, V), means(z, V) @ turn.T, atol=2e-3)
    full = np.repeat((0.3 * np.eye(2))[None], 40, axis=0)
    np.testing.assert_allclose(means(z, full), means(z, V), atol=2e-3)


def test_doubled_sites_count_as_their_counts():
    z, V = sites(8, 30)
    once = npmle(z, V, tolerance=1e-7)
    twice = npmle(np.concatenate([z, z]), np.concatenate([V, V]), counts=np.full(60, 0.5), tolerance=1e-7)
    assert twice.log_likelihood == pytest.approx(once.log_likelihood, abs=1e-7)
    weighted = npmle(z, V, counts=1 + np.arange(30) % 2, tolerance=1e-7)
    repeated = npmle(
        np.repeat(z, 1 + np.arange(30) % 2, axis=0), np.repeat(V, 1 + np.arange(30) % 2, axis=0), tolerance=1e-7
    )
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-6)


def test_a_constant_variance_function_is_the_fixed_case():
    z, _ = sites(9, 50, 2)
    n = np.random.default_rng(1).integers(3, 9, 50)
    moving = npmle(QuadraticVariance(0.8, 0.0, 0.0).kernel(z, n), tolerance=1e-6)
    fixed = npmle(z, np.repeat(0.8 / n[:, None], 2, axis=1), tolerance=1e-6)
    assert moving.log_likelihood == pytest.approx(fixed.log_likelihood, abs=1e-6)
    np.testing.assert_allclose(moving.sites.mean, fixed.sites.mean, atol=5e-3)


def test_one_site_stays_when_its_variance_is_fixed_and_moves_when_it_is_not():
    assert npmle([2.0], [0.3]).atoms[0, 0] == pytest.approx(2.0, abs=1e-9)
    family = QuadraticVariance(0.3, 0.0, 0.5)
    fit = npmle(family.kernel(np.array([[2.0]]), np.array([1.0])), tolerance=1e-9)
    # the maximiser of log N(2; t, v(t)): its derivative (2 - t)/v + ((2 - t)^2/v - 1) v'/(2 v) vanishes
    t = fit.atoms[0, 0]
    v, slope = 0.3 + 0.5 * t * t, t
    assert (2 - t) / v + ((2 - t) ** 2 / v - 1) * slope / (2 * v) == pytest.approx(0.0, abs=5e-3)
    assert 0.0 < t < 1.9


def test_exact_sites_keep_their_estimates_and_bare_ones_get_the_prior():
    fit = npmle([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0])
    assert fit.sites.mean[:2, 0].tolist() == [1.0, 2.0]
    assert fit.sites.standard_deviation[:2, 0].tolist() == [0.0, 0.0]
    z, V = sites(10, 40)
    bare = npmle(np.append(z, 99.0), np.append(V, np.inf))
    assert bare.sites.mean[-1, 0] == pytest.approx(bare.mean[0], abs=1e-9)
    np.testing.assert_allclose(bare.sites.mean[:-1], means(z, V), atol=2e-2)


def test_ten_estimates_with_a_range_of_errors():
    z = np.random.default_rng(3).normal(size=10)
    assert npmle(z, np.linspace(0.1, 0.95, 10) ** 2).converged


def test_narrow_errors_on_a_wide_grid_stay_finite():
    z = 0.015 + 0.00008 * np.random.default_rng(0).normal(size=40)
    fit = npmle(z, np.full(40, 0.00008**2), atoms=np.linspace(-10, 10, 300), grid_only=True)
    assert np.isfinite(fit.log_likelihood)
    assert np.isfinite(fit.sites.mean).all()
    assert len(fit.weights) <= 2
    free = npmle(z, np.full(40, 0.00008**2), atoms=np.linspace(-10, 10, 300))
    assert free.converged
    np.testing.assert_allclose(free.sites.mean, 0.015, atol=3e-4)


def test_a_site_with_a_rounding_error_does_not_dominate():
    z, V = sites(11, 40)
    tiny = npmle(np.append(z, 5.0), np.append(V, 4e-30))
    np.testing.assert_allclose(tiny.sites.mean[:-1], means(z, V), atol=0.1)
    assert tiny.sites.mean[-1, 0] == pytest.approx(5.0, abs=1e-5)


def test_very_unequal_errors_converge():
    rng = np.random.default_rng(12)
    se = 10.0 ** rng.uniform(-5, 0, 80)
    fit = npmle(rng.normal(size=80) + se * rng.normal(size=80), se**2)
    assert fit.converged
    assert fit.gap_atoms <= 1e-8


def test_stopped_early_says_so_and_is_usable():
    z, V = sites(13, 80, 3)
    fit = npmle(z, V, max_steps=0, tolerance=1e-9)
    assert fit.status.startswith("stopped after 0 steps")
    assert not fit.converged
    assert fit.gap > 1e-9
    assert fit.gap_atoms <= 1e-8
    assert np.isfinite(fit.sites.mean).all()
    hurried = npmle(z, V, max_seconds=0.0, tolerance=1e-9)
    assert hurried.status.startswith("stopped after 0 s")


def test_progress_never_falls_and_threads_change_nothing():
    z, V = sites(14, 80, 2)
    steps = []
    one = npmle(z, V, workers=1, progress=steps.append)
    two = npmle(z, V, workers=2)
    assert np.diff([s.log_likelihood for s in steps]).min() >= -1e-12
    assert steps[-1].gap == one.gap
    np.testing.assert_array_equal(one.atoms, two.atoms)
    np.testing.assert_array_equal(one.weights, two.weights)


def test_little_memory_is_enough():
    z, V = sites(15, 400)
    fit = npmle(z, V, memory=400 * 40 * 8 / 2**30)
    assert fit.converged
    assert fit.gap_atoms <= 1e-8
    with pytest.raises(ValueError, match="need memory="):
        npmle(z, V, atoms=np.linspace(-3, 3, 900), memory=1e-4)


def test_a_first_guess_from_some_sites_reaches_the_same(monkeypatch):
    z, V = sites(16, 600)
    plain = npmle(z, V, tolerance=1e-6)
    monkeypatch.setattr(importlib.import_module("pyrofl.empirical_bayes.npmle"), "MANY", 100)
    guessed = npmle(z, V, tolerance=1e-6)
    assert guessed.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-6)


def test_full_covariances_use_their_correlation():
    rng = np.random.default_rng(17)
    V = np.repeat(np.array([[[1.0, 0.9], [0.9, 1.0]]]), 100, axis=0)
    theta = np.where(np.arange(100)[:, None] % 2, [1.0, -1.0], [-1.0, 1.0])
    z = theta + rng.multivariate_normal([0, 0], V[0], 100)
    error = lambda fit: ((fit.sites.mean - theta) ** 2).sum(axis=1).mean()
    assert error(npmle(z, V)) < 0.5 * error(npmle(z, np.ones((100, 2))))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(1e-3, 100)), min_size=1, max_size=25))
def test_any_table_is_solved_and_shrinks_into_its_own_range(rows):
    z, se = np.array(rows).T
    fit = npmle(z, se**2, max_steps=200)
    assert fit.gap_atoms <= 1e-8
    assert fit.gap <= 1e-4
    assert fit.weights.sum() == pytest.approx(1.0)
    assert fit.sites.mean.min() >= z.min() - 1e-3
    assert fit.sites.mean.max() <= z.max() + 1e-3


@pytest.mark.parametrize(
    ("z", "V", "message"),
    [
        ([1.0, np.nan], [1.0, 1.0], "site 1: estimate is not finite"),
        ([1.0, 2.0], [1.0, -1.0], "site 1: variance is negative"),
        ([1.0, 2.0], [1.0], r"must have shape \(2, 1\)"),
        ([[1.0, 2.0]], [[1.0, 0.0]], "zero in some coordinates"),
        ([[1.0, 2.0]], [[[1.0, 2.0], [2.0, 1.0]]], "not positive definite"),
        ([1.0], [np.inf], "nothing was observed"),
        ([1.0], None, "need their variances"),
    ],
)
def test_what_cannot_be_meant_is_refused(z, V, message):
    with pytest.raises(ValueError, match=message):
        npmle(z, V)
