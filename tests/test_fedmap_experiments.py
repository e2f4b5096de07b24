"""The experiments of FedMAP at their smallest, and the data generator's facts."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.stand_in import write_data_root

from experiments.fedmap import common
from experiments.fedmap.common import ARMS, Arm, difference, means, rounded, scores
from experiments.fedmap.data import synthetic
from experiments.fedmap.networks import MLP, ConvNet
from experiments.tables import markdown


@pytest.mark.parametrize("name", ["hospitals", "domains", "synthetic"])
def test_runs_at_the_smoke_scale(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROFL_DATA", str(write_data_root(tmp_path / "data")))
    monkeypatch.setattr(sys, "argv", [name, "--scale", "smoke", "--out", str(tmp_path / "out")])
    importlib.import_module(f"experiments.fedmap.{name}").main()
    table = pd.read_csv(tmp_path / "out" / f"{name}.csv")
    clients = 10 if name == "synthetic" else 4
    assert set(table.groupby(["experiment", "arm", "seed"]).size()) == {clients}
    assert table["accuracy"].between(0, 1).all() and {"alone", "fedavg", "fedmap"} <= set(table["arm"])
    assert (tmp_path / "out" / f"{name}.png").stat().st_size > 1000
    assert "| fedmap - alone |" in (tmp_path / "out" / f"{name}.md").read_text()


def test_scores_pair_arms_on_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    less = ["rounds=1", "method.epochs=1", "data.rows=40"]
    arms = {name: ARMS[name] for name in ("alone", "fedmap_single")} | {"again": Arm({"name": "alone"})}
    frame = scores("synthetic.toml", arms, tmp_path, seeds=[1, 2], less=less)
    assert frame.groupby("arm").size().to_dict() == {"alone": 20, "again": 20, "fedmap_single": 20}
    one, again = (frame[frame["arm"] == a].drop(columns="arm").reset_index(drop=True) for a in ("alone", "again"))
    pd.testing.assert_frame_equal(one, again)
    assert difference(frame, "again", "alone", ["client 1", "client 2"], "accuracy") == "+0.0 (+0.0 to +0.0)"
    with monkeypatch.context() as patch:
        patch.setattr(common, "assemble", lambda config: pytest.fail("what is there was run again"))
        pd.testing.assert_frame_equal(scores("synthetic.toml", arms, tmp_path, seeds=[1, 2], less=less), frame)
    more = scores("synthetic.toml", {"alone": ARMS["alone"]}, tmp_path, seeds=[1], less=[*less, "data.rows=60"])
    assert len(list((tmp_path / common.PARTS).iterdir())) == 7, "another configuration is another run"
    assert set(more["client"]) == set(frame["client"])


def test_tables_by_hand() -> None:
    values = {("a", 1): (0.5, 0.7), ("a", 2): (0.7, 0.9), ("b", 1): (0.4, 0.6), ("b", 2): (0.5, 0.9)}
    rows = [
        {"arm": arm, "seed": seed, "client": f"client {i + 1}", "accuracy": v}
        for (arm, seed), pair in values.items()
        for i, v in enumerate(pair)
    ]
    table = means(pd.DataFrame(rows), {"both": ["client 1", "client 2"]}, "accuracy")
    assert markdown(rounded(table, digits=2)).splitlines() == [
        "|  | a | b |",
        "| --- | --- | --- |",
        "| client 1 | 0.60 | 0.45 |",
        "| client 2 | 0.80 | 0.75 |",
        "| mean of both | 0.70 | 0.60 |",
    ]
    # seeds differ by 10 and 10 points: no spread; for client 1 by 10 and 20: 15 +- 12.7 * 5
    both = difference(pd.DataFrame(rows), "a", "b", ["client 1", "client 2"], "accuracy")
    assert both == "+10.0 (+10.0 to +10.0)"
    assert difference(pd.DataFrame(rows), "a", "b", ["client 1"], "accuracy") == "+15.0 (-48.5 to +78.5)"


@pytest.mark.parametrize(
    ("scenario", "sizes", "ones"),
    [
        ("features", [200] * 10, [100] * 10),
        ("quantity", [200] * 5 + [50] * 5, [100] * 5 + [25] * 5),
        ("labels", [200] * 10, [100] * 5 + [30] * 5),
    ],
)
def test_scenarios_have_their_sizes_and_labels(scenario: str, sizes: list[int], ones: list[int]) -> None:
    data = synthetic(scenario=scenario, rows=200)  # type: ignore[arg-type]
    assert data.site is not None
    assert torch.bincount(data.site).tolist() == sizes
    assert torch.bincount(data.site, weights=data.y.double()).tolist() == ones
    assert data.x.shape == (sum(sizes), 30) and data.sites[9] == "client 10"


def test_without_affine_maps_the_moments_are_the_papers() -> None:
    data = synthetic(rows=4000, affine=False, seed=2)
    x = data.x.double()
    # |x|^2: 4 * 2 or E r^2 = 8^2 + 2 in the informative part, 26 * 9 in the other; a rotation keeps it
    for label, informative in ((0, 8.0), (1, 66.0)):
        square = x[data.y == label].square().sum(1)
        error = 4 * float(square.std()) / math.sqrt(len(square))
        assert abs(float(square.mean()) - (informative + 234)) < error
    spectrum = np.linalg.eigvalsh(np.cov(x[data.y == 0].numpy().T))
    assert np.allclose(spectrum[:4], 2, rtol=0.1) and np.allclose(spectrum[4:], 9, rtol=0.1)


def test_affine_maps_differ_between_clients_and_grow() -> None:
    data = synthetic(rows=500)
    assert data.site is not None
    centres = torch.stack([data.x[data.site == i].mean(0) for i in range(10)])
    sizes = centres.square().mean(1).sqrt() / (5 * torch.arange(1, 11))
    assert ((sizes > 0.5) & (sizes < 1.6)).all()
    correlation = torch.corrcoef(centres)
    assert float((correlation - torch.eye(10)).abs().max()) < 0.8


def test_seeds_draw_other_data_and_the_same_seed_the_same() -> None:
    assert torch.equal(synthetic(rows=20, seed=1).x, synthetic(rows=20, seed=1).x)
    assert not torch.equal(synthetic(rows=20, seed=1).x, synthetic(rows=20, seed=2).x)
    with pytest.raises(ValueError, match="rows must be at least 8"):
        synthetic(rows=4)


def test_networks_have_the_papers_layers() -> None:
    plain, normed = MLP((30,), 1), MLP((30,), 1, norm=True)
    assert [tuple(p.shape) for p in plain.parameters()] == [(32, 30), (32,), (16, 32), (16,), (1, 16), (1,)]
    assert sum(isinstance(m, torch.nn.BatchNorm1d) for m in normed.modules()) == 2
    assert ConvNet((3, 32, 32), 10, channels=2)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
