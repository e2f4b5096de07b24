"""The Flower law: on an in-memory grid every method gives the sequential engine's numbers, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import build
from support.cases import CASES, Case
from support.compare import same

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from pyrofl.config import Evaluation
from pyrofl.flower.grid import LocalGrid
from pyrofl.flower.local import local_run
from pyrofl.flower.run import FlowerRun
from pyrofl.flower.states import InContext, InFolder
from pyrofl.methods import METHODS
from pyrofl.run import RECEIPT, Participation, Run
from pyrofl.store import RunDirectory
from pyrofl.tree import Tree

every_case = pytest.mark.parametrize("case", [c for c in CASES if not METHODS[c.method].pools], ids=str)


def flower(case: Case, *, rounds: int = 2, directory: Path | None = None, **options: Any) -> FlowerRun:
    """The case's run, as `Case.run` makes it, with Flower between server and clients."""
    where = None if directory is None else RunDirectory(directory)
    if where is not None and not where.config.exists():
        where.create("")
    return local_run(
        case.build(rounds=4),
        build.federation(),
        rounds=rounds,
        seed=1,
        evaluation=Evaluation(every=2, draws=2, final_draws=2),
        directory=where,
        **options,
    )


def kept(run: Run, client: int) -> Tree:
    """A client's own state after a run, wherever it lies."""
    if not isinstance(run, FlowerRun):
        return run.states.get(client) or {}
    receipt = run.states.get(client)
    if receipt is None:
        return {}
    grid = run.engine.grid
    assert isinstance(grid, LocalGrid)
    folder = run.directory and run.directory.path / "sites" / str(client)
    states = InFolder(folder) if folder else InContext(grid.contexts[client])
    state = states.get(int(receipt[RECEIPT]))
    assert state is not None
    return state


@every_case
def test_flower_equals_sequential_bit_for_bit(case: Case) -> None:
    one, other = case.run(), flower(case)
    for a, b in zip(one, other, strict=True):
        assert a.clients == b.clients and a.left_out == b.left_out
        assert (a.bytes_down, a.bytes_up) == (b.bytes_down, b.bytes_up)
        assert a.info == b.info
        same(one.server, other.server, "server")
    for i in range(len(one.train)):
        same(kept(one, i), kept(other, i), f"own state of client {i}")
    for model, clients in a.scores.items():
        for client, scores in clients.items():
            if client != "(pooled)":
                assert b.scores[model][client] == scores, f"{model} model of {client}"


def test_pooled_scores_are_the_row_means() -> None:
    one, other = Case("bayfl").run(), flower(Case("bayfl"))
    (a, b) = (list(run)[-1].scores["personal"]["(pooled)"] for run in (one, other))
    assert b.keys() == {"accuracy", "nll", "brier"}
    for name, value in b.items():
        assert value == pytest.approx(a[name], abs=1e-12)


@pytest.mark.parametrize("case", [Case(name) for name in METHODS if not METHODS[name].pools], ids=str)
def test_resume_equals_the_uninterrupted_run(case: Case, tmp_path: Path) -> None:
    whole = flower(case, directory=tmp_path / "whole")
    list(whole)
    flower(case, directory=tmp_path / "parts").step()
    rest = flower(case, directory=tmp_path / "parts")
    assert rest.round == 1
    list(rest)
    same(whole.server, rest.server, "server")
    for i in range(len(whole.train)):
        same(kept(whole, i), kept(rest, i), f"own state of client {i}")
    assert (tmp_path / "whole" / "metrics.csv").read_bytes() == (tmp_path / "parts" / "metrics.csv").read_bytes()


@pytest.mark.parametrize("method", ["bayfl", "alone"])
def test_a_part_of_the_clients_takes_part(method: str) -> None:
    cohort = Participation(clients=2)
    one, other = Case(method).run(rounds=4, cohort=cohort), flower(Case(method), rounds=4, cohort=cohort)
    assert [now.clients for now in one] == [now.clients for now in other]
    same(one.server, other.server, "server")
    for i in range(5):
        same(kept(one, i), kept(other, i), f"own state of client {i}")


def test_a_method_that_needs_all_rows_in_one_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Pooled trains on all rows in one place.*engine = 'sequential'"):
        flower(Case("pooled"))


def test_the_server_holds_no_rows() -> None:
    run = flower(Case("bayfl"))
    list(run)
    with pytest.raises(ValueError, match="stays at its site"):
        run.personal(0)
    with pytest.raises(ValueError, match="stay at the sites"):
        run.predictions(draws=2)
    assert [int(d.n) for d in run.train] == list(build.RAGGED)
    assert all(not torch.any(d.x) for d in run.train)
