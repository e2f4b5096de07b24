"""The algebra of named tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from pyrofl import tree
from pyrofl.tree import Ravel, Raveled, Tree

SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=5)


def made(shapes: list[list[int]], start: float = 0.0) -> Tree:
    out, at = {}, start
    for i, shape in enumerate(shapes):
        size = torch.Size(shape).numel()
        out[f"t{i}"] = torch.arange(at, at + size, dtype=torch.float64).reshape(shape)
        at += size
    return out


def test_arithmetic_is_name_by_name() -> None:
    a, b = (
        {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)},
        {"b": torch.tensor(1.0), "w": torch.tensor([5.0, 7.0])},
    )
    assert tree.add(a, b)["w"].tolist() == [6, 9] and tree.add(a, b)["b"].item() == 4
    assert tree.sub(a, b)["w"].tolist() == [-4, -5]
    assert tree.scale(a, 2.0)["b"].item() == 6
    assert tree.zeros(a)["w"].tolist() == [0, 0]
    assert tree.sqnorm(a).item() == 1 + 4 + 9
    assert a["w"].tolist() == [1, 2], "arguments stay as they were"


def test_trees_of_other_names_are_refused_by_name() -> None:
    with pytest.raises(KeyError, match="trees differ in 2 names, the first is 'b'"):
        tree.add({"a": torch.tensor(1.0), "b": torch.tensor(1.0)}, {"a": torch.tensor(1.0), "c": torch.tensor(1.0)})


def test_where_does_not_let_nan_through() -> None:
    bad, good = {"w": torch.tensor([torch.nan])}, {"w": torch.tensor([2.0])}
    assert tree.where(torch.tensor(False), bad, good)["w"].item() == 2
    slope = torch.func.grad(lambda x: tree.where(torch.tensor(True), {"w": x * x}, bad)["w"].sum())(torch.tensor([3.0]))
    assert slope.item() == 6


def test_only_and_without_split_a_tree() -> None:
    a = made([[1], [2], [3]])
    assert set(tree.only(a, {"t0", "t9"})) == {"t0"}
    assert set(tree.without(a, {"t0", "t9"})) == {"t1", "t2"}


@given(SHAPES, st.integers(1, 4))
def test_stack_and_unstack_are_inverse(shapes: list[list[int]], count: int) -> None:
    trees = [made(shapes, start=100.0 * i) for i in range(count)]
    stacked = tree.stack(trees)
    for i, t in enumerate(trees):
        assert tree.equal(tree.unstack(stacked, i), t)


def test_mean_weighs_clients() -> None:
    a = {"w": torch.tensor([[0.0, 4.0], [8.0, 0.0]])}
    assert tree.mean(a, torch.tensor([3.0, 1.0]))["w"].tolist() == [2, 3]
    assert tree.mean(a, torch.tensor([30, 10]))["w"].tolist() == [2, 3], "weights need not sum to one, nor be floats"


def test_counters_keep_their_dtype_in_a_mean() -> None:
    a = {"n": torch.tensor([7, 8, 8]), "big": torch.tensor([2**40, 2**40, 2**40])}
    out = tree.mean(a, torch.ones(3))
    assert out["n"].item() == 8 and out["n"].dtype == torch.int64 and out["n"].shape == ()
    assert out["big"].item() == 2**40


@given(SHAPES)
def test_pack_and_part_are_inverse(shapes: list[list[int]]) -> None:
    a, b = made(shapes), made(shapes, start=1000.0)
    packed = tree.pack(x=a, c=b)
    assert tree.equal(tree.part(packed, "x"), a) and tree.equal(tree.part(packed, "c"), b)
    assert tree.part(packed, "") == {} and tree.part(packed, "y") == {}
    assert tree.equal(tree.part(tree.part(tree.pack(a=packed), "a"), "c"), b)


def test_bytes_are_those_of_the_tensors() -> None:
    assert tree.nbytes({"w": torch.zeros(3, 2), "n": torch.tensor(1), "h": torch.zeros(5, dtype=torch.float16)}) == 42
    assert tree.nbytes({}) == 0


def test_equality_is_of_bits() -> None:
    nan = {"w": torch.tensor([torch.nan, 1.0])}
    assert tree.equal(nan, {"w": nan["w"].clone()})
    assert not tree.equal({"w": torch.tensor(0.0)}, {"w": torch.tensor(-0.0)})
    assert not tree.equal({"w": torch.tensor(0.0)}, {"w": torch.tensor(0.0, dtype=torch.float64)})
    assert not tree.equal({"w": torch.zeros(2, 3)}, {"w": torch.zeros(3, 2)})
    assert not tree.equal({"w": torch.tensor(0.0)}, {"v": torch.tensor(0.0)})
    assert tree.equal({"w": torch.arange(6).reshape(2, 3).t()}, {"w": torch.arange(6).reshape(2, 3).t().contiguous()})


@given(SHAPES)
def test_a_ravelled_tree_comes_back(shapes: list[list[int]]) -> None:
    a = made(shapes)
    ravel = Ravel(a)
    flat = ravel.flat(a)
    assert flat.tolist() == list(range(sum(v.numel() for v in a.values())))
    assert tree.equal(ravel.tree(flat), a)
    for position in range(len(flat)):
        assert position in a[ravel.name_at(position)].flatten().tolist()
    with pytest.raises(IndexError, match=f"position {len(flat)} is beyond"):
        ravel.name_at(len(flat))


def test_a_ravelled_tree_never_shares_memory_with_its_source() -> None:
    a = {"w": torch.zeros(3)}
    Ravel(a).flat(a).add_(1)
    assert a["w"].tolist() == [0, 0, 0]


def test_mixed_dtypes_do_not_ravel() -> None:
    with pytest.raises(TypeError, match=r"must share one dtype, got \['torch.float32', 'torch.int64'\]"):
        Ravel({"w": torch.zeros(1), "n": torch.tensor(1)})


@given(SHAPES, st.data())
def test_blocks_are_the_named_tensors_in_a_row(shapes: list[list[int]], data: st.DataObject) -> None:
    a = made(shapes)
    ravel = Ravel(a)
    names = list(a)
    picked = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    cut = data.draw(st.integers(1, len(picked)))
    groups = [g for g in (picked[:cut], picked[cut:]) if g]
    expected = [torch.cat([a[n].reshape(-1) for n in g]) for g in groups]
    for source in (a, ravel.tree(ravel.flat(a)), ravel.tree(ravel.flat(a), {"other": torch.zeros(2)})):
        got = tree.blocks(source, *groups)
        assert [g.tolist() for g in got] == [e.tolist() for e in expected]


def test_blocks_work_under_vmap_and_after_a_change() -> None:
    a = made([[2], [3]])
    ravel = Ravel(a)
    flats = torch.stack([ravel.flat(a), 10 * ravel.flat(a)])
    out = vmap(lambda f: tree.blocks(ravel.tree(f), ["t0", "t1"])[0])(flats)
    assert torch.equal(out, flats)
    changed = {**ravel.tree(flats[0]), "t1": torch.full((3,), -1.0, dtype=torch.float64)}
    assert not isinstance(changed, Raveled)
    assert tree.blocks(changed, ["t0", "t1"])[0].tolist() == [0, 1, -1, -1, -1]


def test_rows_of_a_stack_are_replaced_and_nothing_else() -> None:
    one = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    three = tree.repeat(one, 3)
    assert three["w"].tolist() == [[1, 2]] * 3 and three["n"].tolist() == [3, 3, 3]
    new = tree.put(
        three, torch.tensor([2, 0]), {"w": torch.tensor([[5.0, 6.0], [7.0, 8.0]]), "n": torch.tensor([8, 9])}
    )
    assert new["w"].tolist() == [[7, 8], [1, 2], [5, 6]] and new["n"].tolist() == [9, 3, 8]
    assert three["n"].tolist() == [3, 3, 3]
    new["w"][1] = 0.0
    assert one["w"].tolist() == [1, 2]
    with pytest.raises(KeyError, match="'n'"):
        tree.put(three, torch.tensor([0]), {"w": torch.zeros(1, 2)})
