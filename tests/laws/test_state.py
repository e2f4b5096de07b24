"""Laws of every method: runs resume exactly through their files, and clients that are absent keep what they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cases import CASES, Case
from support.compare import same

from pyrofl.methods import METHODS
from pyrofl.run import Participation
from pyrofl.store import load_tree

every_method = pytest.mark.parametrize("case", [Case(name) for name in METHODS], ids=str)
FEDERATED = [Case(name) for name, method in METHODS.items() if not method.pools]  # with all rows at one, none is absent
every_federated_method = pytest.mark.parametrize("case", FEDERATED, ids=str)
# and what else a state may hold: counters, running statistics, more than one optimizer
MORE = [c for c in CASES if {"schedule", "every"} & c.arguments.keys() or (c.method == "alone" and c.network)]


def files(directory: Path) -> dict[str, bytes]:
    """The content of a run directory, without the wall times."""
    found = (p for p in sorted(directory.rglob("*")) if p.is_file() and p.name != "timings.csv")
    return {str(p.relative_to(directory)): p.read_bytes() for p in found}


@pytest.mark.parametrize("case", [*(Case(name) for name in METHODS), *MORE], ids=str)
def test_resumed_equals_uninterrupted(case: Case, tmp_path: Path) -> None:
    list(case.run(rounds=4, directory=tmp_path / "whole"))
    list(case.run(rounds=1, directory=tmp_path / "parts"))
    case.run(rounds=4, directory=tmp_path / "parts").step()
    resumed = case.run(rounds=4, directory=tmp_path / "parts")
    assert resumed.round == 2
    list(resumed)
    whole, parts = files(tmp_path / "whole"), files(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    metrics = {d["metrics.csv"].decode().replace("\r", "") for d in (whole, parts)}
    # the run of one round was scored after its last round, which is no round of evaluation of the whole run
    assert len({"\n".join(line for line in m.split("\n") if not line.startswith("1,")) for m in metrics}) == 1
    for name in whole:
        if name.endswith(".safetensors"):
            same(load_tree(tmp_path / "whole" / name)[0], load_tree(tmp_path / "parts" / name)[0], name)


@every_method
def test_memory_and_disk_hold_the_same(case: Case, tmp_path: Path) -> None:
    in_memory, on_disk = case.run(), case.run(directory=tmp_path / "run")
    list(in_memory), list(on_disk)
    again = case.run(directory=tmp_path / "run")
    assert again.done
    same(in_memory.server, again.server, "server")
    for i in range(len(again.train)):
        same(in_memory.states.get(i) or {}, again.states.get(i) or {}, f"own state of client {i}")


@every_federated_method
def test_an_absent_client_keeps_its_state(case: Case, tmp_path: Path) -> None:
    run = case.run(rounds=4, directory=tmp_path, cohort=Participation(clients=2))
    absent_once = False
    for _ in range(4):
        before, kept = files(tmp_path / "clients"), {i: run.states.get(i) for i in range(len(run.train))}
        now = run.step()
        after = files(tmp_path / "clients")
        for i, tree in kept.items():
            if run.names[i] in now.clients or tree is None:
                continue
            absent_once = True
            same(run.states.get(i) or {}, tree, f"own state of client {i}")
            mine = [name for name in before if name.startswith(f"{i}-")]
            assert mine and all(after[name] == before[name] for name in mine)
    assert absent_once or not any(kept.values())
