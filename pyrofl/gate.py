"""The gate: every tree that arrives from outside is checked before anything is computed with it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from .tree import Tree, all_finite


@dataclass(frozen=True)
class Contract:
    """What a reply must look like: name -> (shape, dtype); every value finite, those in `positive` above 0."""

    like: Mapping[str, tuple[torch.Size, torch.dtype]]
    positive: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tree: Tree, positive: frozenset[str] = frozenset()) -> Contract:
        return cls({k: (v.shape, v.dtype) for k, v in tree.items()}, positive)

    def reason(self, tree: object) -> str | None:
        """Why `tree` is refused, naming the tensor, or None if it may pass. Never raises."""
        if not isinstance(tree, dict):
            return f"the reply is a {type(tree).__name__}, not named tensors"
        if reason := self.reason_of_names(tree):
            return reason
        for name in self.like:
            v = tree[name]
            if not isinstance(v, Tensor):
                return f"{name!r} is a {type(v).__name__}, not a tensor"
            if reason := self.reason_of_kind(name, tuple(v.shape), v.dtype):
                return reason
            if not all_finite(v):
                kind = "NaN" if bool(torch.isnan(v).any()) else "an infinite value"
                return f"tensor {name!r} holds {kind}"
            if name in self.positive and not bool((v > 0).all()):
                return f"tensor {name!r} must be positive, its smallest value is {v.min().item():g}"
        return None

    def reason_of_names(self, names: Iterable[Any]) -> str | None:
        """Why these names are refused, or None."""
        names = set(names)
        if missing := sorted(map(str, self.like.keys() - names)):
            return f"tensor {missing[0]!r} is missing" + _more(missing)
        if extra := sorted(map(str, names - self.like.keys())):
            return f"tensor {extra[0]!r} is not expected" + _more(extra)
        return None

    def reason_of_kind(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
        """Why a tensor of this shape and dtype is refused under this name, or None."""
        expected_shape, expected_dtype = self.like[name]
        if shape != tuple(expected_shape):
            return f"tensor {name!r} has shape {shape}, expected {tuple(expected_shape)}"
        if dtype != expected_dtype:
            return f"tensor {name!r} has dtype {dtype}, expected {expected_dtype}"
        return None


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def reason_of_own(own: object) -> str | None:
    """Why a client's own state is refused, naming the tensor, or None. Never raises."""
    if not isinstance(own, Mapping):
        return f"its own state is a {type(own).__name__}, not named tensors"
    for name, v in own.items():
        if not isinstance(v, Tensor):
            return f"its own state {name!r} is a {type(v).__name__}, not a tensor"
        if not all_finite(v):
            return f"its own state {name!r} is not finite"
    return None


def reason_of_info(info: object) -> str | None:
    """Why what a client logs is refused, naming the first entry that is no real scalar, or None. Never raises."""
    if not isinstance(info, Mapping):
        return f"Reply.info is a {type(info).__name__}, not named scalars"
    found = ((name, _no_scalar(v)) for name, v in info.items())
    return next((f"Reply.info[{name!r}] {what}, expected a real scalar" for name, what in found if what), None)


def reason_of_report(report: Tree) -> str | None:
    """Why the server's numbers for people, its leaves `report/NAME`, are refused, or None."""
    found = ((name, _no_scalar(v)) for name, v in report.items())
    return next((f"'report/{name}' {what}, expected a real scalar" for name, what in found if what), None)


def _no_scalar(value: object) -> str | None:
    """What something is instead of one real number, or None."""
    if isinstance(value, Tensor):
        wrong = value.numel() != 1 or value.is_complex()
        return f"has shape {tuple(value.shape)} and dtype {value.dtype}" if wrong else None
    return None if isinstance(value, Real) else f"is a {type(value).__name__}"


@dataclass(frozen=True)
class Outliers:
    """What happens to a finite reply whose norm is more than `factor` times the cohort's median norm.

    "flag" says so and keeps it, "reject" leaves it out, "ignore" does not look. Cohorts below three have no median to
    compare with.
    """

    policy: Literal["flag", "reject", "ignore"] = "flag"
    factor: float = 100.0

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ValueError(f"outliers.factor must be above 1, got {self.factor}")

    def find(self, ups: Mapping[int, Tree]) -> dict[int, str]:
        """Client -> reason, for each reply that stands out."""
        if self.policy == "ignore" or len(ups) < 3:
            return {}
        norms = {i: norm(u) for i, u in ups.items()}
        middle = statistics.median(norms.values())
        return {
            i: f"its norm {v:.3g} is {v / middle:.3g} times the cohort's median {middle:.3g}"
            for i, v in norms.items()
            if middle > 0 and v > self.factor * middle
        }


def norm(tree: Tree) -> float:
    """Euclidean norm over all floating tensors, in float64."""
    squares = [float(v.double().square().sum()) for v in tree.values() if v.is_floating_point()]
    return math.sqrt(sum(squares))
