"""Fields that are no keys of a method, because something else takes their place: mixins, written before the base."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .fedavg import Part, Pooling


@dataclass(frozen=True)
class OwnTuning:
    """`finetune` is the method's own local update, whole."""

    finetune_epochs: float | None = field(default=None, init=False, repr=False)
    finetune_part: Part = field(default="all", init=False, repr=False)


@dataclass(frozen=True)
class Untuned(OwnTuning):
    """A client predicts with what the method gives it, never fine-tuned."""

    finetune: bool = field(default=False, init=False, repr=False)


@dataclass(frozen=True)
class Unpooled:
    """There are no posteriors that the server could pool, or one rule alone makes sense."""

    pooling: Pooling = field(default="scale", init=False, repr=False)


@dataclass(frozen=True)
class ByRows(Unpooled):
    """The server's step weighs clients by their rows, or averages nothing."""

    weighting: Literal["rows"] = field(default="rows", init=False, repr=False)


@dataclass(frozen=True)
class Alike(Unpooled):
    """The server's step counts clients alike, or by weights of the method's own."""

    weighting: Literal["uniform"] = field(default="uniform", init=False, repr=False)
