"""Noise on a client's rows: drawn once from a key, so that a row looks the same in every epoch and round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import arguments
from .data import Data
from .random import generator
from .suggest import choose

KINDS = ("pixel_std", "pixel_variance", "label_flip")
SPLITS = ("train", "test", "common")


@dataclass(frozen=True)
class Noise:
    """What `level` means, by kind.

    pixel_std: x + N(0, level^2). pixel_variance: x + N(0, level). label_flip: with probability `level` a
    label is replaced by one of the other classes, each equally likely. `clip` cuts noisy pixels to [0, 1].
    """

    kind: str
    level: float
    splits: Sequence[str] = ("train",)
    clip: bool = True

    def __post_init__(self) -> None:
        choose(self.kind, KINDS, "noise kind")
        for split in self.splits:
            choose(split, SPLITS, "noise split")
        top = 1.0 if self.kind == "label_flip" else float("inf")
        if not 0 <= self.level <= top:
            raise ValueError(f"noise level of {self.kind} must lie in [0, {top:g}], got {self.level}")

    @classmethod
    def of(cls, table: Mapping[str, object]) -> Noise:
        """From a table such as `{ kind = "pixel_std", level = 1e-3, splits = ["train"] }`."""
        return cls(**arguments(cls, dict(table), where="noise"))

    def __call__(self, data: Data, classes: int, key: Tensor) -> Data:
        """The same rows with noise; the input is not changed."""
        if self.kind == "label_flip":
            return data._replace(y=self._flip(data.y, classes, key))
        if self.clip and len(data.x) and not (data.x.min() >= 0 and data.x.max() <= 1):
            raise ValueError(
                f"noise kind {self.kind!r} clips to [0, 1], and the inputs span {data.x.min():g} to "
                f"{data.x.max():g}: set clip = false"
            )
        deviation = self.level if self.kind == "pixel_std" else self.level**0.5
        draws = torch.from_numpy(generator(key).standard_normal(tuple(data.x.shape), dtype="float32"))
        x = data.x + deviation * draws.to(data.x)
        return data._replace(x=x.clamp(0, 1) if self.clip else x)

    def _flip(self, y: Tensor, classes: int, key: Tensor) -> Tensor:
        if classes < 2:
            raise ValueError("noise kind 'label_flip' needs classes, and the targets have none: use pixel noise")
        rng = generator(key)
        flip = torch.from_numpy(rng.random(len(y)) < self.level)
        other = torch.from_numpy(rng.integers(1, classes, len(y)))  # a step of 1..C-1 never leads back
        return torch.where(flip, (y + other) % classes, y)

    def __str__(self) -> str:
        meaning = {
            "pixel_std": f"x + N(0, {self.level:g}^2)",
            "pixel_variance": f"x + N(0, {self.level:g}), a standard deviation of {self.level**0.5:.3g}",
            "label_flip": f"a label becomes another class with probability {self.level:g}",
        }[self.kind]
        clipped = ", clipped to [0, 1]" if self.clip and self.kind != "label_flip" else ""
        return f"noise ({self.kind}) on {' and '.join(self.splits)} rows: {meaning}{clipped}; fixed per row"
