"""Own states at the site: what a lost reply, a refused one and a restart find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import build
from support.compare import same
from support.faulty import Faulty

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from flwr.app import Context, RecordDict
from support.lossy import Lossy

from pyrofl.config import Patience
from pyrofl.engines import Sequential
from pyrofl.flower.grid import LocalGrid
from pyrofl.flower.local import local_run
from pyrofl.flower.run import FlowerRun
from pyrofl.flower.states import InContext, InFolder
from pyrofl.optim import SGD
from pyrofl.run import RECEIPT, Run
from pyrofl.store import RunDirectory


def in_context(tmp_path: Path) -> InContext:
    return InContext(Context(run_id=0, node_id=1, node_config={}, state=RecordDict(), run_config={}))


def in_folder(tmp_path: Path) -> InFolder:
    return InFolder(tmp_path / "state")


@pytest.mark.parametrize("make", [in_context, in_folder])
def test_states_are_found_by_their_receipt_until_the_server_has_moved_on(make: Any, tmp_path: Path) -> None:
    states = make(tmp_path)
    one, two = {"v": torch.tensor([1.0])}, {"v": torch.tensor([2.0])}
    assert states.get(5) is None
    states.put(5, one)
    states.put(-7, two)  # keys are signed
    same(states.get(5), one)
    same(states.get(-7), two)
    states.keep(-7)
    assert states.get(5) is None
    same(states.get(-7), two)
    assert (
        len(states.secret()) == 32 and states.secret() == states.secret() == make(tmp_path).secret()
    ) or make is in_context
    assert states.get(-7) is not None, "the secret is no state"


@pytest.mark.parametrize("make", [in_context, in_folder])
def test_one_thing_is_agreed_to_under_a_receipt(make: Any, tmp_path: Path) -> None:
    states = make(tmp_path)
    assert states.agree(5, b"these three")
    assert states.agree(5, b"these three"), "a repeated request"
    assert not states.agree(5, b"those two")
    assert not states.agree(5, b"these three and more")
    assert states.agree(5, b"these three")
    assert states.agree(-6, b"those two"), "another round"
    if make is in_folder:
        assert not in_folder(tmp_path).agree(-6, b"these three"), "after a restart of the site too"


def test_a_folder_outlasts_the_process_and_its_secret_is_private(tmp_path: Path) -> None:
    in_folder(tmp_path).put(1, {"v": torch.tensor([1.0])})
    same(in_folder(tmp_path).get(1) or {}, {"v": torch.tensor([1.0])})
    secret = in_folder(tmp_path).secret()
    assert in_folder(tmp_path).secret() == secret
    assert (tmp_path / "state" / "secret").stat().st_mode & 0o077 == 0


def run_of(lost: dict[int, set[int]], rounds: int = 3, directory: Path | None = None) -> FlowerRun:
    where = None if directory is None else RunDirectory(directory)
    if where is not None and not where.config.exists():
        where.create("")
    method = Faulty(build.program(), SGD(0.1), size=4)
    run = local_run(method, build.federation((6, 5, 4)), rounds=rounds, seed=1, directory=where)
    run.engine.grid = Lossy(run.engine.grid.app, run.engine.grid.contexts, lambda round: lost.get(round, set()))  # type: ignore[arg-type]
    return run


def test_a_lost_reply_leaves_the_state_that_was_acknowledged_in_force(tmp_path: Path) -> None:
    """Client 1's second reply is lost: its third update starts from its first state, as if the second had not been."""
    run = run_of({2: {1}}, directory=tmp_path / "run")
    first, second, third = run
    assert [len(now.clients) for now in (first, second, third)] == [3, 2, 3]
    receipts = {i: int(run.states.get(i)[RECEIPT]) for i in range(3)}  # type: ignore[index]
    assert len(set(receipts.values())) == 3
    states = InFolder(tmp_path / "run" / "sites" / "1")
    again = run_of({2: {1}}, directory=tmp_path / "again")
    again.step(), again.step()
    kept = InFolder(tmp_path / "again" / "sites" / "1")
    acknowledged = int(again.states.get(1)[RECEIPT])  # type: ignore[index]
    assert len(list(kept.folder.glob("own-*"))) == 2, "the acknowledged one and the one whose reply was lost"
    assert kept.get(acknowledged) is not None
    again.step()
    same(kept.get(receipts[1]) or {}, states.get(receipts[1]) or {})


