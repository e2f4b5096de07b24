"""Secure aggregation over Flower's messages: the same run, and no round with a site missing."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from flwr.app import Message

from pyrofl.averaged import averaged
from pyrofl.compression import Compression
from pyrofl.config import Patience
from pyrofl.engines import Sequential, Vectorised
from pyrofl.flower.grid import LocalGrid
from pyrofl.flower.local import local_run
from pyrofl.flower.records import record, tree
from pyrofl.meanfield import POOLING
from pyrofl.messages import Messages
from pyrofl.methods import METHODS
from pyrofl.random import root
from pyrofl.run import Run
from pyrofl.secure import Secure
from pyrofl.store import RunDirectory
from pyrofl.tree import nbytes

UNIFORM = Case("bayfl", {"weighting": "uniform", "pooling": "unconstrained"})


def messages(secure: Secure | None = None, case: Case = UNIFORM) -> Messages:
    method = case.build(rounds=4)
    what = averaged(method, method.init(root(1)))
    return Messages(method, Compression(method.program), secure=secure or Secure(), averaged=what)


def summable() -> list[Case]:
    """Every registered method whose server needs a sum and no more, and every rule of pooling."""
    rules = [Case("bayfl", {"pooling": rule}) for rule in POOLING]
    more = [Case("fedmap", {"fixed_variance": 1.0}), Case("fedmap", {}, {"guide": "normal"})]
    found = []
    for case in [*(Case(name) for name in METHODS if not METHODS[name].pools), *rules, *more]:
        with contextlib.suppress(ValueError):
            messages(case=case)
            found.append(case)
    return found


def flower(how: Messages, rounds: int = 2, **options: Any) -> Any:
    return local_run(how.method, build.federation(), rounds=rounds, seed=1, messages=how, **options)


class Watching(LocalGrid):
    """Keeps what was sent, and lets replies of one client through `change`."""

    def __init__(self, inner: LocalGrid, change: Any = None, client: int = -1):
        super().__init__(inner.app, inner.contexts)
        self.seen, self.change, self.client = [], change, client

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        if message.metadata.message_type == "train":
            if self.change is not None and message.metadata.dst_node_id == self.client:
                self.change(reply.content)
            self.seen.append(reply)
        return reply


@pytest.mark.parametrize("case", summable(), ids=str)
def test_sums_give_the_numbers_of_messages(case: Case) -> None:
    """For every method that is not refused, over rounds, with ragged clients and rows as weights."""
    pytest.importorskip("cryptography")
    run, plain = flower(messages(Secure(range=2.0**14, bits=45), case), 3), case.run(rounds=3)
    for now, other in zip(run, plain, strict=True):
        assert now.clients == other.clients
    close(plain.server, run.server, "server", tolerance=1e-6)


def test_most_methods_are_among_them() -> None:
    names = {case.method for case in summable()}
    assert names >= {"fedavg", "fedprox", "scaffold", "bayfl", "meta_bayfl", "pfedbayes", "fedmap", "ditto", "fedper"}
    assert not names & {"npeb", "vaneb", "fedfomo", "fedamp", "fedbe", "beta_predbayes", "fedmask", "alone"}


def test_a_secure_run_equals_the_plain_one_and_the_engines_agree() -> None:
    pytest.importorskip("cryptography")
    run, plain = flower(messages()), UNIFORM.run()
    run.engine.grid = watching = Watching(run.engine.grid)
    here = [Run(m.method, build.federation(), engine=e, rounds=2, seed=1, messages=m)
            for e in (Sequential(), Vectorised(ragged=100.0)) for m in (messages(),)]  # fmt: skip
    for now, other, *same_round in zip(run, plain, *here, strict=True):
        assert now.clients == other.clients
        assert now.bytes_up == 4 * nbytes(run.messages.wire(run.server)) == same_round[0].bytes_up
    close(plain.server, run.server, "server", tolerance=1e-9)
    for engine in here:
        close(engine.server, run.server, "server", tolerance=1e-9)
    for reply in watching.seen:
        for name, codes in tree(reply.content["up"]).items():
            assert codes.dtype == torch.int64, name
            assert int(codes.double().abs().max()) > 2**45, "nothing that the range would hold"


class Away(LocalGrid):
    """Client 2 never answers to messages of one kind in one round."""

    def __init__(self, inner: LocalGrid, kind: str, round: int = 1):
        super().__init__(inner.app, inner.contexts)
        self.kind, self.last, self.round = kind, round, 0

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        self.round += bool(messages) and messages[0].metadata.message_type == "query.key"
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        to_answer = [i for i in message_ids if i in self._waiting and not self._lost(self._waiting[i])]
        return super().pull_messages(to_answer)

    def _lost(self, message: Message) -> bool:
        about = message.metadata
        return about.message_type == self.kind and about.dst_node_id == 2 and self.round == self.last


def test_a_round_is_skipped_where_a_site_is_lost_after_the_keys_and_the_run_goes_on() -> None:
    """State, receipts and numbers are those of a run in which that round's updates never were."""
    pytest.importorskip("cryptography")
    notes: list[str] = []
    run = flower(messages(), 3, patience=Patience(timeout=0.3))
    run.observer.note = notes.append
    run.engine.grid = Away(run.engine.grid, "train", round=2)
    first = run.step()
    before, receipts = {k: v.clone() for k, v in run.server.items()}, [run.states.get(i) for i in range(4)]
    second = run.step()
    assert first.clients == ["site0", "site1", "site2", "site3"]
    assert second.clients == [] and second.skipped and second.seconds < 5
    why = "the round's sum cannot be read without site2 (no reply within 0.3 s)"
    known = {"site2": "no reply within 0.3 s", "site4": "it has no training rows"}
    assert second.left_out == {**dict.fromkeys(("site0", "site1", "site3"), why), **known}
    assert list(second.left_out.values()).index(why) < list(second.left_out).index("site2"), "said first"
    assert notes[-1] == "round 2 was skipped: no client's reply could be used"
    same(run.server, before)
    assert [run.states.get(i) for i in range(4)] == receipts
    third = run.step()
    assert third.clients == ["site0", "site1", "site2", "site3"] and run.trained == 3


