"""Widened priors: intervals that cover, and what the widening is made of."""

import numpy as np
import pytest

from pyrofl.empirical_bayes import Mixture, Multinomial, QuadraticVariance, npmle, smoothed
from pyrofl.empirical_bayes.counts import Counts
from pyrofl.empirical_bayes.kernels import Fixed
from pyrofl.empirical_bayes.lattice import equal_share, lattice_note
from pyrofl.empirical_bayes.smoothing import cloud, local_error, standard_points, without_the_odd


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_points_have_the_moments_of_a_standard_normal(d):
    x = standard_points(64, d)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose((x**2).mean(axis=0), 1)
    assert abs(np.corrcoef(x.T) - np.eye(d)).max() < 0.25 if d > 1 else True
    assert len(np.unique(x, axis=0)) == 64


def test_a_cloud_adds_its_variance_and_keeps_the_mean():
    fit = npmle([0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 4.0, 4.0])
    order = np.argsort(fit.atoms[:, 0])
    np.testing.assert_allclose(local_error(fit)[order, 0], [1.0, 2.0], rtol=1e-3)
    wide = cloud(fit, 0.5, 32)
    np.testing.assert_allclose(wide.mean, fit.mean)
    np.testing.assert_allclose(wide.covariance, fit.covariance + (0.25 * 1 + 0.25 * 4) / 2, rtol=1e-3)
    assert cloud(fit, 0.0, 32) is fit


@pytest.mark.parametrize("d", [1, 2])
def test_intervals_cover_at_four_hundred_sites(d):
    rng = np.random.default_rng(d)
    theta = np.where(rng.random((400, 1)) < 0.5, rng.normal(0, 0.5, (400, d)), rng.normal(3, 1, (400, d)))
    V = rng.uniform(0.1, 1, (400, d))
    z = theta + np.sqrt(V) * rng.normal(size=(400, d))
    fit = npmle(z, V, tolerance=1e-3)
    low, high = smoothed(fit).posterior(z, V).interval()
    assert 0.92 <= ((low <= theta) & (theta <= high)).mean() <= 0.97
    low, high = fit.sites.interval()
    assert ((low <= theta) & (theta <= high)).mean() < 0.92  # why the widening is there


@pytest.mark.parametrize("place", [15.0, 60.0, 1000.0])
def test_a_far_off_site_does_not_decide_for_the_others(place):
    rng = np.random.default_rng(3)
    V = rng.uniform(0.1, 1.4, 100)
    theta = rng.normal(size=100)
    z = theta + np.sqrt(V) * rng.normal(size=100)
    others = smoothed(npmle(z[1:], V[1:])).sites
    z[0] = place
    fit = smoothed(npmle(z, V))
    mean = fit.sites.mean[:, 0]
    pulled = np.mean((z[1:] - others.mean[:, 0]) ** 2)
    assert np.mean((mean[1:] - others.mean[:, 0]) ** 2) < 0.1 * pulled
    assert np.mean((mean[1:] - theta[1:]) ** 2) < 1.1 * np.mean((others.mean[:, 0] - theta[1:]) ** 2)


def test_those_the_width_matters_most_to_have_no_say():
    held_out = np.array([[-1.0, -90.0, -2.0, -3.0], [-1.5, -2.0, -2.0, -7.0], [-2.0, -4.0, -2.5, -3.0]])
    np.testing.assert_array_equal(without_the_odd(held_out), held_out[:, [2, 0, 3]])
    assert without_the_odd(np.zeros((3, 101))).shape == (3, 99)


@pytest.mark.slow
def test_intervals_cover_when_the_variance_moves():
    family, inside = QuadraticVariance(0.3, 0.0, 0.2), []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        theta, n = (
            rng.uniform(-2, 2, (400, 1)) * [1.0, -0.5, 0.3] + 0.2 * rng.normal(size=(400, 3)),
            rng.integers(5, 40, 400),
        )
        z = theta + np.sqrt(family.variance(theta) / n[:, None]) * rng.normal(size=(400, 3))
        kernel = family.kernel(z, n)
        low, high = smoothed(npmle(kernel, tolerance=1e-3)).posterior(kernel).interval()
        inside.append(((low <= theta) & (theta <= high)).mean())
    assert 0.92 <= np.mean(inside) <= 0.97


def test_few_sites_need_no_chance_and_one_site_no_widening():
    z, V = [28, 8, -3, 7, -1, 1, 18, 12], np.square([15.0, 10, 16, 11, 9, 11, 10, 18])
    fit = npmle(z, V)
    a, b = smoothed(fit), smoothed(fit)
    np.testing.assert_array_equal(a.atoms, b.atoms)
    assert "8-fold" in a.notes[-1]
    assert smoothed(npmle([1.0], [1.0])).notes[-1].startswith("one site")
    with pytest.raises(ValueError, match="keeps no sites"):
        smoothed(Mixture(np.zeros((1, 1)), np.ones(1)))


def test_equal_estimates_among_near_ones_by_hand():
    # errors of 10, so pairs within 1: the two zeros (both ways), 0 and 0.5 (four ways), 5 and 5 (two ways)
    kernel = Fixed(np.array([[0.0], [0.0], [0.5], [5.0], [5.0], [9.0]]), np.full((6, 1), 100.0))
    assert equal_share(kernel, 0) == pytest.approx(4 / 8)
    assert "67% of the estimates share" in lattice_note(kernel)[0]
    assert equal_share(Fixed(np.array([[0.0], [3.0]]), np.zeros((2, 1))), 0) == 0.0  # exact sites have no error


def test_a_lattice_is_told_from_rounding_and_exact_counts_are_not_suspected():
    rng = np.random.default_rng(0)
    counts = rng.multinomial(rng.integers(5, 16, 300), [0.5, 0.3, 0.15, 0.05])
    family = Multinomial(4)
    normal = family.kernel(family.from_counts(counts), counts.sum(axis=1))
    assert "share their value in coordinate 0" in lattice_note(normal)[0]
    assert lattice_note(family.likelihood(counts)) == ()
    assert lattice_note(Counts(counts[:, 1].astype(float), np.full(300, 20.0), binomial=True)) == ()
    z = rng.normal(0, 2, (2000, 1))
    assert lattice_note(Fixed(z, np.ones((2000, 1)))) == ()
    assert lattice_note(Fixed(z.round(2), np.ones((2000, 1)))) == ()  # most share a value, to a hundredth of an error
    assert len(lattice_note(Fixed(z.round(0), np.ones((2000, 1))))) == 1
    assert any("exact" in note for note in smoothed(npmle(z[:60].round(0), np.ones((60, 1)))).notes)
