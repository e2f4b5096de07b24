"""Laws of every method: what travels is what was announced, what is private stays, and nothing given is changed."""

from __future__ import annotations

from pathlib import Path

import torch
from support import build
from support.cases import KEEPS_WHAT_IT_SENDS, Case, every_case
from support.compare import same
from torch import Tensor

from pyrofl.gate import Contract
from pyrofl.method import Cohort, Reply
from pyrofl.random import fold, root
from pyrofl.store import load_tree, save_tree
from pyrofl.tree import Tree, equal, stack


def copied(tree: Tree) -> Tree:
    return {k: v.clone() for k, v in tree.items()}


ROWS = (9, 1, 5)  # with one row nothing below a batch normalisation has a gradient


def replies(case: Case) -> tuple[Tree, list[Tree], list[Reply]]:
    """(server, downs, replies) of three clients in a first round."""
    method = case.build()
    server = method.init(root(1))
    downs = [method.down(server, i) for i in range(3)]
    data = [build.rows(n, seed=i) for i, n in enumerate(ROWS)]
    keys = [fold(root(1), i) for i in range(3)]
    return server, downs, [method.local(d, method.join(d), x, k) for d, x, k in zip(downs, data, keys, strict=True)]


@every_case
def test_nothing_that_is_given_to_a_hook_is_changed(case: Case) -> None:
    method, key, data = case.build(), root(2), build.rows(9)
    start = copied(method.program.theta0)
    server = method.init(key)
    down = method.down(server, 0)
    own = method.join(down)
    given = (server, down, own, data._asdict(), {"key": key})
    before = [copied(t) for t in given]
    reply = method.local(down, own, data, key)
    theta = method.personal(down, own, data, key)
    method.predict(theta, data.x, key)
    ups = stack([reply.up, reply.up])
    given, before = (*given, ups, reply.up, reply.own), [*before, *map(copied, (ups, reply.up, reply.own))]
    cohort = Cohort(torch.tensor([0, 1]), torch.tensor([9, 3]), key, 1)
    method.aggregate(server, ups, cohort)
    for tree, was in zip(given, before, strict=True):
        same(tree, was)
    same(method.program.theta0, start, "the program's first parameters")


@every_case
def test_the_reply_is_what_the_message_announces(case: Case) -> None:
    method = case.build()
    server, downs, sent = replies(case)
    for down, reply in zip(downs, sent, strict=True):
        assert Contract.of(method.message(down)).reason(reply.up) is None
        assert all(v.dim() == 0 for v in reply.info.values()), "the log takes scalars"
    cohort = Cohort(torch.arange(3), torch.tensor([9, 1, 5]), root(5), 1)
    new = method.aggregate(server, stack([r.up for r in sent]), cohort)
    assert Contract.of(server).reason(new) is None


@every_case
def test_what_is_private_is_never_sent(case: Case) -> None:
    _, downs, sent = replies(case)
    for down, reply in [(d, r) for i, (d, r) in enumerate(zip(downs, sent, strict=True)) if ROWS[i] > 1]:
        for name, mine in reply.own.items():
            if any(alike(mine, v) for received in down.values() for v in (received, *rows(received))):
                continue  # the server's own tensor, which has no gradient here, is no secret
            for sent_name, theirs in reply.up.items():
                if case.method in KEEPS_WHAT_IT_SENDS and sent_name == name:
                    continue
                assert not alike(mine, theirs) or is_constant(mine), f"own {name} is sent as {sent_name}"


def rows(v: Tensor) -> tuple[Tensor, ...]:
    return v.unbind() if v.dim() else ()


def alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def is_constant(v: Tensor) -> bool:
    """Whether a tensor says nothing: one that never moved from its start at a constant."""
    return bool((v == v.flatten()[0]).all()) if v.numel() else True


@every_case
def test_every_tree_survives_the_disk(case: Case, tmp_path: Path) -> None:
    server, downs, sent = replies(case)
    for i, tree in enumerate([server, *downs, *(t for reply in sent for t in reply)]):
        save_tree(tmp_path / str(i), tree)
        same(load_tree(tmp_path / str(i))[0], tree)


def test_odd_tensors_survive_the_disk(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tree = {
        "counter": torch.tensor(7),
        "flag": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "columns": whole.t(),
        "view": whole[1],
        "nan": torch.tensor([torch.nan, torch.inf]),
        "a/b.c d": torch.tensor(1.0, dtype=torch.float64),
    }
    save_tree(tmp_path / "odd", tree)
    back, meta = load_tree(tmp_path / "odd")
    assert equal(back, tree)
    assert back["counter"].shape == () and back["counter"].dtype == torch.int64
    assert meta == {"format": "pyrofl-1"}
