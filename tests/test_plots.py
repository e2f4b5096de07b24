"""Figures draw the numbers they are given, at 4 and at 200 clients, and touch nothing else."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from scipy.stats import binomtest

from pyrofl import metrics as m
from pyrofl import plots
from pyrofl.plots.calibration import wilson
from pyrofl.plots.style import PALETTE, in_order, look


def drawn_well(figure: Figure) -> None:
    """Everything written on the figure lies on it, and names on one axis do not run into each other."""
    figure.draw_without_rendering()
    page = figure.bbox.padded(2)
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        lefts = [t.get_window_extent() for t in axes.get_yticklabels() if t.get_text()]
        lefts.sort(key=lambda b: b.y0)
        assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(lefts))


def long_table(values: dict[tuple[str, int, str], float]) -> pd.DataFrame:
    rows = [(run, r, client, "test", "nll", v) for (run, r, client), v in values.items()]
    return pd.DataFrame(rows, columns=["run", "round", "client", "split", "metric", "value"])


def names(clients: int) -> list[str]:
    return [f"client-{i}" for i in range(clients)]


# ---- learning curves ----


def test_learning_curves_draw_mean_and_spread_over_clients():
    table = long_table(
        {("a", 1, "x"): 1.0, ("a", 1, "y"): 3.0, ("a", 2, "x"): 1.0, ("a", 2, "y"): 2.0, ("b", 2, "x"): 0.5}
    )
    figure = plots.learning_curves(table.sample(frac=1, random_state=0), "nll")
    axes = figure.axes[0]
    line_a, line_b = axes.get_lines()
    assert_allclose(line_a.get_xydata(), [[1, 2], [2, 1.5]])
    assert_allclose(line_b.get_xydata(), [[2, 0.5]])
    band = axes.collections[0].get_paths()[0].vertices
    spread = np.std([1, 3], ddof=1)
    assert_allclose(sorted(band[band[:, 0] == 1, 1])[0], 2 - spread)
    assert_allclose(sorted(band[band[:, 0] == 1, 1])[-1], 2 + spread)
    assert axes.get_ylabel() == "negative log predictive density (nats per row)"
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert legend == ["b  0.500", "a  1.50"]  # the best first


def test_the_band_of_a_share_stays_within_0_and_1():
    table = long_table({("a", r, c): v for r in (1, 2) for c, v in (("x", 1.0), ("y", 0.9), ("z", 0.2))})
    figure = plots.learning_curves(table.assign(metric="accuracy"), "accuracy")
    assert figure.axes[0].collections[0].get_paths()[0].vertices[:, 1].max() == 1.0


def test_rows_of_no_client_are_left_out_unless_there_is_nothing_else():
    table = long_table({("a", 1, "x"): 1.0, ("a", 1, "y"): 3.0, ("a", 1, "(pooled)"): 9.0})
    table["metric"] = "personal/accuracy"
    axes = plots.learning_curves(table, "personal/accuracy").axes[0]
    assert_allclose(axes.get_lines()[0].get_ydata(), [2.0])
    assert axes.get_title(loc="left").startswith("personal models, test rows")
    server = long_table({("a", r, "(server)"): 100.0 * r for r in (1, 2)}).assign(metric="bytes_up")
    axes = plots.learning_curves(server, "bytes_up", unit="bytes").axes[0]
    assert_allclose(axes.get_lines()[0].get_ydata(), [100, 200])
    assert axes.get_ylabel() == "bytes up (bytes)"


def test_undefined_values_are_left_out_and_infinite_ones_leave_a_gap():
    table = long_table({("a", 1, "x"): np.nan, ("a", 1, "y"): 3.0, ("a", 2, "x"): np.inf, ("a", 2, "y"): 1.0})
    figure = plots.learning_curves(table, "nll")
    figure.draw_without_rendering()
    assert_allclose(figure.axes[0].get_lines()[0].get_ydata(), [3.0, np.nan])
    assert figure.legends[0].get_texts()[0].get_text() == "a  infinite"


def test_errors_of_learning_curves_suggest_what_there_is():
    table = long_table({("a", 1, "x"): 1.0})
    with pytest.raises(ValueError, match="no metric 'nnl' in the metrics; did you mean \"nll\""):
        plots.learning_curves(table, "nnl")
    with pytest.raises(ValueError, match="no split 'tset' in the metrics; did you mean \"test\""):
        plots.learning_curves(table, "nll", split="tset")
    with pytest.raises(ValueError, match="no column 'method'"):
        plots.learning_curves(table, "nll", by="method")
    with pytest.raises(ValueError, match="has no value"):
        plots.learning_curves(table.assign(value=np.nan), "nll")


# ---- reliability ----


def test_reliability_diagram_draws_the_table_the_error_is_computed_from():
    rng = np.random.default_rng(0)
    p, y = m.two_classes(rng.uniform(size=200)), rng.integers(2, size=200)
    table = m.reliability(p, y, bins=10)
    figure = plots.reliability_diagram({"a": table})
    upper, lower = figure.axes
    full = table.weight > 0
    points = upper.collections[-1].get_offsets()
    assert_allclose(points, np.column_stack([table.confidence[full], table.accuracy[full]]))
    heights = lower.patches[0].get_data().values
    assert_allclose(heights, table.rows / 200)
    assert figure.legends[0].get_texts()[0].get_text() == f"a: ECE {m.ece(p, y, bins=10):.3f}"
    drawn_well(figure)


def test_reliability_of_one_confidence_and_of_uneven_bins_can_be_drawn():
    p = m.two_classes(np.ones(5))
    uneven = m.reliability(m.two_classes(np.array([0.5, 0.6, 1.0])), [1, 1, 0], adaptive=True)
    one = m.reliability(p, [1, 1, 1, 0, 1], adaptive=True)
    figure = plots.reliability_diagram({"one": one, "uneven": uneven})
    drawn_well(figure)
    assert figure.axes[1].get_ylabel() == "density of rows"


def test_wilson_agrees_with_scipy():
    right, rows = np.array([0, 3, 10, 10]), np.array([10, 10, 10, 40])
    low, high = wilson(right / rows, rows, level=0.9)
    for i in range(4):
        exact = binomtest(int(right[i]), int(rows[i])).proportion_ci(0.9, method="wilson")
        assert_allclose([low[i], high[i]], [exact.low, exact.high], atol=1e-12)


# ---- clients by classes and by rounds ----


@pytest.mark.parametrize(("clients", "classes"), [(4, 2), (200, 10), (20, 100), (1, 1)])
def test_partition_draws_the_counts(clients, classes):
    counts = np.random.default_rng(0).integers(0, 30, size=(clients, classes))
    figure = plots.partition(counts, names=names(clients), classes=[str(k) for k in range(classes)])
    grid, bars = figure.axes[:2]
    assert_allclose(grid.images[0].get_array().filled(0), counts)
    assert_allclose([b.get_width() for b in bars.patches], counts.sum(axis=1))
    assert_allclose(grid.get_ylim(), [clients - 0.5, -0.5])
    assert figure.get_figheight() < 11
    drawn_well(figure)


def test_partition_writes_small_tables_and_refuses_wrong_shapes():
    figure = plots.partition([[5, 0], [1, 7]], names=["a", "b"], classes=["no", "yes"])
    assert sorted(t.get_text() for t in figure.axes[0].texts) == ["1", "5", "7"]
    with pytest.raises(ValueError, match=r"counts have shape \(1, 2\): 2 clients and 2 classes"):
        plots.partition([[5, 0]], names=["a", "b"], classes=["no", "yes"])
    drawn_well(plots.partition([[0, 0]], names=["empty"], classes=["no", "yes"]))


def choices(clients: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [(r, c, rng.choice(["slow", "fast"])) for r in range(1, 13) for c in names(clients) if rng.random() < 0.7]
    return pd.DataFrame(rows, columns=["round", "client", "choice"])


@pytest.mark.parametrize("clients", [4, 200])
def test_selected_optimizers_draw_every_choice_and_who_was_absent(clients):
    table = choices(clients)
    figure = plots.selected_optimizers(table, choices=["slow", "fast"], clients=names(clients))
    shares, cells = figure.axes
    grid = cells.images[0].get_array()
    assert grid.shape == (clients, 12)
    assert grid.count() == len(table)
    for r, c, choice in table.sample(20, random_state=0).itertuples(index=False):
        assert grid[int(c.split("-")[1]), r - 1] == ["slow", "fast"].index(choice)
    first = table[table["round"] == 1]
    assert_allclose(shares.patches[0].get_height(), (first["choice"] == "slow").mean())
    drawn_well(figure)


def test_errors_of_selected_optimizers():
    table = choices(4)
    with pytest.raises(ValueError, match=r"'client-\d' chose twice in round 1"):
        plots.selected_optimizers(pd.concat([table, table.head(1)]))
    with pytest.raises(ValueError, match="choice 'slow' is not among fast"):
        plots.selected_optimizers(table, choices=["fast"])
    with pytest.raises(ValueError, match="no choice"):
        plots.selected_optimizers(table.drop(columns="choice"))


def test_names_are_ordered_as_people_count():
    assert in_order(["client-10", "client-2", "client-2", "a"]) == ["a", "client-2", "client-10"]
    assert in_order([10, 9, 1]) == [1, 9, 10]


# ---- caterpillar ----


@pytest.mark.parametrize(("metric", "worst"), [("accuracy", 0.1), ("nll", 0.9)])
def test_caterpillar_puts_the_worst_client_first_and_undefined_ones_last(metric, worst):
    clients = {"a": (0.5, 0.4, 0.6), "none": None, "b": (0.1, 0.0, 0.3), "c": (0.9, 0.8, 1.0)}
    figure = plots.caterpillar(clients, metric, interval="95% t", pooled=0.4)
    axes = figure.axes[0]
    points = axes.collections[1].get_offsets()
    assert points[0, 0] == worst
    assert_allclose(points[:, 1], [0, 1, 2])
    assert axes.get_yticklabels()[-1].get_text() == "none"
    assert "undefined or infinite for 1 of 4" in [t.get_text() for t in axes.texts]
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert legend[:3] == ["mean over 3 clients 0.5", "all rows pooled 0.4", "client, 95% t interval"]
    drawn_well(figure)


def test_caterpillar_of_200_clients_and_of_none():
    rng = np.random.default_rng(0)
    value = rng.uniform(0.5, 1, 200)
    many = {name: (v, v - 0.1, v + 0.1) for name, v in zip(names(200), value)}
    drawn_well(plots.caterpillar(many, "auroc", interval="95% bootstrap"))
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.caterpillar({"a": None, "b": (np.inf, 1.0, np.inf)}, "nll", interval="95% t")
    with pytest.raises(ValueError, match="client 'a'"):
        plots.caterpillar({"a": (0.5, 0.6, 0.7)}, "auroc", interval="95% t")


# ---- style, files, side effects ----


def test_twenty_eight_lines_all_look_different():
    assert len({(s["color"], str(s["linestyle"])) for s in map(look, range(28))}) == 28
    assert len(set(PALETTE)) == len(PALETTE)


@pytest.mark.parametrize("name", ["_hidden", "$\\frac$ of $", "50% off", "x" * 200, "two\nlines", "Ærø"])
def test_any_name_can_be_drawn_and_is_shown(name, tmp_path):
    table = long_table({(name, 1, "x"): 1.0, (name, 2, "x"): 2.0, ("b", 1, "x"): 1.0})
    figure = plots.learning_curves(table, "nll")
    assert len(figure.legends[0].get_texts()) == 2
    drawn_well(figure)
    drawn_well(plots.partition([[1, 2]], names=[name], classes=[name, "other"]))
    drawn_well(plots.caterpillar({name: (0.5, 0.4, 0.6)}, "auroc", interval="95% t"))


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_save_writes_what_the_suffix_says(tmp_path, suffix, start):
    figure = plots.partition([[1, 2]], names=["a"], classes=["no", "yes"])
    path = plots.save(figure, tmp_path / f"figure.{suffix}")
    assert path.read_bytes().startswith(start)
    assert [f.name for f in tmp_path.iterdir()] == [path.name]


def test_save_leaves_the_old_file_when_drawing_fails(tmp_path, monkeypatch):
    figure = plots.partition([[1, 2]], names=["a"], classes=["no", "yes"])
    path = tmp_path / "figure.png"
    path.write_text("old")

    def fail(file, **_):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots.save(figure, path)
    assert path.read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["figure.png"]
    with pytest.raises(ValueError, match=r"figure\.jpgg: cannot draw"):
        plots.save(figure, tmp_path / "figure.jpgg")


def test_plots_do_not_import_pyplot_or_change_a_setting():
    program = """if True:
        import sys, matplotlib
        settings = lambda: list(dict.items(matplotlib.rcParams))
        before = settings()
        from pyrofl import plots
        plots.partition([[1, 2]], names=["a"], classes=["no", "yes"]).draw_without_rendering()
        assert "matplotlib.pyplot" not in sys.modules
        assert settings() == before"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_settings_of_the_user_survive_drawing():
    with matplotlib.rc_context({"font.size": 14}):
        drawn_well(plots.partition([[1, 2]], names=["a"], classes=["no", "yes"]))
        assert matplotlib.rcParams["font.size"] == 14
