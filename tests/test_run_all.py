"""All experiments by one command: what fails or lacks data stops nothing, what is finished is not run again."""

from __future__ import annotations

import json
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from support.documents import ROOT
from support.stand_in import write_data_root
from test_study import CELLS, SECOND, TINY

from experiments import run_all
from experiments.run_all import SHARED, Failed, Script, StudyFile, attempt, everything, lacks_data, main
from experiments.study import Runner
from experiments.study_file import Study
from pyrofl.config import ConfigError


@dataclass(frozen=True)
class Stub:
    """An experiment that raises, or writes a result."""

    name: str
    error: BaseException | None = None

    def run(self, scale: str, out: Path, jobs: int) -> bool:
        if self.error is not None:
            raise self.error
        out.mkdir(parents=True, exist_ok=True)
        made = (out / "own.md").exists()
        (out / "own.md").write_text(f"{scale} {jobs}")
        (out / "own.png").write_bytes(b"")
        return not made

    def seconds(self, scale: str, out: Path, jobs: int) -> float | None:
        if isinstance(self.error, Exception):
            raise self.error
        return None if self.error else 120.0


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyFile:
    """A study file of a repository of its own."""
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    (tmp_path / "checks").mkdir()
    path = tmp_path / "checks" / "tiny.toml"
    path.write_text(tomli_w.dumps(TINY))
    return StudyFile(path)


def without_data() -> ConfigError:
    error = ConfigError("data: mnist is not at /nowhere: put it there")
    error.__cause__ = FileNotFoundError()
    return error


