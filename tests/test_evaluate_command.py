"""`pyrofl evaluate`, as it is given."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.documents import ROOT, TINY
from typer.testing import CliRunner

from pyrofl import arviz
from pyrofl.cli import app
from pyrofl.diagnose import losses

FILE = "experiments/meta_bayfl/digits_bayfl.toml"
LESS = [
    *TINY,
    "data.limit=8",
    "data.clients=2",
    "data.split={ kind = 'iid' }",
    "model.hidden=4",
    "method.finetune=false",
]


def give(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for seed in (1, 2):
            give("run", FILE, *LESS, f"seed={seed}", "--out", str(here / str(seed)))
    return here


def test_writes_both_files_and_prints_a_line_a_client(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said = give("evaluate", str(runs / "1"), str(runs / "2"), "--draws", "40")
    train, test = (arviz.load(runs / "1" / name) for name in ("draws.nc", "draws-test.nc"))
    assert train.attrs["split"] == "train" and "sample_stats" in train
    assert test.attrs["split"] == "test" and "sample_stats" not in test
    for words in ("k-hat", "elpd", "contraction", "client0", "client1", "(all)", "weights", "predictions", "95%"):
        assert words in said, words
    assert "r-hat" not in said.lower()
    assert not (runs / "2" / "draws.nc").exists()


def test_personal_draws_leave_out_clients_without_a_model_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = str(tmp_path / "run")
    give(
        "run",
        FILE,
        *LESS,
        "method=pfedbayes",
        "prior=student_t",
        "prior.df=2.0",
        "cohort={ clients = 1 }",
        "--out",
        place,
    )
    said = give("evaluate", place, "--model", "personal", "--draws", "30")
    made = arviz.load(tmp_path / "run" / "draws.nc")
    (left,), (kept,) = made.attrs["clients_left_out"].split(", "), made["posterior"]["client"].values.tolist()
    assert {left, kept} == {"client0", "client1"}
    assert f"left out, for they predict with the server's own posterior: {left}" in said
    assert "no contraction where the prior has no finite variance: net.body" in said


def test_the_report_shows_the_checks_of_this_round(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    give("report", str(runs / "1"))
    page = (runs / "1" / "report.html").read_text()
    checks = pd.read_csv(runs / "1" / "checks.csv", index_col="client")
    for client in ("client0", "client1"):
        assert f"{checks['elpd'][client]:.2f}" in page
    give("report", str(runs / "2"))
    assert "pyrofl evaluate" in (runs / "2" / "report.html").read_text()


def test_losses_are_read_in_order_of_the_rounds(runs: Path) -> None:
    found = losses(runs / "1" / "metrics.csv")
    assert found.keys() == {"client0", "client1"} and all(len(v) == 1 for v in found.values())


def test_a_new_run_in_the_place_removes_the_old_draws(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (runs / "2" / "draws.nc").write_bytes(b"old")
    give("run", FILE, *LESS, "seed=2", "--out", str(runs / "2"), "--overwrite")
    assert not (runs / "2" / "draws.nc").exists()


def test_a_directory_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        CliRunner().invoke(app, ["evaluate", str(tmp_path)], catch_exceptions=False)


def test_what_cannot_be_done_is_refused_before_anything_is_written(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (runs / "1" / "draws.nc").write_bytes(b"old")
    before = {p: p.read_bytes() for p in runs.rglob("*") if p.is_file()}
    for words, message in (
        (["--draws", "24"], "at least 25 draws are needed for LOO, got 24: raise --draws"),
        ([str(runs / "none"), "--draws", "40"], "none holds no run"),
    ):
        with pytest.raises(ValueError, match=message):
            CliRunner().invoke(app, ["evaluate", str(runs / "1"), *words], catch_exceptions=False)
    assert {p: p.read_bytes() for p in runs.rglob("*") if p.is_file()} == before
