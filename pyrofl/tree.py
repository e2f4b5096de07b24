"""Named-tensor algebra: every state of the library is a flat `Tree = dict[str, Tensor]`.

Guide parameters, control variates, personal heads, prior hyper-parameters and messages are all trees: one
representation that `functional_call` takes, `vmap` batches, safetensors stores and Flower's `ArrayRecord` carries.
Functions return new trees and never change their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def tmap(f: Callable[..., Tensor], *trees: Tree) -> Tree:
    """`f` on the tensors of the same name; all trees must hold the same names."""
    first = trees[0]
    for other in trees[1:]:
        if other.keys() != first.keys():
            odd = sorted(first.keys() ^ other.keys())
            raise KeyError(f"trees differ in {len(odd)} names, the first is {odd[0]!r}")
    return {k: f(*(t[k] for t in trees)) for k in first}


def add(a: Tree, b: Tree) -> Tree:
    return tmap(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    return tmap(torch.sub, a, b)


def scale(a: Tree, c: float | Tensor) -> Tree:
    return tmap(lambda v: v * c, a)


def zeros(a: Tree) -> Tree:
    return tmap(torch.zeros_like, a)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """`a` where the scalar condition holds, else `b`; NaN on the other side does not leak."""
    return tmap(lambda x, y: torch.where(condition, x, y), a, b)


def sqnorm(a: Tree) -> Tensor:
    """Squared Euclidean norm over all tensors, a scalar."""
    return torch.stack([v.square().sum() for v in a.values()]).sum()


def only(a: Tree, names: Collection[str]) -> Tree:
    return {k: v for k, v in a.items() if k in names}


def without(a: Tree, names: Collection[str]) -> Tree:
    return {k: v for k, v in a.items() if k not in names}


def stack(trees: Sequence[Tree]) -> Tree:
    """C trees of leaves (...) as one tree of leaves (C, ...)."""
    return {k: torch.stack([t[k] for t in trees]) for k in trees[0]}


def unstack(a: Tree, index: int) -> Tree:
    return {k: v[index] for k, v in a.items()}


def repeat(a: Tree, count: int) -> Tree:
    """`count` copies, stacked."""
    return {k: v.expand(count, *v.shape).clone() for k, v in a.items()}


def put(a: Tree, rows: Tensor, b: Tree) -> Tree:
    """`a`, of leaves (K, ...), with its `rows` (C,) as in `b`, of leaves (C, ...)."""
    return tmap(lambda v, new: v.index_copy(0, rows, new), a, b)


def mean(a: Tree, weights: Tensor) -> Tree:
    """Weighted mean over the leading client axis: (C, ...) -> (...).

    `weights` (C,) need not sum to one. Integer leaves (counters) keep their dtype: the mean is rounded.
    """
    share = weights.double() / weights.double().sum()

    def one(v: Tensor) -> Tensor:
        real = v if v.is_floating_point() else v.double()
        out = torch.tensordot(share.to(real), real, 1)
        return out if v.is_floating_point() else out.round().to(v.dtype)

    return tmap(one, a)


def pack(**parts: Tree) -> Tree:
    """`pack(x=a, c=b)`: one flat tree with the names `x/...` and `c/...`; `part` takes it apart."""
    return {f"{p}/{k}": v for p, t in parts.items() for k, v in t.items()}


def part(a: Tree, name: str) -> Tree:
    """The sub-tree that `pack` stored under `name`."""
    head = name + "/"
    return {k[len(head) :]: v for k, v in a.items() if k.startswith(head)}


def nbytes(a: Tree) -> int:
    """Bytes of all tensors, as they would travel uncompressed."""
    return sum(v.numel() * v.element_size() for v in a.values())


def all_finite(v: Tensor) -> bool:
    """Whether no value is NaN or infinite. A finite sum proves it in one pass; only another one is looked into."""
    return not v.is_floating_point() or math.isfinite(v.sum()) or bool(torch.isfinite(v).all())


def equal(a: Tree, b: Tree) -> bool:
    """Same names in any order, shapes, dtypes and bits (NaN equals NaN)."""
    if a.keys() != b.keys():
        return False
    alike = lambda v, w: v.dtype == w.dtype and v.shape == w.shape and torch.equal(_bits(v), _bits(w))
    return all(alike(a[k], b[k]) for k in a)


def _bits(v: Tensor) -> Tensor:
    return v.detach().contiguous().flatten().view(torch.uint8)


class Ravel:
    """One flat vector (P,) for the tensors of a tree, and back by views.

    An optimizer step on one long vector costs a handful of kernels instead of a handful per tensor.
    """

    def __init__(self, like: Tree):
        dtypes = {v.dtype for v in like.values()}
        if len(dtypes) > 1:
            raise TypeError(f"trainable tensors must share one dtype, got {sorted(map(str, dtypes))}")
        self.names = tuple(like)
        self.shapes = tuple(v.shape for v in like.values())
        self.sizes = [v.numel() for v in like.values()]
        self._cuts: dict[tuple[tuple[str, ...], ...], list[int] | None] = {}

    def flat(self, a: Tree) -> Tensor:
        return torch.cat([a[k].reshape(-1) for k in self.names])  # (P,)

    def tree(self, flat: Tensor, held: Tree | None = None) -> Raveled:
        """The named tensors as views of the vector, beside those in `held`."""
        pieces = torch.split(flat, self.sizes)
        views = {k: v.view(s) for k, v, s in zip(self.names, pieces, self.shapes)}
        return Raveled({**(held or {}), **views}, flat, self)

    def cut(self, vector: Tensor, *groups: Sequence[str]) -> list[Tensor] | None:
        """Groups of names as slices of a vector (..., P), or None where they are not neighbours in this order."""
        key = tuple(map(tuple, groups))
        if key not in self._cuts:
            self._cuts[key] = self._places(key)
        places = self._cuts[key]
        if places is None or places == [0, sum(self.sizes), 0]:
            return None if places is None else [vector]
        return list(torch.split(vector, places, -1)[1:-1])

    def _places(self, groups: tuple[tuple[str, ...], ...]) -> list[int] | None:
        """Sizes of what comes before the groups, of each group, and of what comes after."""
        wanted = tuple(name for group in groups for name in group)
        first = self.names.index(wanted[0]) if wanted[0] in self.names else len(self.names)
        if self.names[first : first + len(wanted)] != wanted:
            return None
        ends, at = [sum(self.sizes[:first])], first
        for group in groups:
            ends.append(sum(self.sizes[at : at + len(group)]))
            at += len(group)
        return [*ends, sum(self.sizes[at:])]

    def pick(self, vector: Tensor, name: str) -> Tensor:
        """One tensor of a vector (..., P)."""
        i = self.names.index(name)
        piece = vector.narrow(-1, sum(self.sizes[:i]), self.sizes[i])
        return piece.reshape(*vector.shape[:-1], *self.shapes[i])

    def name_at(self, position: int) -> str:
        """Name of the tensor that holds the given position of the flat vector."""
        end = 0
        for name, size in zip(self.names, self.sizes):
            end += size
            if position < end:
                return name
        raise IndexError(f"position {position} is beyond the flat vector")


class Raveled(dict[str, Tensor]):
    """A tree that remembers the vector it views, so that runs of neighbours can be had as one slice of it."""

    def __init__(self, tensors: Tree, vector: Tensor, ravel: Ravel):
        super().__init__(tensors)
        self.vector, self.ravel = vector, ravel


def blocks(theta: Tree, *groups: Sequence[str]) -> list[Tensor]:
    """Each group of names as one flat vector: slices of a `Raveled` tree where the groups are neighbours in order."""
    if isinstance(theta, Raveled) and (cut := theta.ravel.cut(theta.vector, *groups)) is not None:
        return cut
    return [torch.cat([theta[k].reshape(-1) for k in group]) for group in groups]
