"""Every configuration under experiments/ runs, on small generated data where the real data would be needed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.documents import ROOT, TINY
from support.stand_in import write_data_root

from pyrofl import assemble, load

# studies have a test of their own
FILES = sorted(p for p in (ROOT / "experiments").rglob("*.toml") if "base" not in tomllib.loads(p.read_text()))
SMALL = {"digits": ["data.limit=20"]}  # by data set
SMALL_MODELS = {"models.convnet:ConvNet": ["model.channels=2", "model.hidden=8"]}
FAMILIES = {  # a file, and its siblings on the same data with the same budget
    "digits": ("digits_bayfl", "digits_fedavg", "digits_fedprox", "digits_alone"),
    "hospitals": ("hospitals_bayfl", "hospitals_fedavg", "hospitals_alone", "hospitals_pooled"),
}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_root(tmp_path_factory.mktemp("data"))


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "experiments" / "meta_bayfl" / f"{name}.toml").read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_runs_a_round_and_scores_every_client(file: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    asked = tomllib.loads(file.read_text())
    less = [*SMALL.get(asked["data"]["name"], []), *SMALL_MODELS.get(asked["model"]["name"], [])]
    assembled = assemble(load(file, [*TINY, *less]), data_root=data_root)
    (last,) = assembled.run()
    clients = {c.name for c in assembled.federation.clients if c.test.rows}
    assert last.left_out == {}
    for model, scores in last.scores.items():
        assert clients <= scores.keys(), model
        assert all(scores[name]["nll"] > 0 for name in clients)


@pytest.mark.parametrize("family", FAMILIES)
def test_siblings_share_data_model_and_budget(family: str):
    first = table(family)
    for name in FAMILIES[family]:
        other = table(name)
        for key in ("seed", "rounds", "data", "model", "evaluate"):
            assert other[key] == first[key], f"{name}: {key}"
        assert {k: other["method"][k] for k in ("epochs", "size")} == {
            k: first["method"][k] for k in ("epochs", "size")
        }
        if other["method"]["name"] in ("bayfl", "alone"):
            assert (other["prior"], other["inference"]) == (first["prior"], first["inference"])
        assert other["method"].get("optimizer", "") in ("", *first["method"]["optimizers"])  # a candidate of Meta-BayFL


@pytest.mark.parametrize(("name", "clients"), [("mnist", 10), ("hospitals", 4), ("domains", 4), ("tables", 4)])
def test_federated_runs_count_the_prior_once(name: str, clients: int, data_root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assembled = assemble(load(ROOT / "experiments" / "meta_bayfl" / f"{name}.toml", []), data_root=data_root)
    assert len(assembled.federation) == clients
    assert assembled.config.inference["beta"] * clients == pytest.approx(1)


def test_choose_rate_scores_held_out_training_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments.meta_bayfl.choose_rate import held_out, score

    config = load(
        ROOT / "experiments" / "meta_bayfl" / "digits_alone.toml",
        ["rounds=4", "method.epochs=2", "data.clients=2", "data.split={ kind = 'iid' }", "data.limit=20"],
    )
    federation = assemble(config).federation
    parts = held_out(federation)
    for before, after in zip(federation.clients, parts.clients):
        assert after.train.rows + after.test.rows == before.train.rows
        assert after.test.rows == round(0.2 * before.train.rows)
        assert after.test.x[: after.test.rows].equal(before.train.x[after.train.rows : before.train.rows])
    assert score(config, "adam:1e-2") < score(config, "adam:1e-4")  # 1e-4 barely moves in so few steps


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["none.toml", "adam:1e-2"], "none.toml: no such file"),
        (["experiments/meta_bayfl/digits_fedavg.toml", "adamm:1e-2"], "unknown name 'adamm'; did you mean \"adam\""),
        (["experiments/meta_bayfl/digits.toml", "adam:1e-2"], "unknown key method.optimizer"),
        (["experiments/meta_bayfl/digits_fedavg.toml"], "OPTIMIZER"),
    ],
)
def test_choose_rate_says_what_is_wrong(asked: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.meta_bayfl.choose_rate import main

    with pytest.raises(SystemExit) as stop:
        main(asked)
    assert stop.value.code == 2 and says in capsys.readouterr().err