def test_one_that_fails_and_one_without_data_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stubs = [Stub("bad", ZeroDivisionError("by [0]")), Stub("ends", SystemExit(2)), Stub("far", without_data())]
    monkeypatch.setattr(run_all, "everything", lambda: [*stubs, Stub("good")])
    asked = ["--scale", "cpu", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(asked)
    said = capsys.readouterr().out
    assert ended.value.code == 1
    assert "4 experiments at the scale cpu\nat most about 2 minutes for the 1 that can be estimated" in said
    assert "2 failed:\n  bad: ZeroDivisionError: by [0]\n  ends: SystemExit: 2\n" in said
    assert "1 without data, and not run; docs/data.md says where data sets lie:\n  far: data: mnist" in said
    assert "is not at /nowhere: put it there\n" in said
    text = (tmp_path / "out" / "index.md").read_text()
    assert "## good\n\n[own.md](good/own.md)\n\n![own](good/own.png)\n" in text
    assert "- far: no data: data: mnist is not at /nowhere" in text and "## bad" not in text

    main([*asked, "--only", "good", "far"])  # without data is no failure
    said = capsys.readouterr().out
    assert "good: was done" in said and "bad" not in said
    with pytest.raises(SystemExit):
        main([*asked, "--only", "god"])
    assert "there is no experiment 'god'; did you mean \"good\"" in capsys.readouterr().err


def test_only_a_missing_data_set_counts_as_missing_data() -> None:
    assert lacks_data(without_data())
    assert not lacks_data(ConfigError("data: unknown key")) and not lacks_data(FileNotFoundError("result.csv"))


def test_a_study_chooses_nothing_at_smoke_and_is_run_once(study: StudyFile, tmp_path: Path) -> None:
    out, shared = tmp_path / "out", tmp_path / SHARED
    assert study.name == "checks.tiny"
    assert attempt(study, "smoke", out, 2).state == "done"
    assert {p.name for p in out.iterdir()} == {"tiny.csv", "tiny.md", "tiny.png"}
    assert "sgd:1e-9" in (out / "tiny.md").read_text(), "the first candidate, which is the worse one"
    runs = {p: p.stat().st_mtime_ns for p in shared.rglob("*")}
    assert attempt(study, "smoke", out, 2).state == "was done"
    assert runs == {p: p.stat().st_mtime_ns for p in shared.rglob("*")}

    # another study of the same arms has its own table, from the same runs
    other = StudyFile(study.path.with_name("other.toml"))
    other.path.write_text(tomli_w.dumps(TINY))
    assert attempt(other, "smoke", tmp_path / "second", 2).state == "done"
    assert runs == {p: p.stat().st_mtime_ns for p in shared.rglob("*")}
    table = lambda p: p.read_text().partition("Made by")[0]
    assert table(tmp_path / "second" / "other.md") == table(out / "tiny.md")


def test_a_study_runs_at_cpu_where_it_has_no_full_scale(study: StudyFile, tmp_path: Path) -> None:
    runner, at = study._runner("full", tmp_path, 2)
    assert at == "cpu" and runner.jobs == 2 and [len(a.candidates) for a in runner.study.arms] == [2, 0]
    runner, at = study._runner("smoke", tmp_path, 2)
    assert at == "smoke" and runner.jobs == 0 and [len(a.candidates) for a in runner.study.arms] == [1, 0]


def test_an_arm_of_a_study_that_fails_leaves_the_results_of_the_others(study: StudyFile, tmp_path: Path) -> None:
    wrong = {"method": {"name": "alone", "optimizer": "sgd:inf"}}
    study.path.write_text(tomli_w.dumps({**TINY, "arms": {**TINY["arms"], "wrong": wrong}}))
    with pytest.raises(Failed, match="wrong: "):
        study.run("smoke", tmp_path / "out", 1)
    text = (tmp_path / "out" / "tiny.md").read_text()
    assert "| fedavg |" in text and "| wrong |" not in text


def test_a_study_without_its_data_runs_nothing(
    study: StudyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYROFL_DATA", str(tmp_path / "empty"))
    base = {**TINY["base"], "data": {"name": "mnist", "download": False}}
    study.path.write_text(tomli_w.dumps({**TINY, "base": base}))
    outcome = attempt(study, "smoke", tmp_path / "out", 1)
    assert outcome.state == "no data" and "put it there" in outcome.reason
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("table", "name"), [(SECOND, "from"), (CELLS, "tuned_in")])
def test_untuned_takes_the_first_candidate_of_what_an_arm_hangs_on_too(
    table: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(table))
    runner = Runner(Study.read(path).untuned(), tmp_path, 0)
    assert runner.tuning() == {}
    wanted = {a.name: a.candidates[0] for a in Study.read(path).arms}
    assert {a.name: runner.chosen(a) for a in runner.study.arms} == wanted
    if name == "from":
        first = runner.job(runner.study.arms[0], 1, None).first
        assert first is not None and first.method["optimizer"] == "sgd:1e-9"


def test_a_script_runs_again_for_another_scale_or_version_or_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    fails = [False]

    def script(arguments: list[str]) -> None:
        given.append(arguments)
        sys.stdout.write("said by the script\n")
        (out / "table.csv").write_text("a\n")
        if fails[0]:
            raise OSError("no space")

    for name in ("made", "shown"):
        module = types.ModuleType(name)
        module.main = script  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    experiment = Script(("made", "shown"), {"smoke": ("--smoke",), "cpu": ()})
    out = tmp_path / "made"

    def state(scale: str) -> str:
        return attempt(experiment, scale, out, 1).state

    assert (state("smoke"), state("smoke")) == ("done", "was done")
    assert given == [["--out", str(out), "--smoke"], ["--out", str(out)]]
    assert (out / "log.txt").read_text() == "said by the script\n" * 2
    assert (state("cpu"), state("cpu")) == ("done", "was done")
    monkeypatch.setattr("pyrofl.__version__", "another")
    fails[0] = True
    assert (state("cpu"), state("cpu")) == ("failed", "failed"), "what fails is not marked as finished"
    fails[0] = False
    assert state("cpu") == "done"
    marker = json.loads((out / run_all.MARKER).read_text())
    assert marker == {"scale": "cpu", "version": "another", "results": ["table.csv"]}
    (out / "table.csv").unlink()
    assert (state("cpu"), state("cpu")) == ("done", "was done"), "lost results are made again"


def test_all_study_files_and_scripts_of_the_repository_are_there() -> None:
    names = [e.name for e in everything()]
    assert len(set(names)) == len(names)
    studies = {p for p in (ROOT / "experiments").rglob("*.toml") if "\n[base]\n" in p.read_text()}
    assert {e.path for e in everything() if isinstance(e, StudyFile)} == studies
    assert {"fedmap.hospitals", "convergence", "calibration.nuts", "meta_bayfl.tables.noise"} <= set(names)


@pytest.mark.long
def test_everything_runs_at_smoke_in_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYROFL_DATA", str(write_data_root(tmp_path / "data")))
    began = time.process_time()  # all of it is in this process, on one thread
    main(["--scale", "smoke", "--out", str(tmp_path / "out")])
    assert time.process_time() - began < 200, "CPU seconds, which do not depend on who else works here"
    said = capsys.readouterr().out
    assert said.count(": done, ") == len(everything()), said
    text = (tmp_path / "out" / "index.md").read_text()
    assert [e.name for e in everything() if f"## {e.name}\n" not in text] == []
