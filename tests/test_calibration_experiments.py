"""The calibration experiments at their smallest: what is exact is flat, what is over-confident is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pyro import poutine
from support.stand_in import write_data_root

from experiments.calibration import nuts, sbc
from pyrofl.random import root

SMALL = {"replicates": 100, "draws": 19}


def test_chi_square_by_hand() -> None:
    assert sbc.chi_square(np.arange(20).repeat(3), 19, bins=10) == (0.0, 1.0)
    found, p = sbc.chi_square(np.zeros(20, dtype=int), 19, bins=10)  # all in one bin of ten, 2 expected in each
    assert found == pytest.approx(18**2 / 2 + 9 * 2) and p < 1e-9
    with pytest.raises(ValueError, match="equal bins"):
        sbc.chi_square(np.arange(20), 19, bins=7)


def test_the_pipeline_reaches_the_exact_posterior() -> None:
    w, data = sbc.simulate(6, 4, root(3))
    method = sbc.SCHEMES["bayfl, product"].method(sbc.program())
    precision = 1 / sbc.TAU**2 + 4 * sbc.ROWS / sbc.SIGMA**2
    for server, clients in zip(sbc.federate(method, data, root(4), stages=sbc.STAGES), data):
        loc, scale = (v.detach()[0] for v in method.program.posterior(server)[sbc.SITE])
        h = sum(c.x.T @ c.y for c in clients) / sbc.SIGMA**2
        assert (loc - h / precision).abs().max() * precision**0.5 < 0.6
        torch.testing.assert_close(scale, torch.full_like(scale, precision**-0.5), rtol=0.1, atol=0)
    assert w.shape == (6, sbc.FEATURES)


@pytest.mark.parametrize(("name", "flat"), [("pvi, two rounds", True), ("prior counted 4 times", False)])
def test_ranks_are_flat_for_the_exact_scheme_alone(name: str, flat: bool) -> None:
    result = sbc.check(sbc.SCHEMES[name], **SMALL)
    assert result.weights.shape == (100, sbc.FEATURES) and result.weights.max() <= 19
    _, p = sbc.chi_square(result.weights, result.draws, bins=10)
    assert p > 0.01 if flat else p < 1e-3


def test_sbc_writes_its_table_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbc, "SCHEMES", {"bayfl, one client": sbc.SCHEMES["bayfl, one client"]})
    sbc.main(["--scale", "smoke", "--out", str(tmp_path)])
    table = pd.read_csv(tmp_path / "sbc.csv")
    assert table["ranks"].tolist() == [60 * sbc.FEATURES, 60] and (table["p"] > 0.001).all()
    assert (tmp_path / "sbc.png").stat().st_size > 1000


def test_the_reference_is_the_runs_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROFL_DATA", str(write_data_root(tmp_path / "data")))
    run = nuts.run_of(nuts.ARMS["pooled"], smoke=True)
    program, (x, y) = run.method.program, nuts.rows(run.federation, "train")
    for seed in range(3):
        draw = program.draw(program.init(root(seed)), root(seed))
        trace = poutine.trace(poutine.condition(nuts.model, draw.sites)).get_trace(x, y)
        w, b = (draw.sites[s] for s in nuts.SITES)
        logits = (x @ w.T + b)[:, 0]
        log_likelihood = torch.distributions.Bernoulli(logits=logits).log_prob(y).sum()
        assert trace.log_prob_sum().item() == pytest.approx((draw.log_prior + log_likelihood).item())


def test_compare_by_hand() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal([1.0, -1.0], [0.5, 0.2], (20_000, 2))
    x, y = torch.zeros(3, 1, dtype=torch.float64), torch.ones(3)
    half = nuts.compare(truth.mean(0) + 0.5 * (truth - truth.mean(0)), truth, x, y)
    assert half["sd_ratio"] == pytest.approx(0.5) and half["mean_shift"] == pytest.approx(0, abs=1e-9)
    assert half["distance"] == pytest.approx(0.5)
    assert half["coverage_90"] == pytest.approx(0.589, abs=0.01)  # P(|z| < 1.645 / 2)
    shifted = nuts.compare(truth + np.array([0.5, 0.2]), truth, x, y)
    assert shifted["mean_shift"] == pytest.approx(1, abs=0.02) and shifted["sd_ratio"] == pytest.approx(1)
    same = nuts.compare(truth, truth, x, y)
    assert same["coverage_90"] == pytest.approx(0.9, abs=0.01) and same["probability_shift"] == 0
    assert same["test_nll"] == pytest.approx(-np.log((1 / (1 + np.exp(-truth[:, 1]))).mean()), rel=1e-6)


@pytest.mark.slow
def test_nuts_writes_its_table_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYROFL_DATA", str(write_data_root(tmp_path / "data")))
    nuts.main(["--scale", "smoke", "--out", str(tmp_path)])
    table = pd.read_csv(tmp_path / "nuts.csv", index_col=0)
    assert table.index.tolist() == ["NUTS", *nuts.ARMS] and table.loc["NUTS", "distance"] == 0
    assert np.isfinite(table.to_numpy()).all() and (tmp_path / "nuts.png").stat().st_size > 1000
