"""Secure aggregation over Flower's messages: the same run, and no round with a site missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from flwr.app import Message

from pyrofl.compression import Compression
from pyrofl.engines import Sequential, Vectorised
from pyrofl.flower.grid import LocalGrid
from pyrofl.flower.local import local_run
from pyrofl.flower.records import record, tree
from pyrofl.messages import Messages
from pyrofl.run import Run
from pyrofl.secure import Secure
from pyrofl.tree import nbytes

UNIFORM = Case("bayfl", {"weighting": "uniform", "pooling": "unconstrained"})


def messages(secure: Secure | None = None) -> Messages:
    method = UNIFORM.build()
    return Messages(method, Compression(method.program), secure=secure or Secure())


def flower(how: Messages) -> Any:
    return local_run(how.method, build.federation(), rounds=2, seed=1, messages=how)


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


def test_a_round_with_a_site_missing_is_skipped_and_nothing_is_lost() -> None:
    pytest.importorskip("cryptography")
    run = flower(messages())
    run.engine.grid = Watching(run.engine.grid, lambda content: content.clear(), client=2)
    before = {k: v.clone() for k, v in run.server.items()}
    now = run.step()
    assert now.clients == []
    assert now.left_out["site2"] == "the message holds NoneType where tensors should be"
    assert now.left_out["site0"].startswith("the round's sum cannot be read, because site site2 is missing")
    same(run.server, before)


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
