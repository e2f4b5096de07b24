"""What a site may send: 10,000 malformed replies are each refused with a reason, and leave the server as it was."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import build
from support.cases import Case
from support.compare import same

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from pyrofl.data import Data
from pyrofl.engines import Failure
from pyrofl.flower.grid import LocalGrid
from pyrofl.flower.local import local_run
from pyrofl.flower.records import RAW, Malformed, record, tree
from pyrofl.flower.replies import update
from pyrofl.flower.run import FlowerRun
from pyrofl.gate import Contract
from pyrofl.method import Reply
from pyrofl.methods import FedAvg
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.run import RECEIPT
from pyrofl.tree import Tree

UP = {"loc": torch.zeros(2, 3), "scale": torch.ones(3), "steps": torch.tensor(4), "none": torch.zeros(0, 2)}
CONTRACT = Contract.of(UP)
FLOATS = ("loc", "scale")
TOO_MANY = MetricRecord({str(k): 0.0 for k in range(1001)})


def good() -> RecordDict:
    return RecordDict({"up": record(UP), "info": MetricRecord({"loss": 0.5}), "kept": ConfigRecord({"own": True})})


def replied(content: RecordDict) -> Any:
    """What the server makes of a reply."""
    grid = LocalGrid(None, {})  # type: ignore[arg-type]
    asked = grid.message(content=RecordDict({}), dst_node_id=1, message_type="train")
    return update(0, Message(content, reply_to=asked), CONTRACT, root(1))


def array(name: str, **changes: Any) -> Array:
    was = record(UP)[name]
    fields = {"dtype": was.dtype, "shape": was.shape, "stype": was.stype, "data": was.data, **changes}
    return Array(**fields)


# each takes a reply and a generator, and breaks one thing
def lose(content: RecordDict, rng: np.random.Generator) -> None:
    del content["up"][rng.choice(list(UP))]


def add(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"]["x" * int(rng.integers(1, 50))] = array("loc")


def rename(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"][f"loc{rng.integers(10)}"] = content["up"].pop("loc")


def reshape(content: RecordDict, rng: np.random.Generator) -> None:
    shape = tuple(int(n) for n in rng.integers(0, 6, rng.integers(0, 4)))
    content["up"]["loc"] = array("loc", shape=shape if shape != (2, 3) else (3, 2))


def negative_shape(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"]["loc"] = array("loc", shape=(-2, -3))


def huge_shape(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"]["loc"] = array("loc", shape=(int(10 ** rng.integers(6, 30)), 3))


def cut_off(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"]["loc"] = array("loc", data=bytes(int(rng.integers(0, 24))))


def pad(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"]["loc"] = array("loc", data=bytes(24 + int(rng.integers(1, 10_000))))


def other_dtype(content: RecordDict, rng: np.random.Generator) -> None:
    name = str(rng.choice(["float64", "float16", "int32", "bool", "complex64", "object", "", "<f4", "U10"]))
    content["up"]["loc"] = array("loc", dtype=name, data=bytes(int(rng.integers(0, 64))))


def pickled(content: RecordDict, rng: np.random.Generator) -> None:
    content["up"]["loc"] = array("loc", stype=str(rng.choice(["numpy.ndarray", "torch", "pickle", ""])))


def not_finite(content: RecordDict, rng: np.random.Generator) -> None:
    name = str(rng.choice(FLOATS))
    bad = UP[name].clone()
    bad.view(-1)[int(rng.integers(bad.numel()))] = float(rng.choice([math.nan, math.inf, -math.inf]))
    content["up"][name] = record({name: bad})[name]


def noise(content: RecordDict, rng: np.random.Generator) -> None:
    """Random bytes with NaN among them."""
    data = bytearray(rng.bytes(24))
    data[8:12] = b"\xff\xff\xff\x7f"
    content["up"]["loc"] = array("loc", data=bytes(data))


def other_record(content: RecordDict, rng: np.random.Generator) -> None:
    name = str(rng.choice(["up", "info", "kept"]))
    del content[name]
    if rng.random() < 0.7:
        others = {"up": MetricRecord({"a": 1}), "info": ConfigRecord({"a": 1}), "kept": ArrayRecord()}
        content[name] = others[name]


def many_scalars(content: RecordDict, rng: np.random.Generator) -> None:
    content["info"] = TOO_MANY


def listed_scalar(content: RecordDict, rng: np.random.Generator) -> None:
    content["info"] = MetricRecord({"loss": [0.1] * int(rng.integers(1, 5))})


def no_own(content: RecordDict, rng: np.random.Generator) -> None:
    content["kept"] = ConfigRecord({"own": rng.choice(["yes", "no"]).item()} if rng.random() < 0.5 else {})


BREAKS: tuple[Callable[[RecordDict, np.random.Generator], None], ...] = (
    *(lose, add, rename, reshape, negative_shape, huge_shape, cut_off, pad, other_dtype, pickled, not_finite, noise),
    *(other_record, many_scalars, listed_scalar, no_own),
)


def test_a_good_reply_passes() -> None:
    reply = replied(good())
    assert isinstance(reply, Reply)
    same(reply.up, UP)
    assert float(reply.info["loss"]) == 0.5
    assert int(reply.own[RECEIPT]) == int(root(1))


def test_ten_thousand_malformed_replies_are_refused_with_a_reason() -> None:
    rng = np.random.default_rng(1)
    seen: dict[str, set[str]] = {}
    for k in range(10_000):
        broken, content = BREAKS[k % len(BREAKS)], good()
        broken(content, rng)
        if rng.random() < 0.3:  # and one thing more, where the first has left something to break
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                BREAKS[int(rng.integers(len(BREAKS)))](content, rng)
        found = replied(content)
        assert isinstance(found, Failure), broken.__name__
        assert found.reason and "\n" not in found.reason and len(found.reason) < 300, found.reason
        seen.setdefault(broken.__name__, set()).add(found.reason)
    assert len(seen) == len(BREAKS)


def test_reasons_name_the_tensor() -> None:
    for change, reason in (
        ({"shape": (3, 2)}, "tensor 'loc' has shape (3, 2), expected (2, 3)"),
        ({"dtype": "float64"}, "tensor 'loc' has dtype torch.float64, expected torch.float32"),
        ({"data": b"1234"}, "tensor 'loc' came with 4 bytes, 24 expected: cut off or padded"),
        ({"stype": "numpy.ndarray"}, "tensor 'loc' is serialised as 'numpy.ndarray', 'float32': not one of pyrofl's"),
    ):
        content = good()
        content["up"]["loc"] = array("loc", **change)
        assert replied(content).reason == reason


def test_an_error_reply_is_a_failure_with_its_last_line() -> None:
    grid = LocalGrid(None, {})  # type: ignore[arg-type]
    asked = grid.message(content=RecordDict({}), dst_node_id=1, message_type="train")
    trace = "Traceback ...\n  File x\nValueError: no such column\n"
    found = update(0, Message(Error(2, trace), reply_to=asked), CONTRACT, root(1))
    assert (found.reason, found.details) == ("ValueError: no such column", trace)


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_survives(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (3,), (2, 0, 4), (2, 3)):
        sent = {"v": (torch.rand(shape) * 3).to(dtype)}
        same(tree(record(sent)), sent)
        assert len(record(sent)["v"].data) == sent["v"].numel() * dtype.itemsize


def test_bytes_that_are_no_booleans_are_refused() -> None:
    bad = ArrayRecord({"b": Array(dtype="bool", shape=(2,), stype=RAW, data=b"\x00\x02")})
    with pytest.raises(Malformed, match="neither true nor false"):
        tree(bad)


class Vandal(LocalGrid):
    """Breaks every training reply of client 0 and 2 on its way."""

    def __init__(self, inner: LocalGrid, break_: Callable[[RecordDict], None]):
        super().__init__(inner.app, inner.contexts)
        self.break_ = break_

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id in (0, 2):
            self.break_(reply.content)
        return reply


def nan(content: RecordDict) -> None:
    name = next(iter(content["up"]))
    like = tree(content["up"])[name]
    content["up"][name] = record({name: torch.full_like(like, math.nan)})[name]


def run_with(break_: Callable[[RecordDict], None]) -> FlowerRun:
    run = local_run(Case("fedbn").build(), build.federation(), rounds=2, seed=1)
    run.engine.grid = Vandal(run.engine.grid, break_)  # type: ignore[arg-type]
    return run


def test_a_round_goes_on_without_the_broken_replies() -> None:
    """Clients 0 and 2 are left out, and start again from the own state that the server has acknowledged: none."""
    run = run_with(nan)
    for now in run:
        assert {n: why for n, why in now.left_out.items() if n in ("site0", "site2")}.keys() == {"site0", "site2"}
        assert "holds NaN" in now.left_out["site0"]
        assert now.clients == ["site1", "site3"]
    assert [run.states.get(i) is None for i in range(4)] == [True, False, True, False]


def test_a_round_of_broken_replies_alone_changes_nothing() -> None:
    run = run_with(lambda content: content.clear())
    run.engine.grid.contexts = {i: run.engine.grid.contexts[i] for i in (0, 2)}  # type: ignore[attr-defined]
    run.engine.patience = type(run.engine.patience)(wait=0.01)
    before = {k: v.clone() for k, v in run.server.items()}
    now = run.step()
    assert now.clients == [] and len(now.left_out) == 5
    assert now.left_out["site1"] == "it is not connected"
    same(run.server, before)


class Wordy(FedAvg):
    """FedAvg that logs a vector."""

    def local(self, down: Tree, own: Tree, data: Data, key: torch.Tensor) -> Reply:
        reply = super().local(down, own, data, key)
        return reply._replace(info={**reply.info, "parts": torch.ones(3)})


def test_a_site_that_would_log_more_than_a_scalar_says_which() -> None:
    run = local_run(Wordy(build.program(), SGD(0.1), size=4), build.federation((9, 6)), rounds=1, seed=1)
    reason = "Wordy.local: Reply.info['parts'] has shape (3,) and dtype torch.float32, expected a real scalar"
    assert run.step().left_out == {name: f"ValueError: {reason}" for name in ("site0", "site1")}
