"""Assertions about trees that name the tensor."""

from __future__ import annotations

import torch

from pyrofl.tree import Tree, equal


def same(a: Tree, b: Tree, what: str = "tree") -> None:
    """Same names, shapes, dtypes and bits."""
    assert a.keys() == b.keys(), f"{what}: names differ in {sorted(a.keys() ^ b.keys())}"
    for name in a:
        assert equal({"": a[name]}, {"": b[name]}), f"{what}: {name} differs: {a[name]} and {b[name]}"


def close(a: Tree, b: Tree, what: str = "tree", *, tolerance: float = 1e-6) -> None:
    """Same names, and values equal to an absolute and relative `tolerance`."""
    assert a.keys() == b.keys(), f"{what}: names differ in {sorted(a.keys() ^ b.keys())}"
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{what}: {n}: {text}"
        )


def distance(a: Tree, b: Tree) -> float:
    """The largest absolute difference over all floating tensors."""
    return max(float((a[k] - b[k]).abs().max()) for k in a if a[k].is_floating_point() and a[k].numel())
