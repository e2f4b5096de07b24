"""Figures of the report: they draw the numbers they are given, and become SVG that a page can hold."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from pyrofl import plots
from pyrofl.metrics import isotonic


def fits(figure: Figure) -> None:
    """Everything written lies on the figure, which a phone shows at about its size."""
    figure.draw_without_rendering()
    page = figure.bbox.padded(2)
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
    assert figure.get_size_inches()[0] <= 5


def test_isotonic_curve_draws_the_fit_and_where_confidences_lie():
    sure, right = np.array([0.6, 0.7, 0.8, 0.9]), np.array([0.0, 1, 0, 1])
    curve = isotonic(sure, right, rng=np.random.default_rng(0), resamples=20)
    figure = plots.isotonic_curve(curve, sure)
    upper, lower = figure.axes
    assert_allclose(upper.get_lines()[1].get_xydata(), np.c_[curve.confidence, curve.accuracy])
    assert sum(p.get_height() for p in lower.patches) == 4
    assert upper.get_xlim()[0] <= 0.6
    fits(figure)


def test_coverage_is_the_share_of_pit_values_in_the_middle():
    figure = plots.coverage_curve([0.5, 0.4, 0.7, 0.99])  # distances from the middle, doubled: 0, 0.2, 0.4, 0.98
    x, y = figure.axes[0].get_lines()[1].get_data()
    for level, share in ((0.0, 0.25), (0.3, 0.5), (0.5, 0.75), (1.0, 1.0)):
        assert y[np.argmin(np.abs(x - level))] == share
    fits(figure)


def test_pit_histogram_has_area_one():
    figure = plots.pit_histogram([0.05, 0.06, 0.95, 0.5])
    (bars,) = [p for p in figure.axes[0].patches if hasattr(p, "get_data")]
    assert_allclose(bars.get_data().values, [5, 0, 0, 0, 0, 2.5, 0, 0, 0, 2.5])
    fits(figure)


def test_selective_curve_takes_the_surest_first():
    x, y = plots.selective_curve([0.5, 0.9, 0.7], [0, 1, 1]).axes[0].get_lines()[0].get_data()
    assert_allclose(np.c_[x, y], [[1 / 3, 1], [2 / 3, 1], [1, 2 / 3]])


@pytest.mark.parametrize("clients", [4, 200])
def test_disagreement_puts_similar_clients_side_by_side(clients: int):
    """Clients 0, 2, 4 ... are alike, and so are 1, 3, 5 ...: the two groups become two blocks."""
    place = np.arange(clients) % 2 + 0.01 * np.arange(clients) / clients
    distance = np.abs(place[:, None] - place[None])
    figure = plots.disagreement(distance, names=[f"c{i}" for i in range(clients)])
    shown = figure.axes[0].images[0].get_array()
    half = clients // 2
    assert shown[:half, :half].max() < 0.1 < 0.9 < shown[:half, half:].min()
    fits(figure)


def test_disagreement_needs_two_clients():
    with pytest.raises(ValueError, match=r"distances have shape \(1, 1\)"):
        plots.disagreement([[0.0]], names=["a"])


def test_layers_draw_the_median_over_clients_and_pass_over_those_without_a_model():
    width = np.array([[1.0, 5.0], [2.0, 6.0], [4.0, 7.0], [np.nan, np.nan]])
    figure = plots.layers(width, 10 * width, sites=["head", "body"])
    for axes, scale in zip(figure.axes, (1, 10)):
        points = axes.collections[1].get_offsets()
        assert_allclose(points, [[2 * scale, 0], [6 * scale, 1]])
    fits(figure)


def test_a_narrow_learning_curve_has_its_legend_above():
    table = pd.DataFrame({"round": [1, 2], "client": "a", "split": "test", "metric": "nll", "value": 1.0, "run": "r"})
    figure = plots.learning_curves(table, "nll", narrow=True)
    fits(figure)
    assert figure.legends[0].get_window_extent().y0 >= figure.axes[0].get_window_extent().y1
    assert "\n(nats per row)" in figure.axes[0].get_ylabel()


def test_a_narrow_caterpillar_fits_with_its_legend():
    figure = plots.caterpillar(
        {"a": (0.5, 0.4, 0.6), "b": (0.9, 0.8, 1.0)}, "accuracy", interval="95% Clopper-Pearson", pooled=0.7, width=4.6
    )
    fits(figure)
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


# ------------------------------------------------------------------ SVG


def drawn() -> Figure:
    figure = plots.selective_curve([0.5, 0.9], [0, 1])
    figure.axes[0].set_title("a < b & $c$".replace("$", r"\$"))
    return figure


def test_svg_is_one_element_with_text_as_text_and_an_alternative():
    text = plots.svg(drawn(), 'what "it" <is>', name="f1")
    root = ET.fromstring(text.replace("xlink:", ""))
    assert root.attrib["role"] == "img" and root.attrib["aria-label"] == 'what "it" <is>'
    assert root[0].tag == "title" and root[0].text == 'what "it" <is>'
    words = {"".join(e.itertext()).strip() for e in root.iter("text")}
    assert {"accuracy", "a < b & $c$"} <= words
    assert "metadata" not in text and "<?xml" not in text


def test_ids_of_two_figures_differ_and_references_follow():
    one, two = (plots.svg(drawn(), "same", name=name) for name in ("f1", "f2"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip((one, two), ids):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= own
    assert plots.svg(drawn(), "same", name="f1") == one  # the same bytes each time


def test_colours_become_variables_and_settings_stay():
    before = dict(matplotlib.rcParams)
    text = plots.svg(drawn(), "a curve", name="f1")
    assert "var(--blue, #0072b2)" in text and "var(--grid, #dddddd)" in text
    assert not re.search("(fill|stroke): #(0072b2|dddddd|000000|666666)", text)
    assert dict(matplotlib.rcParams) == before