def test_a_broken_reply_spoils_the_sum_like_a_missing_one() -> None:
    pytest.importorskip("cryptography")
    run = flower(messages())
    run.engine.grid = Watching(run.engine.grid, lambda content: content.clear(), client=2)
    before = {k: v.clone() for k, v in run.server.items()}
    now = run.step()
    assert now.clients == []
    assert now.left_out["site2"] == "the message holds NoneType where tensors should be"
    assert now.left_out["site0"].startswith("the round's sum cannot be read without site2 (the message holds NoneType")
    same(run.server, before)


def test_a_site_that_is_lost_before_the_keys_is_left_out_of_the_sum() -> None:
    pytest.importorskip("cryptography")
    run = flower(messages(), patience=Patience(timeout=0.3))
    run.engine.grid = Away(run.engine.grid, "query.key")
    now = run.step()
    assert now.clients == ["site0", "site1", "site3"]
    assert now.left_out["site2"] == "no reply within 0.3 s"


def test_a_sum_of_fewer_sites_than_agreed_is_not_made() -> None:
    pytest.importorskip("cryptography")
    run = flower(messages(Secure(least=4)), patience=Patience(timeout=0.3))
    run.engine.grid = Away(run.engine.grid, "query.key")
    now = run.step()
    assert now.clients == [] and "at least 4 must take part" in now.left_out["site0"]
    assert run.step().clients == ["site0", "site1", "site2", "site3"]


class Stopped(Watching):
    """The server is stopped when the first round's replies are there."""

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        if len(self.seen) == 4:
            raise KeyboardInterrupt
        return reply


@pytest.mark.parametrize("gone", [False, True])
def test_a_round_that_is_begun_again_gets_the_same_messages_or_none(gone: bool, tmp_path: Path) -> None:
    """Of the sums with and without a site the difference would be its update."""
    pytest.importorskip("cryptography")
    where = RunDirectory(tmp_path / "run")
    where.create("")
    begin = lambda: flower(messages(), directory=where, patience=Patience(timeout=0.3, wait=0.1))
    first = begin()
    first.engine.grid = heard = Stopped(first.engine.grid)
    with pytest.raises(KeyboardInterrupt):
        first.step()
    again = begin()
    again.engine.grid = grid = Watching(again.engine.grid)
    if not gone:
        assert again.step().clients == ["site0", "site1", "site2", "site3"]
        for before, now in zip(heard.seen, grid.seen, strict=True):
            same(tree(before.content["up"]), tree(now.content["up"]))
        return
    del grid.contexts[2]
    now = again.step()
    assert now.clients == [] and now.left_out["site2"] == "it is not connected"
    assert "site site0 has answered this round already, for a sum of other sites: refused" in now.left_out["site0"]
    assert all(reply.has_error() for reply in grid.seen)
    assert again.step().clients == ["site0", "site1", "site3"]


def test_a_site_that_sends_something_else_is_noticed_in_the_sum() -> None:
    pytest.importorskip("cryptography")
    run = flower(messages())

    def lie(content: Any) -> None:
        codes = tree(content["up"])
        content["up"] = record({k: v + 2**60 for k, v in codes.items()})

    run.engine.grid = Watching(run.engine.grid, lie, client=2)
    now = run.step()
    assert now.clients == [] and "the sum is out of range" in now.left_out["site0"]


def test_a_move_beyond_the_range_is_refused_at_the_site() -> None:
    pytest.importorskip("cryptography")
    now = flower(messages(Secure(range=1e-4))).step()
    assert now.clients == []
    assert "has moved by more than secure.range = 0.0001" in now.left_out["site0"]
