"""Fields of fine-tuning that are no keys of a method, because something else takes their place."""

from __future__ import annotations

from dataclasses import dataclass, field

from .fedavg import Part


@dataclass(frozen=True)
class OwnTuning:
    """Mixin, written before the base: `finetune` is the method's own local update, whole."""

    finetune_epochs: float | None = field(default=None, init=False, repr=False)
    finetune_part: Part = field(default="all", init=False, repr=False)


@dataclass(frozen=True)
class Untuned(OwnTuning):
    """Mixin, written before the base: a client predicts with what the method gives it, never fine-tuned."""

    finetune: bool = field(default=False, init=False, repr=False)
