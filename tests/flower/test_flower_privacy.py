"""Under privacy a site's messages hold the protected update and nothing else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same
from support.faulty import Faulty

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")
pytest.importorskip("dp_accounting", reason="needs pip install 'pyrofl[privacy]'")

from flwr.app import Context, Message, RecordDict

from pyrofl.compression import Compression
from pyrofl.engines import Sequential
from pyrofl.flower.grid import LocalGrid
from pyrofl.flower.local import local_run
from pyrofl.flower.records import tree
from pyrofl.flower.site import Site
from pyrofl.flower.states import InContext
from pyrofl.messages import Messages
from pyrofl.optim import SGD
from pyrofl.privacy import Privacy
from pyrofl.random import root
from pyrofl.run import Run

PRIVACY = Privacy(clip=0.5, noise=2.0)


def messages(method: Any = None, privacy: Privacy = PRIVACY) -> Messages:
    method = method or Case("bayfl", {"weighting": "uniform"}).build()
    return Messages(method, Compression(method.program), privacy)


class Listening(LocalGrid):
    """Keeps every reply."""

    def __init__(self, inner: LocalGrid):
        super().__init__(inner.app, inner.contexts)
        self.heard: list[tuple[str, Message]] = []

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        self.heard.append((message.metadata.message_type, reply))
        return reply


def test_only_the_protected_update_leaves() -> None:
    how = messages()
    run = local_run(how.method, build.federation(), rounds=2, seed=1, messages=how)
    run.engine.grid = grid = Listening(run.engine.grid)  # type: ignore[arg-type]
    here = Run(how.method, build.federation(), engine=Sequential(), rounds=2, seed=1, messages=how)
    for now, other in zip(run, here, strict=True):
        assert now.clients == other.clients and now.scores == {}
        assert now.report["epsilon"] == PRIVACY.spent(now.number)
    close(run.server, here.server, "server", tolerance=1e-9)
    assert {kind for kind, _ in grid.heard} == {"query", "train"}, "no scores"
    for kind, reply in grid.heard:
        if kind == "query":
            facts = reply.content["site"]
            assert facts["rows"] in (0, 1) and facts["tests"] == 0
        else:
            assert len(reply.content["info"]) == 0
            assert reply.content.keys() == {"up", "info", "kept"}
            assert tree(reply.content["up"]).keys() == how.wire(run.server).keys()


def test_scores_are_sent_where_they_are_asked_for() -> None:
    how = messages(privacy=Privacy(clip=0.5, noise=2.0, scores=True))
    (now,) = local_run(how.method, build.federation(), rounds=1, seed=1, messages=how)
    assert "accuracy" in now.scores["personal"]["site0"]


def test_an_errors_text_stays_at_the_site(caplog: pytest.LogCaptureFixture) -> None:
    class Telling(Faulty):
        def local(self, *arguments: Any) -> Any:
            raise ValueError("patient 17 has a pulse of 300")

    how = messages(Telling(build.program(), SGD(0.1), size=4, weighting="uniform"))
    with caplog.at_level(logging.ERROR):
        now = local_run(how.method, build.federation((5, 4)), rounds=1, seed=1, messages=how).step()
    assert set(now.left_out) == {"site0", "site1"}
    assert "patient" not in str(now.left_out) + now.details
    assert "privacy lets only the site's own log say why" in now.left_out["site0"]
    assert "patient 17" in caplog.text


def site_of(secretive: bool) -> Site:
    how = messages()
    context = Context(0, 0, {}, RecordDict(), {})
    data = build.federation().clients[0]
    return Site(how, 0, data.name, data.train, data.test, InContext(context), secretive)


def test_a_sites_noise_is_its_own_and_repeats_for_the_same_request_only() -> None:
    site, other, known = site_of(True), site_of(True), site_of(False)
    down, key = site.method.init(root(1)), root(2)
    first = site.update(down, key, None).up
    same(site.update(down, key, None).up, first)
    moved = {k: v + 1e-12 for k, v in down.items()}
    name = next(iter(first))
    for again in (site.update(moved, key, None), other.update(down, key, None), known.update(down, key, None)):
        assert (again.up[name] - first[name]).abs().min() > 1e-6
    assert torch.equal(known.update(down, key, None).up[name], site_of(False).update(down, key, None).up[name])