def test_a_state_that_is_gone_is_said_and_the_round_goes_on(tmp_path: Path) -> None:
    run = run_of({}, directory=tmp_path / "run")
    run.step()
    for path in (tmp_path / "run" / "sites" / "1").glob("own-*"):
        path.unlink()
    now = run.step()
    assert now.clients == ["site0", "site2"]
    assert "site site1 does not have the own state that the server last acknowledged" in now.left_out["site1"]
    assert "put its state folder back" in now.left_out["site1"]


def test_sites_come_late_leave_and_are_not_waited_for_twice() -> None:
    run = run_of({}, rounds=4)
    grid, late = run.engine.grid, {}
    assert isinstance(grid, LocalGrid)
    late[2] = grid.contexts.pop(2)
    run.engine.patience = Patience(wait=0.01)
    assert run.step().left_out == {"site2": "it is not connected"}
    grid.contexts |= late
    assert run.step().clients == ["site0", "site1", "site2"]
    del grid.contexts[0]
    assert run.step().left_out == {"site0": "it is not connected"}


def test_a_second_node_for_a_site_and_a_stranger_are_not_taken_in() -> None:
    notes: list[str] = []
    run = run_of({})
    run.observer.note = notes.append  # type: ignore[method-assign]
    grid = run.engine.grid
    assert isinstance(grid, LocalGrid)
    make = lambda part: Context(0, 0, {"partition-id": part}, RecordDict(), {})
    grid.contexts |= {7: make(1), 8: make(99)}
    assert run.step().clients == ["site0", "site1", "site2"]
    assert any("site site1 is there already, as node 1" in text for text in notes)
    assert any("node 8 is not taken in: IndexError" in text for text in notes)


def test_too_few_replies_change_nothing() -> None:
    run = run_of({1: {0, 1}})
    run.engine.patience = Patience(least=2)
    before = {k: v.clone() for k, v in run.server.items()}
    now = run.step()
    assert now.clients == [] and now.left_out["site2"] == "too few others replied"
    same(run.server, before)
    assert run.states.get(2) is None
    assert run.step().clients == ["site0", "site1", "site2"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("timeout", 0.0, "flower.timeout must be positive seconds"),
        ("wait", -1.0, "flower.wait must be positive seconds"),
        ("sites", -1, "flower.sites must be a number of sites"),
        ("least", 0, "flower.least must be at least 1 reply"),
    ],
)
def test_senseless_patience_is_refused(field: str, value: float, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Patience(**{field: value})  # type: ignore[arg-type]


class Mute(LocalGrid):
    """Never answers to client 1."""

    def pull_messages(self, message_ids: Any) -> Any:
        return super().pull_messages([i for i in message_ids if not self._to_mute(i)])

    def _to_mute(self, i: str) -> bool:
        message = self._waiting.get(i)
        return message is not None and message.metadata.dst_node_id == 1 and message.metadata.message_type == "train"


def test_a_site_that_says_nothing_is_waited_for_no_longer_than_the_timeout() -> None:
    run = run_of({})
    inner = run.engine.grid
    run.engine.grid = Mute(inner.app, inner.contexts)  # type: ignore[attr-defined]
    run.engine.patience = Patience(timeout=0.5)
    now = run.step()
    assert now.left_out == {"site1": "no reply within 0.5 s"}
    assert now.seconds < 5


def test_an_engine_does_not_take_another_engines_states_for_its_own(tmp_path: Path) -> None:
    """Resuming may change the engine, but states at the sites stay where they are."""
    for first, message in (("flower", "go on with engine = 'flower'"), ("here", "go on with that one")):
        where = RunDirectory(tmp_path / first)
        where.create("")
        method = Faulty(build.program(), SGD(0.1), size=4)

        def make(kind: str, method: Any = method, where: Any = where) -> Run:
            options: Any = {"rounds": 2, "seed": 1, "directory": where}
            if kind == "flower":
                return local_run(method, build.federation((6, 5)), **options)
            return Run(method, build.federation((6, 5)), engine=Sequential(), **options)

        make(first).step()
        with pytest.raises(ValueError, match=message):
            make("here" if first == "flower" else "flower").step()
        assert make(first).step().number == 2
