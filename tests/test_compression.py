"""Compressed messages: sizes, errors in units of the posterior's spread, and what a run makes of them."""

from __future__ import annotations

import math

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same

from pyrofl.compression import Compression
from pyrofl.engines import Sequential, Vectorised
from pyrofl.gate import Contract
from pyrofl.messages import Messages
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.tree import Tree, nbytes


def moved(program: Program, size: float = 0.02) -> tuple[Tree, Tree]:
    """(down, up): a posterior, and one a little away from it."""
    down = program.init(root(1))
    step = lambda k, v: size * torch.randn(v.shape, generator=torch.Generator().manual_seed(len(k)), dtype=v.dtype)
    return down, {k: v + step(k, v) for k, v in down.items()}


def sent(c: Compression, up: Tree, down: Tree) -> Tree:
    return c.decode(c.encode(up, down, root(2)), down, up)


def test_without_compression_a_message_is_what_it_is() -> None:
    down, up = moved(build.program())
    c = Compression(build.program())
    same(c.encode(up, down, root(2)), up)
    assert nbytes(c.wire(up)) == nbytes(up)


@pytest.mark.parametrize(("kind", "share"), [("float16", 2.0**-11), ("int8", 1 / 127)])
def test_the_error_is_a_share_of_the_largest_move_in_units_of_the_spread(kind: str, share: float) -> None:
    program = build.program()
    down, up = moved(program)
    first, second = program.sites[:2]
    down[program.scale_name(first)] = down[program.scale_name(first)] - 5  # one site a hundred times narrower
    got = sent(Compression(program, kind), up, down)  # type: ignore[arg-type]
    for site in (first, second):
        name, unit = program.loc_name(site), program.deviation(down, site)
        off, way = ((a - b).abs() / unit for a, b in ((got[name], up[name]), (up[name], down[name])))
        assert 0 < off.max() <= share * way.max() * 1.0001
    for name in up.keys() - {program.loc_name(s) for s in program.sites}:
        assert (got[name] - up[name]).abs().max() <= share * (up[name] - down[name]).abs().max() * 1.0001


def test_random_rounding_has_the_code_as_its_expectation() -> None:
    program = build.program()
    down, up = moved(program)
    c, name = Compression(program, "int8"), program.loc_name(program.sites[0])
    draws = torch.stack([c.decode(c.encode(up, down, fold(root(3), k)), down, up)[name] for k in range(400)])
    unit = program.deviation(down, program.sites[0])
    step = ((up[name] - down[name]).abs() / unit).max() * unit / 127
    z = (draws.mean(0) - up[name]) / (step / math.sqrt(12 * 400))
    assert z.abs().max() < 6 and len(draws.unique(dim=0)) > 100


def test_nothing_moved_and_nothing_there_survive() -> None:
    program = build.program()
    down, _ = moved(program)
    for kind in ("float16", "int8"):
        same(sent(Compression(program, kind), down, down), down)  # type: ignore[arg-type]
    empty = {"a": torch.zeros(0, 3), "n": torch.tensor(7)}
    same(sent(Compression(program, "int8"), empty, {}), empty)


@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_still_seen_by_the_gate(kind: str, value: float) -> None:
    program = build.program()
    down, up = moved(program)
    name = program.loc_name(program.sites[0])
    up[name].view(-1)[2] = value
    reason = Contract.of(down).reason(sent(Compression(program, kind), up, down))  # type: ignore[arg-type]
    assert reason is not None and name in reason


def test_a_bayesian_message_is_no_larger_than_fedavgs() -> None:
    """Two numbers a weight in int8 and the tensors' sizes, against one in float32."""
    bayes, plain = build.program(dtype=torch.float32), build.program(guide="delta", prior="flat", dtype=torch.float32)
    weights = sum(v.numel() for v in plain.theta0.values())
    assert nbytes(plain.theta0) == 4 * weights
    assert nbytes(bayes.theta0) == 8 * weights
    assert nbytes(Compression(bayes, "int8").wire(bayes.theta0)) == 2 * weights + 4 * len(bayes.theta0)
    assert nbytes(Compression(bayes, "float16").wire(bayes.theta0)) == 4 * weights + 4 * len(bayes.theta0)


def compressed(case: Case, kind: str, **options: object) -> Run:
    method = case.build()
    messages = Messages(method, Compression(method.program, kind))  # type: ignore[arg-type]
    return Run(method, build.federation(), rounds=2, seed=1, messages=messages, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["bayfl", "fedbn", "npeb", "fedmap"])
def test_both_engines_compress_alike(method: str) -> None:
    one = compressed(Case(method), "int8", engine=Sequential())
    other = compressed(Case(method), "int8", engine=Vectorised(ragged=100.0))
    for a, b in zip(one, other, strict=True):
        assert a.bytes_up == b.bytes_up == 4 * nbytes(one.messages.wire(one.method.down(one.server, 0)))
        assert a.bytes_up < a.bytes_down
    close(one.server, other.server, "server", tolerance=1e-2)  # a rounding can fall to the other side


def test_a_run_is_near_the_one_without() -> None:
    runs = [compressed(Case("bayfl"), kind, engine=Sequential()) for kind in ("none", "float16", "int8")]
    for run in runs:
        list(run)
    close(runs[0].server, runs[1].server, "float16", tolerance=1e-3)
    close(runs[0].server, runs[2].server, "int8", tolerance=3e-2)
