"""Cross-fitting: a site is judged by the others, and a far-off one no longer confirms itself."""

import numpy as np
import pytest
from scipy.stats import norm

from pyrofl.empirical_bayes import Poisson, cross_fitted, npmle, smoothed
from pyrofl.random import root


def test_leaving_one_out_by_hand():
    # without itself the site at 9 has the prior "all at 0"; the others have "0 or 9", and 9 is out of their reach
    found = cross_fitted([0.0, 0.0, 9.0], [1.0, 1.0, 1.0], folds=3)
    np.testing.assert_allclose(found.mean[:, 0], [0.0, 0.0, 0.0], atol=1e-6)
    wanted = [norm.logpdf(0) + np.log(0.5)] * 2 + [norm.logpdf(9)]
    np.testing.assert_allclose(found.log_marginal, wanted, atol=1e-6)
    assert npmle([0.0, 0.0, 9.0], [1.0, 1.0, 1.0]).sites.mean[2, 0] == pytest.approx(9.0, abs=1e-3)


def test_a_site_whose_estimate_ran_away_is_held_by_the_others():
    """Five rows almost without slope information: the estimate is far off, and the maximiser believes it."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (60, 30, 2))
    rows[:, :, 0] = 1.0
    rows[0, 3:] = 0.0
    rows[0, :3, 1] = [0.9, -0.1, -0.2]
    theta = np.column_stack([np.full(60, 1.0), rng.choice([-0.5, 0.5], 60)])
    y = rng.poisson(np.exp(np.einsum("knd,kd->kn", rows, theta))) * (rows[:, :, 0] > 0)
    y[0, :3] = [0, 9, 9]  # a very steep fall
    family = Poisson()
    z = family.fit_all(rows, y)
    kernel = family.kernel(z, rows)
    error = lambda mean: np.abs(mean - theta)[0].max()
    alone, held = npmle(kernel).sites.mean, cross_fitted(kernel).mean
    assert error(held) < 0.5 * error(alone)
    np.testing.assert_allclose(held[1:], alone[1:], atol=0.3)


def test_keys_repeat_and_folds_are_checked():
    z, V = np.random.default_rng(1).normal(0, 2, 40), np.ones(40)
    one, two, other = (cross_fitted(z, V, key=root(k)).mean for k in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - other).max() > 1e-3
    for folds in (1, 41):
        with pytest.raises(ValueError, match="between 2 and the number of sites, 40"):
            cross_fitted(z, V, folds=folds)


def test_progress_is_told_after_every_fold():
    z, V = np.random.default_rng(1).normal(0, 2, 12), np.ones(12)
    told: list[tuple[int, int]] = []
    cross_fitted(z, V, folds=3, progress=lambda *step: told.append(step))
    smoothed(npmle(z, V), folds=2, progress=lambda *step: told.append(step))
    assert told == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2)]
