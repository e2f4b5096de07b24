"""The simulation of the paper at the smallest scale: its parts, and its report."""

import numpy as np
import pandas as pd
import pytest

from experiments.vaneb import simulations
from experiments.vaneb.report import excess_figure, paired, slope, text
from experiments.vaneb.report import excess_table as table_of
from experiments.vaneb.simulations import (
    CENTRES,
    COLUMNS,
    COUNTS,
    SETTINGS,
    curves,
    plugged,
    repeat,
    simulate,
    van_trees,
)
from pyrofl.empirical_bayes import npmle, smoothed
from pyrofl.random import fold, generator, root


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


@pytest.mark.slow
def test_intervals_of_small_counts_cover_with_their_exact_likelihood_alone():
    exact, normal = [], []
    for seed in range(2):
        sample = simulate(SETTINGS["boundary"], 400, np.random.default_rng(seed))
        for kernel, inside in ((sample.exact, exact), (sample.kernel, normal)):
            low, high = smoothed(npmle(kernel, tolerance=1e-3)).posterior(kernel).interval()
            inside.append(((low <= sample.theta) & (sample.theta <= high)).mean())
    assert 0.92 <= np.mean(exact) <= 0.97
    assert np.mean(normal) < 0.7  # why the counts should be handed in


def test_rows_of_counts_and_the_error_of_their_probabilities():
    rows = pd.DataFrame(repeat("boundary", 60, 0))
    alone = pd.DataFrame(repeat("boundary", 60, 0, only="counts"))
    assert set(COUNTS[:3]) == set(alone.method) < set(rows.method)
    sample = simulate(SETTINGS["boundary"], 60, generator(fold(root(2024), "boundary", 60, 0)))
    odds = [np.exp(np.column_stack([np.zeros(60), t])) for t in (sample.theta, sample.kernel.z)]
    truth, raw = (o / o.sum(axis=1, keepdims=True) for o in odds)
    by_method = rows.set_index("method")
    assert by_method.chance_error["raw"] == pytest.approx(((raw - truth) ** 2).sum(axis=1).mean())
    assert by_method.chance_error["vaneb_exact"] < 2 * by_method.chance_oracle["vaneb_exact"]
    assert "error of the class probabilities" in text(rows)


def test_earlier_rows_are_kept_digit_for_digit_and_made_again_when_asked(tmp_path, monkeypatch):
    path = tmp_path / "simulations.csv"
    same = "mild,50,0,raw,0.10000000000000001,1.0,,,,,,\n"
    path.write_text(",".join(COLUMNS) + "\n" + same + "boundary,50,0,raw,9,9,,,,,,\nboundary,400,0,raw,8,8,,,,,,\n")
    monkeypatch.setattr(simulations, "REPEATS", {50: 1, 400: 1})
    asked = ["--settings", "boundary", "--sizes", "50", "--out", str(tmp_path)]
    before = path.read_bytes()
    simulations.main(asked)
    assert path.read_bytes() == before, "what is there is not made again"
    simulations.main([*asked, "--anew"])
    lines = path.read_text().splitlines(keepends=True)
    assert lines[1] == same and lines[2].startswith("boundary,400") and "boundary,50,0,raw,9" not in "".join(lines)
    assert any(line.startswith("boundary,50,0,exact_cross") for line in lines)


def test_a_simulation_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(simulations, "REPEATS", {50: 2})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    asked = ["--settings", "multinomial", "--out"]
    simulations.main([*asked, str(whole)])
    made = simulations.repeat

    def stopped(name, sites, index, *, only=""):
        if index == 1:
            raise KeyboardInterrupt
        return made(name, sites, index, only=only)

    with monkeypatch.context() as patch:
        patch.setattr(simulations, "repeat", stopped)
        with pytest.raises(KeyboardInterrupt):
            simulations.main([*asked, str(parts)])
    assert set(pd.read_csv(parts / "simulations.csv")["repeat"]) == {0}
    simulations.main([*asked, str(parts)])
    one, two = (pd.read_csv(d / "simulations.csv").drop(columns="seconds") for d in (whole, parts))
    pd.testing.assert_frame_equal(one, two)
