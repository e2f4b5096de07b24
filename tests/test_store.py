"""What lies on disk: whole files or none, no pickles, and errors that name the tensor."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.build import Net

from pyrofl.metrics import reliability
from pyrofl.store import FORMAT, Row, RunDirectory, States, check_like, load_tree, read_metrics, save_tree, write
from pyrofl.tree import Tree, equal

TREE: Tree = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.create("seed = 1\n")
    return directory


def commit(run: RunDirectory, number: int, rows: list[Row] | None = None, value: float | None = None) -> None:
    tree = {**TREE, "w": TREE["w"] + (number if value is None else value)}
    run.commit(number, tree, run.append(rows or []), {"identity": "abc"})


def test_a_write_replaces_the_file_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write(path, b"old")

    def dies(*_: object) -> None:
        assert path.read_bytes() == b"old"
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        write(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"], "nothing is left behind"
    write(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_write_is_on_the_disk_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (calls.append("fsync"), fsync(f))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b))[1])
    write(tmp_path / "f", b"x")
    assert calls[:2] == ["fsync", "replace"]


def test_trees_come_back_with_their_metadata(tmp_path: Path) -> None:
    save_tree(tmp_path / "t", TREE, {"round": "7"})
    tree, meta = load_tree(tmp_path / "t")
    assert equal(tree, TREE) and meta == {"format": FORMAT, "round": "7"}
    save_tree(tmp_path / "empty", {})
    assert load_tree(tmp_path / "empty")[0] == {}


def test_a_tree_has_the_same_bytes_each_time_and_whoever_reads_it(tmp_path: Path) -> None:
    notes = {name: f"of {name}" for name in "hgfedcba"} | {"größe": '"µ"'}
    tree = {**TREE, "größe": torch.ones(3, dtype=torch.float64), "none": torch.zeros(0, 2)}
    written = set()
    for k in range(5):
        save_tree(tmp_path / str(k), tree, dict(sorted(notes.items(), reverse=bool(k % 2))))
        written.add((tmp_path / str(k)).read_bytes())
    (content,) = written
    assert int.from_bytes(content[:8], "little") % 8 == 0, "tensors stay aligned"
    found, meta = load_tree(tmp_path / "0")
    assert equal(found, tree) and meta == {"format": FORMAT, **notes}
    assert equal(load_file(tmp_path / "0"), tree)


def test_files_whose_metadata_are_in_another_order_are_read(run: RunDirectory) -> None:
    meta = {"trained": "1", "round": "1", "metrics_bytes": "32", "identity": '"abc"', "format": FORMAT}
    save_file(TREE, run.server, metadata=meta)
    number, tree, found = run.open()
    assert number == 1 and equal(tree, TREE) and found == meta and run.identity() == "abc"


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (os.environ["PYROFL_TEST_MARK"],)


def test_crafted_pickles_are_refused_unread(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "executed"
    monkeypatch.setenv("PYROFL_TEST_MARK", str(mark))
    run.server.write_bytes(pickle.dumps({"w": _Evil()}))
    with pytest.raises(ValueError, match=r"server\.safetensors: not a readable safetensors file"):
        run.open()
    torch.save(Net().state_dict(), run.server)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        run.open()
    assert not mark.exists()


@pytest.mark.parametrize("length", [0, 4, 8, 40, -1])
def test_truncated_files_are_refused(run: RunDirectory, length: int) -> None:
    commit(run, 1)
    run.server.write_bytes(run.server.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"server\.safetensors: not a readable safetensors file"):
        run.open()


def test_files_of_others_are_refused(run: RunDirectory) -> None:
    save_file({"w": torch.zeros(1)}, run.server)
    with pytest.raises(ValueError, match=r"server\.safetensors: format None, this version reads 'pyrofl-1'"):
        run.open()
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        load_tree(run.path / "nowhere")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": torch.zeros(2, 3)}, "FILE lacks tensor 'n', unlike this model"),
        ({**TREE, "a": torch.zeros(1)}, "FILE has tensor 'a', unlike this model"),
        (
            {**TREE, "w": torch.zeros(4, 3)},
            "FILE: tensor 'w' is (4, 3) torch.float32, this model has (2, 3) torch.float32",
        ),
        ({**TREE, "n": torch.tensor(3.0)}, "FILE: tensor 'n' is () torch.float32, this model has () torch.int64"),
    ],
)
def test_another_model_is_refused_by_its_first_difference(other: Tree, message: str) -> None:
    check_like(TREE, TREE, "FILE")
    with pytest.raises(ValueError) as error:
        check_like(other, TREE, "FILE")
    assert str(error.value).startswith(message)


def test_opening_drops_what_is_newer_than_the_commit(run: RunDirectory) -> None:
    row = lambda k: Row(k, "a", "train", "loss", 0.5)
    states = run.states(torch.device("cpu"))
    states.put(0, {"own": torch.tensor(1.0)}, 1)
    states.put(1, {"own": torch.tensor(2.0)}, 1)
    commit(run, 1, [row(1)])
    states.commit()
    states.put(0, {"own": torch.tensor(10.0)}, 2)
    run.append([row(2)])  # killed here: rows and a client file of round 2, but no commit
    (run.clients / ".1-r2.safetensors.99.tmp").write_bytes(b"half")
    number, tree, meta = run.open()
    assert (number, meta["identity"]) == (1, '"abc"')
    assert torch.equal(tree["w"], TREE["w"] + 1)
    assert [r.round for r in read_metrics(run.metrics)] == [1]
    assert sorted(os.listdir(run.clients)) == ["0-r1.safetensors", "1-r1.safetensors"]
    assert float((run.states(torch.device("cpu")).get(0) or {})["own"]) == 1.0


def test_opening_keeps_the_committed_state_beside_an_older_one(run: RunDirectory) -> None:
    states = run.states(torch.device("cpu"))
    states.put(0, {"own": torch.tensor(1.0)}, 1)
    commit(run, 1)
    states.put(0, {"own": torch.tensor(2.0)}, 2)
    commit(run, 2)  # killed here: committed, but the old file is still there
    run.open()
    assert os.listdir(run.clients) == ["0-r2.safetensors"]
    assert float((run.states(torch.device("cpu")).get(0) or {})["own"]) == 2.0


def test_a_half_written_line_of_metrics_is_cut(run: RunDirectory) -> None:
    commit(run, 1, [Row(1, "a", "train", "loss", 0.5)])
    with open(run.metrics, "a") as f:
        f.write("2,a,tra")
    run.open()
    assert run.metrics.read_text() == "round,client,split,metric,value\n1,a,train,loss,0.5\n"


def test_metrics_that_lost_rows_are_refused(run: RunDirectory) -> None:
    commit(run, 1, [Row(1, "a", "train", "loss", 0.5)])
    run.metrics.write_text("round,client,split,metric,value\n")
    with pytest.raises(ValueError, match=r"metrics\.csv has 32 bytes, 51 were committed: it was changed after the run"):
        run.open()


def test_metrics_come_back_as_they_were(run: RunDirectory) -> None:
    rows = [
        Row(1, "a", "train", "loss", 0.1 + 0.2),
        Row(1, 'odd, "name"\nof a client', "test", "personal/auroc", None),
        Row(2, "a", "test", "x", 1e-300),
        Row(2, "a", "test", "y", float("inf")),
    ]
    run.append(rows)
    assert read_metrics(run.metrics) == rows


def test_a_run_is_not_overwritten(run: RunDirectory) -> None:
    with pytest.raises(FileExistsError, match="already holds a run: go on with `pyrofl resume"):
        run.create("")
    with pytest.raises(FileExistsError):
        run.refuse_existing()


def test_state_files_are_named_by_number_so_no_name_can_leave_the_directory(run: RunDirectory) -> None:
    states = run.states(torch.device("cpu"))
    states.put(3, {"own": torch.tensor(1.0)}, 2)
    assert os.listdir(run.clients) == ["3-r2.safetensors"]
    for name in ("3-r2.safetensors.bak", "a-r1.safetensors", "-1-r1.safetensors", "..-r1.safetensors"):
        (run.clients / name).write_bytes(b"")
    assert run._client_rounds() == {3: [2]}


def test_states_on_disk_stay_within_their_memory(run: RunDirectory) -> None:
    states = run.states(torch.device("cpu"), memory=1000)
    for i in range(20):
        states.put(i, {"own": torch.full((50,), float(i))}, 1)
    assert states._used <= 1000 and len(states._recent) <= 5
    for i in range(20):
        assert float((states.get(i) or {})["own"][0]) == i
    assert states._used <= 1000
    assert states.get(20) is None


def test_states_in_memory_are_kept_whole() -> None:
    states = States()
    for i in range(20):
        states.put(i, {"own": torch.full((50,), float(i))}, 1)
    assert [float((states.get(i) or {})["own"][0]) for i in range(20)] == list(range(20))


def test_reliability_tables_come_back(run: RunDirectory) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=40)
    table = reliability(p, rng.integers(0, 3, 40), bins=7)
    run.save_bins("personal", table)
    back = run.load_bins("personal")
    assert back is not None and run.load_bins("global") is None
    for name in ("edges", "rows", "weight", "confidence", "accuracy"):
        np.testing.assert_array_equal(getattr(back, name), getattr(table, name))


def test_one_process_at_a_time_trains_in_a_directory(tmp_path: Path) -> None:
    where, same_place = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with where.at_work():
        pass  # nothing is there yet: nothing to hold
    where.create("")
    with where.at_work():
        with pytest.raises(ValueError, match=r"another process trains in .*run: wait"):
            same_place.at_work().__enter__()
        same_place.refuse_lost()  # reading goes on
    with same_place.at_work():
        pass


def test_the_next_process_waits_for_the_one_before(tmp_path: Path) -> None:
    where, held = RunDirectory(tmp_path / "run"), threading.Event()
    where.create("")

    def first() -> None:
        with where.at_work():
            held.set()
            time.sleep(0.5)

    other = threading.Thread(target=first)
    other.start()
    held.wait()
    began = time.monotonic()
    with where.at_work(patience=20.0):
        assert 0.1 < time.monotonic() - began < 10
    other.join()
