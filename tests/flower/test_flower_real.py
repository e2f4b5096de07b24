"""Flower in earnest: `flwr run`, and hospitals behind TLS and keys, with what goes wrong there; minutes each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from support.compare import close
from support.documents import ROOT
from support.stand_in import HOSPITALS, heart

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from support.deployment import PATIENCE, Deployment, until

from pyrofl import assemble
from pyrofl.config import config_of, override
from pyrofl.engines import Failure, Job, Sequential
from pyrofl.run import Run
from pyrofl.store import RunDirectory, load_tree, read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("flower-superlink") is None, reason="needs Flower's commands on the PATH"),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups"),
]

FOUR = ROOT / "experiments" / "deployment" / "four_sites.toml"
QUICK = ("rounds=2", "method.epochs=1", "evaluate.draws=2", "evaluate.final_draws=2")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    heart(tmp_path / "data", np.random.default_rng(0))
    return tmp_path / "data"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path / "deployment")
    yield made
    made.close()


def in_process(config: Path, data: Path, *overrides: str, out: Path, engine: Any = None) -> Run:
    """The same configuration in this process, all rows in one place."""
    table = tomllib.loads(config.read_text())
    table["data"]["path"] = str(data)
    for item in overrides:
        override(table, item)
    directory = RunDirectory(out)
    directory.create("")
    run = assemble(config_of({**table, "engine": "sequential"})).run(directory)
    if engine is not None:
        run.engine = engine
    return run


def scores(run: Path) -> dict[tuple[Any, ...], float | None]:
    """All but what needs rows in one place: the scores over all rows together."""
    rows = read_metrics(run / "metrics.csv")
    return {r[:4]: r.value for r in rows if r.client != "(pooled)"}


def equal(one: Path, other: Path) -> None:
    close(load_tree(one / "server.safetensors")[0], load_tree(other / "server.safetensors")[0], "server")
    a, b = scores(one), scores(other)
    assert a.keys() == b.keys()
    for row, value in a.items():
        assert b[row] == (None if value is None else pytest.approx(value, abs=1e-6)), row


def test_a_simulation_by_flwr_run_equals_the_run_in_process(tmp_path: Path, data: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYROFL_DATA", str(tmp_path))
    shutil.copytree(data, tmp_path / "heart")
    table = tomllib.loads((ROOT / "experiments" / "meta_bayfl" / "hospitals_bayfl.toml").read_text())
    config = tmp_path / "run.toml"
    config.write_text(tomli_w.dumps(table))
    made = Deployment(tmp_path / "simulation", simulation=True)
    try:
        made.superlink()
        out = tmp_path / "flower"
        number = made.run(config, out, *QUICK, federation="num-supernodes=4 client-resources-num-cpus=1")
        until("the last round", lambda: "done:" in made.said(f"run-{number}"), 2 * PATIENCE)
    finally:
        made.close()
    whole = in_process(config, data, *QUICK, out=tmp_path / "whole")
    list(whole)
    equal(tmp_path / "whole", out)


def test_the_script_equals_the_run_in_process_and_ends_what_it_started(tmp_path: Path, data: Path) -> None:
    script = ROOT / "experiments" / "deployment" / "four_sites.sh"
    out = tmp_path / "four"
    done = subprocess.run(
        [str(script), str(data), str(out), *QUICK], capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"done: {out / 'run'}" in done.stdout.replace("\n", "")
    list(in_process(FOUR, data, *QUICK, out=tmp_path / "whole"))
    equal(tmp_path / "whole", out / "run")
    left = subprocess.run(["pgrep", "-f", str(out)], capture_output=True, text=True).stdout.split()
    assert left == []
    for name in HOSPITALS:
        files = [p.name for p in (out / "sites" / name).iterdir() if p.suffix == ".data"]
        assert files == [f"processed.{name}.data"], "a site holds its own rows and no others"
    assert not [p for p in (out / "run").rglob("*") if p.suffix == ".data"]


class Replay(Sequential):
    """The clients whose replies were used in each round of another run, and failures in place of the others."""

    def __init__(self, run: Path):
        self.used: dict[int, set[str]] = {}
        for row in read_metrics(run / "metrics.csv"):
            if row.split == "train":
                self.used.setdefault(row.round, set()).add(row.client)
        self.round = 0

    def map(self, hook: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        if hook.__name__ != "local":
            yield from super().map(hook, jobs)
            return
        self.round += 1
        taking_part = [j for j in jobs if HOSPITALS[j.client] in self.used[self.round]]
        yield from super().map(hook, taking_part)
        for job in jobs:
            if job not in taking_part:
                yield job.client, Failure(job.client, "it was not there", "")


ROUNDS, TRAIN_ROWS = 3, 15


def test_sites_die_send_nan_come_late_and_the_server_is_restarted(
    tmp_path: Path, data: Path, deployment: Deployment
) -> None:
    """Cleveland works. Hungary sends NaN. Switzerland comes with a wrong key, and late with the right one. The VA
    hospital is killed at work in round 2 and started again. The ServerApp is stopped in round 3 and started again.
    """
    shorten(data, {"hungarian": 3, "va": 6})  # rows by which the method knows whom to fail
    table = tomllib.loads(FOUR.read_text())
    nan_rows, slow_rows = TRAIN_ROWS - 2, TRAIN_ROWS - 4
    table["method"] = {
        "name": "support.faulty:Faulty", "epochs": 1, "optimizer": "sgd:0.1", "nan_rows": nan_rows,
        "slow_rows": slow_rows, "seconds": 3.0,
    }  # fmt: skip
    table |= {"rounds": ROUNDS, "inference": {}, "evaluate": {"every": 50, "draws": 2, "final_draws": 2}}
    del table["prior"]
    table["flower"] = {"timeout": PATIENCE / 2, "wait": PATIENCE, "sites": 3}
    config, out = tmp_path / "faults.toml", tmp_path / "run"
    config.write_text(tomli_w.dumps(table))
    here = deployment
    here.superlink()
    for name in HOSPITALS:
        here.register(name)
    file = lambda name: data / f"processed.{name}.data"
    for name in ("cleveland", "hungarian", "va"):
        here.supernode(name, file(name))
    here.supernode("switzerland", file("switzerland"), key="stranger")
    first = here.run(config, out)

    def said(number: str = first) -> str:
        text = here.said(f"run-{number}")
        assert "raised an exception" not in text, text
        return text

    until("round 1", lambda: "round 1/3" in said(), 2 * PATIENCE)
    assert "switzerland: it is not connected" in said() or "more left out" in said()
    assert "Failed to activate SuperNode" in here.said("switzerland"), "its key is not registered"
    asked = lambda name: here.said(name).count("Receiving: train message")
    until("work in round 2", lambda: asked("va") == 2)
    here.kill("va")
    here.kill("switzerland")
    here.supernode("switzerland", file("switzerland"))
    until("round 2", lambda: "round 2/3" in said(), 2 * PATIENCE)
    here.supernode("va", file("va"))
    until("work in round 3", lambda: asked("cleveland") == 3)
    here.stop(first)
    assert "round 3/3" not in said()
    second = here.run(config, out, "flower.sites=4")
    until("the end", lambda: "done:" in said(second), 4 * PATIENCE)
    assert "going on after round 2 of 3" in said(second)

    replay = Replay(out)
    used = [replay.used[r] for r in range(1, ROUNDS + 1)]
    assert used[0] == {"cleveland", "va"}, "Hungary is left out, Switzerland is not there"
    assert used[1] >= {"cleveland"} and "va" not in used[1], "killed at work"
    assert used[-1] == {"cleveland", "switzerland", "va"}, "the late and the restarted take part"
    assert all("hungarian" not in names for names in used)
    assert "holds NaN" in said() + said(second)
    list(in_process(config, data, out=tmp_path / "whole", engine=replay))
    close(load_tree(tmp_path / "whole" / "server.safetensors")[0], load_tree(out / "server.safetensors")[0], "server")
    for name in ("cleveland", "switzerland", "va"):
        kept = list(here.state(name).glob("own-*.safetensors"))
        assert 1 <= len(kept) <= 2, "the acknowledged state, and the newest"


def shorten(data: Path, fewer: dict[str, int]) -> None:
    """Take rows from the start of some hospitals' files."""
    for name, rows in fewer.items():
        path = data / f"processed.{name}.data"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[rows:]))
