"""Laws of every method: engines, order of the clients, padding and processes do not change what a client computes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case, every_case
from support.compare import close, same

from pyrofl.data import Data
from pyrofl.engines import Job, Sequential, Vectorised
from pyrofl.method import Reply
from pyrofl.methods import METHODS
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.store import load_tree


class Backwards(Sequential):
    """A sequential engine that takes the clients, and hands back their replies, in descending order."""

    def map(self, hook: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        return super().map(hook, sorted(jobs, key=lambda j: -j.client))


def states(run: Run) -> dict[int, Any]:
    return {i: run.states.get(i) or {} for i in range(len(run.train))}


@every_case
def test_vectorised_equals_sequential(case: Case) -> None:
    engine = Vectorised(ragged=100.0)  # one group: every client is padded to the largest
    one, all_at_once = case.run(), case.run(engine=engine)
    for a, b in zip(one, all_at_once, strict=True):
        assert a.clients == b.clients and a.left_out == b.left_out
        assert set(a.left_out.values()) <= {"it has no training rows"}
        assert a.bytes_up == b.bytes_up and a.bytes_down == b.bytes_down
        for client in a.info:
            assert a.info[client].keys() == b.info[client].keys()
            for name, value in a.info[client].items():
                assert b.info[client][name] == pytest.approx(value, abs=1e-6), f"{client}: {name}"
    assert engine.fallback is None, engine.fallback
    close(one.server, all_at_once.server, "server")
    for i, own in states(one).items():
        close(own, all_at_once.states.get(i) or {}, f"own state of client {i}")


@every_case
def test_personal_models_agree_on_both_engines_and_clients_without_rows_have_one(case: Case) -> None:
    run = case.run(rounds=1)
    run.step()
    jobs = [run._personal_job(i) for i in range(len(run.train))]
    engine = Vectorised(ragged=100.0)
    one = dict(Sequential().map(run.method.personal, jobs))
    together = dict(engine.map(run.method.personal, jobs))
    assert engine.fallback is None, engine.fallback
    for i, theta in one.items():
        close(theta, together[i], f"personal model of client {i}")
        assert all(torch.isfinite(v).all() for v in theta.values())


@every_case
def test_order_of_the_clients_does_not_matter(case: Case) -> None:
    ascending, descending = case.run(rounds=1), case.run(engine=Backwards(), rounds=1)
    list(ascending), list(descending)
    same(ascending.server, descending.server, "server")
    for i, own in states(ascending).items():
        same(own, descending.states.get(i) or {}, f"own state of client {i}")


@every_case
@pytest.mark.parametrize("engine", [Sequential(), Vectorised(ragged=100.0)], ids=lambda e: e.name)
def test_nan_in_padding_has_no_effect(case: Case, engine: Any) -> None:
    method, key = case.build(), root(3)
    server = method.init(key)
    jobs, padded = [], []
    for i, n in enumerate((6, 1, 5)):
        down = method.down(server, i)
        job = Job(i, down, method.join(down), build.rows(n, seed=i), fold(key, i))
        x, y = torch.full((8, build.FEATURES), torch.nan, dtype=torch.float64), torch.full((8,), 10**6)
        x[:n], y[:n] = job.data.x, job.data.y
        jobs.append(job)
        padded.append(job._replace(data=Data(x, y, job.data.n)))
    plain = dict(Sequential().map(method.local, jobs))
    for i, reply in engine.map(method.local, padded):
        for what, a, b in zip(Reply._fields, reply, plain[i], strict=True):
            close(a, b, f"{what} of client {i}", tolerance=1e-9)


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(ragged=100.0)], ids=lambda e: e.name)
@pytest.mark.parametrize("method", METHODS)
def test_the_dtype_of_the_network_is_kept(method: str, engine: Any) -> None:
    case = Case(method, network={"dtype": torch.float32})
    run = case.run(engine=engine, federation=build.federation((6, 5), dtype=torch.float32), rounds=1)
    now = run.step()
    assert now.left_out == {} and getattr(engine, "fallback", None) is None
    trees = [run.server, *states(run).values(), run.personal(0)]
    names = run.method.program.theta0
    assert {v.dtype for tree in trees for k, v in tree.items() if k in names} == {torch.float32}


def one_client(case: Case, client: int) -> Reply:
    """The reply of one client, computed from nothing but the case."""
    method = case.build()
    down = method.down(method.init(root(1)), client)
    return method.local(down, method.join(down), build.federation().clients[client].train, fold(root(1), client))


@every_case
def test_clients_in_one_process_share_nothing(case: Case) -> None:
    method = case.build()
    server = method.init(root(1))
    for i in (0, 2, 3):
        down = method.down(server, i)
        data = build.federation().clients[i].train
        together = method.local(down, method.join(down), data, fold(root(1), i))
        for what, a, b in zip(Reply._fields, together, one_client(case, i), strict=True):
            same(a, b, f"{what} of client {i}")


def test_clients_in_processes_of_their_own_send_the_same(tmp_path: Path) -> None:
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from laws.test_engines import one_client\n"
        "from pyrofl.methods import METHODS\n"
        "from pyrofl.store import save_tree\n"
        "from pyrofl.tree import pack\n"
        "from support.cases import Case\n"
        "for name in METHODS:\n"
        "    reply = one_client(Case(name), int(sys.argv[1]))\n"
        "    save_tree(Path(sys.argv[2]) / f'{name}-{sys.argv[1]}', pack(**reply._asdict()))\n"
    )
    here = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    started = [subprocess.Popen([sys.executable, "-c", script, str(i), str(tmp_path)], env=environment) for i in (0, 2)]
    assert [p.wait(300) for p in started] == [0, 0]
    for name in METHODS:
        for i in (0, 2):
            reply = one_client(Case(name), i)
            sent, _ = load_tree(tmp_path / f"{name}-{i}")
            expected = {f"{p}/{k}": v for p, t in reply._asdict().items() for k, v in t.items()}
            same(sent, expected, f"{name}, client {i}")


def test_chunks_of_the_vectorised_engine_do_not_matter() -> None:
    case = Case("bayfl")
    whole, pieces = case.run(engine=Vectorised()), case.run(engine=Vectorised(chunk=2, ragged=1.0))
    list(whole), list(pieces)
    close(whole.server, pieces.server, "server", tolerance=1e-12)


def test_a_client_of_the_same_rows_under_another_id_draws_other_noise() -> None:
    federation = build.federation((8, 8))
    twins = replace(
        federation, clients=tuple(replace(c, train=federation.clients[0].train) for c in federation.clients)
    )
    run = Case("bayfl").run(federation=twins, rounds=1)
    sent: dict[int, Any] = {}
    original = run.engine.map

    def record(hook: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        for i, reply in original(hook, jobs):
            if isinstance(reply, Reply):
                sent[i] = reply.up
            yield i, reply

    run.engine.map = record  # type: ignore[method-assign]
    run.step()
    assert all(not torch.equal(sent[0][k], sent[1][k]) for k in sent[0])
