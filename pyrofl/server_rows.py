"""Rows of the server's own, for distillation and for what is fitted there: never a client's, never test rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .data import Dataset
from .random import generator


def take(dataset: Dataset, unlabelled: int, labelled: int, key: Tensor) -> np.ndarray:
    """Row numbers of the server, in random order."""
    for name, rows in (("unlabelled", unlabelled), ("labelled", labelled)):
        if rows < 0:
            raise ValueError(f"{name} is a number of the server's rows, 0 or more, got {rows}")
    wanted, total = unlabelled + labelled, len(dataset.y)
    if wanted and wanted >= total:
        raise ValueError(
            f"unlabelled + labelled = {wanted} rows are for the server, and the set has {total} for training: leave "
            "some to the clients"
        )
    return generator(key).permutation(total)[:wanted] if wanted else np.arange(0)


def without(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """The set without the named rows."""
    if not len(rows):
        return dataset
    keep = torch.from_numpy(np.setdiff1d(np.arange(len(dataset.y)), rows))
    site = None if dataset.site is None else dataset.site[keep]
    return replace(dataset, x=dataset.x[keep], y=dataset.y[keep], site=site)


def borrow(other: Dataset, shape: tuple[int, ...], *, key: Tensor, rows: int | None = None) -> Tensor:
    """Inputs of another data set for the server: `rows` of its training rows at random (None: all), (U, *shape).

    Images of another size are resized (bilinear, smoothed where they shrink).
    """
    if rows is not None and not 1 <= rows <= len(other.x):
        raise ValueError(f"rows must be from 1 to {len(other.x)}, as many as the set has for training, got {rows}")
    x = other.x[generator(key).permutation(len(other.x))[:rows]]
    if len(shape) == 3 and x.dim() == 4 and x.shape[1] == shape[0] and x.shape[2:] != shape[1:]:
        x = interpolate(x, size=shape[1:], mode="bilinear", antialias=True)
    if x.shape[1:] != shape:
        raise ValueError(f"its rows have shape {tuple(x.shape[1:])}, the clients' have {shape}: take another set")
    return x
