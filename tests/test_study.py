"""Studies: what an arm changes, how a candidate is chosen, that nothing runs twice, that every file's arms build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w
import torch
from support.documents import ROOT

from experiments.run_all import STUDIES
from experiments.study import Runner, main
from experiments.study_file import Study, merged
from experiments.study_jobs import finished, held_out, to_the_end
from experiments.study_report import beside_paper, difference, interval, nll_difference, table, write
from pyrofl import assemble
from pyrofl.config import ConfigError
from pyrofl.store import RunDirectory, load_tree
from pyrofl.tree import equal

FILES = sorted(p for folder in STUDIES for p in (ROOT / "experiments" / folder).glob("*.toml"))
TINY: dict[str, Any] = {
    "title": "Tiny",
    "seeds": [1, 2],
    "base": {
        "rounds": 2,
        "data": {"name": "synthetic", "sites": 3, "rows": 20},
        "model": {"name": "support.nets:Dense"},
        "method": {"name": "fedavg", "epochs": 1, "size": 8, "optimizer": "sgd:0.1"},
        "evaluate": {"every": 2, "draws": 1, "final_draws": 1},
    },
    "arms": {
        "fedavg": {"method": {"name": "fedavg"}, "tune": {"method.optimizer": ["sgd:1e-9", "sgd:0.3"]}},
        "alone": {"method": {"name": "alone"}},
    },
    "scales": {"smoke": {"seeds": [1], "set": ["rounds=1"]}},
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(TINY))
    return path


def test_an_arm_changes_what_it_names_and_keeps_the_budget() -> None:
    base = {
        "model": {"name": "a", "hidden": 3},
        "method": {"name": "x", "epochs": 2},
        "data": {"name": "d", "split": 1},
    }
    out = merged(base, {"model": {"name": "b"}, "method": {"name": "y", "mu": 1}, "data": {"split": 2}})
    assert out == {
        "model": {"name": "b"},
        "method": {"name": "y", "epochs": 2, "mu": 1},
        "data": {"name": "d", "split": 2},
    }
    assert base["model"] == {"name": "a", "hidden": 3}


def test_another_kind_of_split_takes_nothing_from_the_one_before() -> None:
    base = {"data": {"name": "d", "split": {"kind": "dirichlet", "alpha": 0.5}, "test": 0.2}}
    out = merged(base, {"data": {"split": {"kind": "iid"}}})
    assert out == {"data": {"name": "d", "split": {"kind": "iid"}, "test": 0.2}}
    out = merged(base, {"data": {"split": {"alpha": 0.1}}})
    assert out["data"]["split"] == {"kind": "dirichlet", "alpha": 0.1}


def test_a_scale_changes_the_base_and_unknown_names_are_refused(tiny: Path) -> None:
    study = Study.read(tiny, "smoke", ["method.size=4"])
    assert study.seeds == (1,)
    for arm in study.arms:
        assert arm.table["rounds"] == 1 and arm.table["method"]["size"] == 4
    assert [arm.table["rounds"] for arm in Study.read(tiny).arms] == [2, 2]
    few = {**TINY, "scales": {"cpu": {"only": ["alone"]}, "full": {}}}
    tiny.write_text(tomli_w.dumps(few))
    assert [len(Study.read(tiny, scale).arms) for scale in ("cpu", "full")] == [1, 2]
    tiny.write_text(tomli_w.dumps(TINY))
    with pytest.raises(ConfigError, match="there is no scale 'big'; it has cpu, smoke"):
        Study.read(tiny, "big")
    with pytest.raises(ConfigError, match="there is no arm 'fedavgg'; did you mean \"fedavg\""):
        study.only(["fedavgg"])


def test_an_arm_that_tunes_more_than_the_others_is_refused(tiny: Path) -> None:
    unfair = {**TINY, "arms": {"fedavg": {"method": {"name": "fedavg"}, "tune": {"a.b": [1], "a.c": [2]}}}}
    tiny.write_text(tomli_w.dumps(unfair))
    with pytest.raises(ConfigError, match="tunes 2 keys; every arm tunes one"):
        Study.read(tiny)


def test_held_out_rows_are_training_rows(tiny: Path) -> None:
    study = Study.read(tiny)
    federation = assemble(study.arms[0].config(1)).federation
    for before, after in zip(federation.clients, held_out(federation).clients, strict=True):
        assert after.train.rows + after.test.rows == before.train.rows
        rows = {tuple(r) for r in before.train.x.tolist()}
        assert {tuple(r) for r in after.test.x.tolist()} <= rows


def test_the_better_candidate_is_chosen_and_nothing_is_run_twice(tiny: Path, tmp_path: Path) -> None:
    runner = Runner(Study.read(tiny), tmp_path / "out", 1)
    assert [(a.name, n) for a, n in runner.left()] == [("fedavg", 4), ("alone", 2)]
    runner.run()
    assert runner.failed == {} and runner.left() == []
    fedavg = runner.study.arms[0]
    scores = [json.loads(runner.tuned_file(runner.job(fedavg, 0, v)).read_text())["nll"] for v in fedavg.candidates]
    assert scores[1] < scores[0] and runner.chosen(fedavg) == "sgd:0.3"
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}
    Runner(runner.study, tmp_path / "out", 1).run()
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.is_file()}

    frame = runner.results()
    assert len(frame) == 4 and set(frame["seed"]) == {1, 2}
    write(runner.study, frame, tmp_path / "results", "tiny")
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"tiny.csv", "tiny.md", "tiny.png"}
    rows = table(runner.study, frame)
    means = frame.groupby("arm")["personal/accuracy"].mean()
    assert list(rows["arm"]) == list(means.sort_values(ascending=False, kind="stable").index)


def test_scores_on_shared_rows_are_in_the_table(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    study = Study.read(tiny, "smoke", ["evaluate.balanced=true", "evaluate.matched=true"]).only(["alone"])
    runner = Runner(study, tmp_path, 0)
    runner.run()
    assert runner.failed == {}
    frame = runner.results()
    (row,) = table(study, frame).to_dict("records")
    for name in ("balanced", "matched"):
        assert row[name] == f"{frame[f'{name}/accuracy'][0]:.3f}"
    assert row["balanced"] != row["matched"]


def test_scores_asked_for_later_are_found_without_training(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    more = ["evaluate.balanced=true", "evaluate.matched=true"]
    plain, asked, at_once = (
        Runner(Study.read(tiny, "smoke", less).only(["alone"]), tmp_path / place, 0)
        for place, less in (("a", []), ("a", more), ("b", more))
    )
    plain.run()
    trained = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    for runner in (asked, at_once):
        runner.run()
    assert plain.failed == asked.failed == at_once.failed == {}
    assert all(p.read_bytes() == content for p, content in trained.items()), "what was trained is not touched"
    pd.testing.assert_frame_equal(
        asked.results().drop(columns="seconds"), at_once.results().drop(columns="seconds"), check_like=True
    )
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")}
    asked.run()
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")}, "once is enough"


SECOND: dict[str, Any] = {
    **TINY,
    "seeds": [1],
    "arms": {
        "heads": {
            "from": "fedavg",
            "rounds": 1,
            "method": {"name": "vaneb_ft"},
            "tune": {"method.optimizer": ["sgd:0.1", "sgd:0.01"]},
        },
        "fedavg": {"method": {"name": "fedavg"}, "tune": {"method.optimizer": ["sgd:1e-9", "sgd:0.3"]}},
    },
}


def test_an_arm_starts_from_the_model_of_another_which_is_chosen_before(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    tiny.write_text(tomli_w.dumps(SECOND))
    study = Study.read(tiny).only(["heads"])
    assert [a.name for a in study.arms] == ["heads", "fedavg"], "what an arm starts from is there too"
    runner = Runner(study, tmp_path / "out", 0)
    assert [(a.name, n) for a, n in runner.left()] == [("heads", 3), ("fedavg", 3)]
    runner.run()
    assert runner.failed == {} and runner.left() == []
    heads, fedavg = study.arms
    job = runner.job(heads, 1, runner.chosen(heads))
    assert job.first is not None and job.first.method["optimizer"] == "sgd:0.3" and job.first.seed == 1
    folder, alone = (runner.place("runs", j) for j in (job, runner.job(fedavg, 1, "sgd:0.3")))
    model, other, heads_now = (load_tree(p / "server.safetensors", "cpu")[0] for p in (folder / "first", alone, folder))
    body = next(k for k in model if "body" in k)
    assert equal(model, other), "the first run is that of the other arm"
    assert torch.equal(heads_now[body], model[body]), "and its model is where this arm starts"
    scores, plain = (runner.results().set_index("arm").loc[name] for name in ("heads", "fedavg"))
    assert scores["bytes"] > plain["bytes"] and scores["seconds"] > plain["seconds"], "both runs were paid for"
    asked = Runner(Study.read(tiny, "cpu", ["evaluate.balanced=true"]).only(["heads"]), tmp_path / "out", 0)
    asked.run()
    assert asked.failed == {}
    assert asked.results()["balanced/accuracy"].notna().all(), "it can be scored later too"


def test_the_first_run_of_a_candidate_holds_out_the_same_rows(tiny: Path, tmp_path: Path) -> None:
    """Else the model would have been trained on the rows that choose."""
    tiny.write_text(tomli_w.dumps(SECOND))
    runner = Runner(Study.read(tiny), tmp_path, 1)
    job = runner.job(runner.study.arms[0], 0, "sgd:0.1")
    assert job.first is not None
    to_the_end(job.first, tmp_path / "first", hold_out=True)
    rows = pd.read_csv(tmp_path / "first" / "partition.csv")
    whole = assemble(job.first).federation
    assert list(rows["train"]) == [c.train.rows for c in held_out(whole).clients]
    assert sum(rows["train"]) < sum(c.train.rows for c in whole.clients)


def test_an_arm_that_starts_from_no_arm_or_from_a_second_run_is_refused(tiny: Path) -> None:
    for after, reason in (("fedavgg", "there is no arm 'fedavgg'"), ("heads", "name an arm that starts anew")):
        arms = {**SECOND["arms"], "more": {"from": after, "method": {"name": "vaneb_ft"}}}
        tiny.write_text(tomli_w.dumps({**SECOND, "arms": arms}))
        with pytest.raises(ConfigError, match=reason):
            Study.read(tiny)


BASE = {k: v for k, v in TINY.items() if k != "base"}
WRONG = {
    tomli_w.dumps({**TINY, "against": "fedavgg"}): "against = 'fedavgg' is no arm; did you mean \"fedavg\"",
    tomli_w.dumps({**TINY, "sedes": [1]}): "unknown key 'sedes'; did you mean \"seeds\"",
    tomli_w.dumps({**TINY, "scales": {"smoke": {"seed": [1]}}}): "unknown key 'seed' of scale 'smoke'; did you mean",
    tomli_w.dumps({**TINY, "seeds": [1, 1]}): "seeds = [1, 1]: a study needs some, each once, and not 0, which tunes",
    tomli_w.dumps({**TINY, "seeds": []}): "seeds = []: a study needs some",
    tomli_w.dumps({**TINY, "seeds": [0]}): "seeds = [0]: a study needs some",
    tomli_w.dumps(
        {**TINY, "score": "personal/acuracy"}
    ): "unknown score 'personal/acuracy'; did you mean \"personal/acc",
    tomli_w.dumps(BASE): "not a study file: it has no 'base'",
    'method = "fedavg"': "not a study file: it has no 'title' and no 'base' and no 'arms'",
    "title = ": "not a study file: Invalid value",
}


@pytest.mark.parametrize("text", list(WRONG))
def test_the_command_says_what_is_wrong_with_a_file(
    text: str, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(text)
    monkeypatch.setattr("sys.argv", ["study", str(tiny), "--out", "out"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and f"{tiny}: {WRONG[text]}" in capsys.readouterr().err


def test_the_command_says_what_is_wrong_with_its_arguments(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "file").write_text("")
    out = ["--out", str(tmp_path / "out")]
    for asked, says in (
        ([str(tmp_path / "no"), *out], f"{tmp_path / 'no'}: not a study file"),
        ([str(tmp_path), *out], f"{tmp_path}: not a study file"),
        ([str(tiny), *out, "--jobs", "-1"], "'-1' is no number of runs"),
        ([str(tiny), "--out", str(file)], f"{file}: File exists: name a folder that can be written to"),
        ([str(tiny), *out, "--results", str(file)], f"{file}: File exists: name a folder that can be written to"),
    ):
        monkeypatch.setattr("sys.argv", ["study", *asked])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2 and says in capsys.readouterr().err


def test_a_run_that_was_stopped_before_its_first_round_is_not_finished(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round,client,split,metric,value\n")
    assert not finished(tmp_path, 1)
    (tmp_path / "metrics.csv").write_text("round,client,split,metric,value\n1,a,test,personal/nll,0.5\n")
    assert finished(tmp_path, 1) and not finished(tmp_path, 2)


def test_an_interval_is_students() -> None:
    mean, half = interval(pd.Series([1.0, 2.0, 3.0]))
    assert mean == 2 and half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_arm_of_every_file_builds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study, base = Study.read(path, "smoke"), tomllib.loads(path.read_text())["base"]
    assert study.against in {a.kind for a in study.arms}
    choosing = [a for a in study.arms if "optimizers" in a.table["method"]]  # clients choose the rate: nothing to tune
    tuned = {a.table["method"]["name"] for a in study.arms if a.candidates}
    fixed = [a for a in study.arms if not a.candidates and a.table["method"]["name"] in tuned]
    counts = {len(a.candidates) for a in study.arms if a not in [*choosing, *fixed]}
    assert len(counts) <= 1, "all arms tune equally many values"
    assert {len(a.candidates) for a in choosing} <= counts | {0}
    for arm in study.arms:
        for value in arm.candidates or (None,):
            assembled = assemble(arm.config(1, value))
            budget = {k: assembled.config.method.get(k) for k in ("size",)}
            assert budget == {"size": base["method"]["size"]}, arm.name


CELLS = {
    **{k: TINY[k] for k in ("title", "base", "scales")},
    "seeds": [1],
    "cells": {
        "few": {"panel": "A", "at": "20", "paper": {"fedavg": 50, "alone": 60.5}},
        "more": {"panel": "A", "at": "40", "data": {"rows": 40}, "tuned_in": "few", "paper": {"fedavg": 55}},
        "same": {"panel": "B", "at": "40", "data": {"rows": 40}, "tuned_in": "few", "only": ["fedavg"]},
    },
    "arms": {
        "fedavg": {"tune": {"method.optimizer": ["sgd:1e-9", "sgd:0.3"]}},
        "alone": {"method": {"name": "alone"}, "tune": {"method.optimizer": ["sgd:0.3", "sgd:1e-9"]}},
    },
}


def test_every_arm_runs_in_every_cell_with_the_choice_of_another_where_asked(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    tiny.write_text(tomli_w.dumps(CELLS))
    study = Study.read(tiny)
    assert [a.name for a in study.arms] == ["few/fedavg", "few/alone", "more/fedavg", "more/alone", "same/fedavg"]
    assert [a.config(1).data["rows"] for a in study.arms] == [20, 20, 40, 40, 40]
    assert [a.name for a in study.only(["alone"]).arms] == ["few/alone", "more/alone"]
    assert [a.name for a in study.only(["more", "same/fedavg"]).arms] == ["more/fedavg", "more/alone", "same/fedavg"]

    runner = Runner(study, tmp_path / "out", 0)
    # two candidates and a run; 'more' chooses nothing anew, and 'same' has the runs of 'more'
    assert [(a.name, n) for a, n in runner.left()] == [
        ("few/fedavg", 3),
        ("few/alone", 3),
        ("more/fedavg", 1),
        ("more/alone", 1),
    ]
    runner.run()
    assert runner.failed == {} and runner.left() == []
    assert {runner.chosen(a) for a in study.arms} == {"sgd:0.3"}
    frame = runner.results()
    assert list(frame["cell"]) == ["few", "few", "more", "more", "same"]
    by_name = frame.set_index(["cell", "arm"])["personal/accuracy"]
    assert by_name["more", "fedavg"] == by_name["same", "fedavg"]

    rows = beside_paper(study, frame).set_index(["cell", "arm"])
    assert list(rows.index) == [("few", "fedavg"), ("few", "alone"), ("more", "fedavg"), ("more", "alone")]
    assert rows.loc[("more", "alone"), ["paper", "paper - fedavg"]].tolist() == ["", ""]
    assert rows.loc[("few", "alone"), "paper - fedavg"] == "+10.50"
    assert rows.loc[("few", "alone"), "ours, own models"] == f"{100 * by_name['few', 'alone']:.1f}"
    write(study, frame, tmp_path / "results", "cells")
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"cells.csv", "cells.md", "cells.png"}


def test_cells_that_name_what_is_not_there_are_refused(tiny: Path) -> None:
    for change, message in [
        ({"tuned_in": "mroe"}, "cell 'few' is tuned in 'mroe', which is no cell before it"),
        ({"paper": {"fedavgg": 1}}, "there is no arm 'fedavgg'; did you mean \"fedavg\""),
    ]:
        cells = {**CELLS["cells"], "few": {**CELLS["cells"]["few"], **change}}
        tiny.write_text(tomli_w.dumps({**CELLS, "cells": cells}))
        with pytest.raises(ConfigError, match=message):
            Study.read(tiny)


def test_differences_are_of_the_same_cell(tiny: Path) -> None:
    tiny.write_text(tomli_w.dumps(CELLS))
    rest = {"bytes": 0, "seconds": 0.0, "chosen": ""}
    frame = pd.DataFrame(
        [
            {"cell": c, "arm": a, "seed": s, "personal/accuracy": v + 0.01 * s, "personal/nll": 2 - v * s, **rest}
            for c, a, v in [("few", "fedavg", 0.5), ("few", "alone", 0.6), ("more", "fedavg", 0.1)]
            for s in (1, 2)
        ]
    )
    study = Study.read(tiny)
    assert difference(study, frame[frame["cell"] == "few"], "alone") == "+10.0 (+10.0 to +10.0)"
    assert difference(study, frame[frame["cell"] == "more"], "fedavg") == ""
    # -0.1 and -0.2: mean -0.15; a fifth of the rows is for testing, so that both seeds' rows overlap: with 1 df half an
    # interval is 12.706 * 0.1 / sqrt(2) * sqrt(1/2 + 1/4)
    assert nll_difference(study, frame[frame["cell"] == "few"], "alone") == "-0.150 (-0.928 to +0.628)"
    rows = table(study, frame).set_index(["cell", "arm"])["NLL - fedavg"]
    assert rows["few", "alone"] == "-0.150 (-0.928 to +0.628)" and rows["more", "fedavg"] == ""


@pytest.mark.parametrize("test", [0, 1.0])
def test_a_study_that_leaves_nothing_to_score_is_refused(tiny: Path, test: float) -> None:
    data = {**TINY["base"]["data"], "test": test}
    tiny.write_text(tomli_w.dumps({**TINY, "base": {**TINY["base"], "data": data}}))
    with pytest.raises(ConfigError, match=rf"arm fedavg: data.test = {float(test)}: a study needs"):
        Study.read(tiny)


def test_a_run_is_trained_by_one_process_at_a_time(tiny: Path, tmp_path: Path) -> None:
    study = Study.read(tiny).untuned()
    runner = Runner(study, tmp_path / "out", 0)
    folder = runner.place("runs", runner.job(study.arms[0], study.seeds[0], study.arms[0].candidates[0]))
    folder.mkdir(parents=True)
    with RunDirectory(folder).at_work():
        runner.run()
    assert "another process trains in" in runner.failed[study.arms[0].name]
    assert not (folder / "metrics.csv").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_processes_of_a_study_end_with_it(tiny: Path, tmp_path: Path) -> None:
    """Killed in the middle, it leaves nobody who trains on."""
    arms = {name: {"method": {"name": name}} for name in ("fedavg", "alone")}
    tiny.write_text(tomli_w.dumps({**TINY, "base": {**TINY["base"], "rounds": 100_000}, "seeds": [1], "arms": arms}))
    command = [sys.executable, "-m", "experiments.study", str(tiny), "--out", str(tmp_path / "out"), "--jobs", "2"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    study = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, **quiet)
    at_work: list[int] = []
    try:
        until = time.monotonic() + 120
        while not list((tmp_path / "out").rglob("metrics.csv")):
            assert study.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        at_work = children(study.pid)
        assert len(at_work) >= 2
        study.kill()
        study.wait()
        until = time.monotonic() + 30
        while any(alive(pid) for pid in at_work):
            assert time.monotonic() < until, f"{at_work} go on"
            time.sleep(0.2)
    finally:
        for pid in (study.pid, *at_work):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        study.wait()


def children(pid: int) -> list[int]:
    """Processes that another one started, by Linux's /proc."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
