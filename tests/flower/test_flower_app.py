"""The ServerApp that a Flower project names, on an in-memory grid: what its log says in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tables import small, written

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from flwr.app import Context, Message, RecordDict
from support.lossy import Lossy

from pyrofl.config import ConfigError
from pyrofl.flower.app import NothingLearned, client, main
from pyrofl.flower.grid import LocalGrid
from pyrofl.store import RunDirectory

SITES = 3


class Nodes(Lossy):
    """The three clients of SMALL; `fails(round)` says which of them lose their training replies."""

    def __init__(self, out: Path | None, fails: Callable[[int], Any] = lambda round: ()):
        run_config = {"out": str(out or "")}
        nodes = {i: Context(0, i, {"partition-id": i}, RecordDict(), dict(run_config)) for i in range(SITES)}
        super().__init__(client, nodes, fails)


def served(grid: LocalGrid, config: Path, out: Path | None = None, **asked: str) -> None:
    main(grid, Context(0, 0, {}, RecordDict(), {"config": str(config), "set": "", "out": str(out or ""), **asked}))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path / "small.toml", small(engine=None))


def test_a_run_ends_with_done_and_a_second_one_has_nothing_to_do(config: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    served(Nodes(out), config, out)
    said = capsys.readouterr().out.replace("\n", "")
    assert "round 3/3" in said and f"done: {out}" in said
    served(Nodes(out), config, out)
    assert "round 3 of 3 is done: nothing to do" in capsys.readouterr().out
    served(Nodes(None), config, set="rounds=1")
    assert "done: nothing is kept, since out names no folder" in capsys.readouterr().out


def test_a_run_of_skipped_rounds_alone_fails_and_says_that_nothing_was_learned(
    config: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "run"
    with pytest.raises(NothingLearned, match=f"every round was skipped, and {out} holds the model"):
        served(Nodes(out, lambda round: range(SITES)), config, out)
    said = capsys.readouterr().out
    assert "done:" not in said and said.count("was skipped: no client's reply could be used") == 3
    with pytest.raises(NothingLearned):  # and again, where there is nothing left to do
        served(Nodes(out), config, out)


def test_one_round_that_was_aggregated_is_enough(config: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    served(Nodes(out, lambda round: range(SITES) if round != 2 else ()), config, out)
    assert f"done: {out}" in capsys.readouterr().out.replace("\n", "")
    assert RunDirectory(out).committed()[0] == 3


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_is_at_work(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrofl.flower.app._STOPPING", 0.1)
    out, reasons = tmp_path / "run", []

    class Twice(Nodes):
        def answer(self, message: Message) -> Message:
            if message.metadata.message_type == "train" and not reasons:
                with pytest.raises(ValueError, match="another process trains in") as caught:
                    served(Nodes(out), config, out)
                reasons.append(str(caught.value))
            return super().answer(message)

    served(Twice(out), config, out)
    assert reasons == [f"another process trains in {out}: wait until it has ended, or give another folder"]


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config = '.*nowhere.toml' is no file of this Flower project"):
        served(Nodes(None), tmp_path / "nowhere.toml")
