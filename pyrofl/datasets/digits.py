"""Scikit-learn's handwritten digits: small, and there without a download."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from ..data import Dataset
from .labels import first_of_each


def digits(*, images: bool = False, limit: int | None = None) -> Dataset:
    """1797 grey images of 8 x 8 pixels in ten classes.

    x is (1797, 64), or (1797, 1, 8, 8) with `images`, in [0, 1]. `limit` takes the first rows of each class.

    Reference: Alpaydin, Kaynak, 1998 (the test part of the UCI set).
    """
    x, codes = load_digits(return_X_y=True)
    rows = first_of_each(codes.tolist(), limit)
    pixels = torch.from_numpy(x[rows]).div(16).to(torch.float32)
    if images:
        pixels = pixels.reshape(-1, 1, 8, 8)
    notes = ["digits: grey levels 0..16 as float64 became [0, 1] as float32"]
    if limit is not None:
        notes.append(f"digits: the first {limit} images of each class")
    y = torch.from_numpy(codes[rows]).to(torch.int64)
    return Dataset(pixels, y, "categorical", tuple("0123456789"), notes=tuple(notes))
