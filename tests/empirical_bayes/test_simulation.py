"""The simulation of the paper at the smallest scale: its parts, and its report."""

import numpy as np
import pandas as pd
import pytest

from experiments.vaneb.report import excess_figure, paired, slope, text
from experiments.vaneb.report import excess_table as table_of
from experiments.vaneb.simulations import CENTRES, SETTINGS, curves, plugged, repeat, simulate, van_trees


def test_the_curves_are_five_of_radius_about_one_around_their_centres():
    points = curves(np.random.default_rng(0), 5000)
    distance = np.linalg.norm(points[:, None] - CENTRES, axis=2)
    assert distance.min(axis=1).max() < 1.5
    near = np.bincount(distance.argmin(axis=1), minlength=5)
    assert near.min() > 500
    assert np.abs(CENTRES).max() <= 2


@pytest.mark.parametrize("name", SETTINGS)
def test_estimates_lie_around_the_truth_with_the_stated_spread(name):
    theta, n, kernel, exact = simulate(SETTINGS[name], 400, np.random.default_rng(0))
    assert (np.diff(n) >= 0).all()
    assert SETTINGS[name].smallest <= n[0] and n[-1] <= SETTINGS[name].largest
    assert (exact is None) == (name in ("mild", "strong", "large"))
    if exact is not None:
        np.testing.assert_allclose(exact.z, kernel.z)
    np.testing.assert_allclose(plugged(kernel).plugin(), kernel.plugin(), rtol=1e-9)
    if name in ("mild", "strong", "large"):
        spread = (kernel.z - theta) ** 2 * n[:, None] / SETTINGS[name].family.variance(theta)
        assert spread.mean() == pytest.approx(1.0, abs=0.15)


def test_the_bound_by_hand():
    # theta = 0, one row, variance 0.3: information 3 / 0.3 = 10 and 300 of the thickened prior
    assert van_trees(SETTINGS["mild"], np.zeros((1, 3)), np.array([1])) == pytest.approx(9 / 310)
    assert np.isnan(van_trees(SETTINGS["poisson"], np.zeros((1, 3)), np.array([1])))


def test_one_repeat_and_its_report():
    rows = pd.DataFrame([row for i in range(2) for k in (50, 60, 70) for row in repeat("strong", k, i)])
    assert (rows.van_trees < rows.oracle).all()
    assert (rows.groupby("method").error.mean()["raw"]) > rows.oracle.mean()
    mean, error, count = paired(rows, "strong", 50)
    wide = rows[rows.sites == 50].pivot(index="repeat", columns="method", values="error")
    assert mean == pytest.approx((wide.fixed - wide.vaneb).mean())
    assert count == 2 and error > 0
    again = pd.DataFrame(repeat("strong", 50, 0))
    np.testing.assert_array_equal(again.error, rows[(rows.sites == 50) & (rows["repeat"] == 0)].error)
    assert "strong: variance 0.05 + 0.8 theta^2; n_k 3 to 11" in text(rows)
    assert len(excess_figure(rows).axes) == 1


def test_the_slope_of_a_power_law():
    same = {"setting": "mild", "method": "vaneb", "oracle": 1.0}
    rows = pd.DataFrame([{**same, "sites": k, "error": 1 + 3 / k} for k in (50, 100, 200, 400)])
    value, error = slope(table_of(rows), "mild", "vaneb")
    assert value == pytest.approx(-1.0, abs=1e-9)
    assert error < 1e-6
