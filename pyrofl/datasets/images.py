"""Image files: finding them in a folder tree, and decoding them to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from .files import Progress

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm", ".gif", ".tif", ".tiff"})


class Picture(NamedTuple):
    """One image file and what its path says."""

    path: Path
    label: str
    group: str  # the folder above the class: a split, a domain, or ""


def scan(folder: Path) -> list[Picture]:
    """All images of GROUP/CLASS/FILE, or of CLASS/FILE (group ""), in order of their names.

    Hidden files and files that are no images are passed over.
    """
    top = _folders(folder)
    if not top:
        raise FileNotFoundError(f"{folder} holds no folders: images lie in {_LAYOUTS}")
    grouped = [f for f in top if _folders(f)]
    if grouped and len(grouped) < len(top):
        odd = next(f for f in top if f not in grouped)
        raise ValueError(f"{folder}: {grouped[0].name} holds folders and {odd.name} does not: keep to {_LAYOUTS}")
    groups = [(f.name, _folders(f)) for f in top] if grouped else [("", top)]
    found = [Picture(p, c.name, name) for name, classes in groups for c in classes for p in _images(c)]
    if not found:
        raise FileNotFoundError(f"{folder} holds no image files: images lie in {_LAYOUTS}")
    return found


def decode(
    paths: Sequence[Path], *, size: int | None = None, progress: Progress | None = None, what: str = "images"
) -> Tensor:
    """Images as bytes (N, channels, height, width) uint8: 1 channel if all are grey, else 3.

    `size` resizes each to size x size pixels (bilinear; the aspect ratio is not kept).
    """
    arrays: list[np.ndarray] = []
    for i, path in enumerate(paths):
        array = _open(path, size)  # (H, W) or (H, W, 3)
        if array.shape[:2] != (arrays[0] if arrays else array).shape[:2]:
            raise ValueError(
                f"{path} is {array.shape[1]} x {array.shape[0]} pixels and {paths[0]} is "
                f"{arrays[0].shape[1]} x {arrays[0].shape[0]}: give a common size, such as size = 64"
            )
        arrays.append(array)
        if progress is not None and (i % 100 == 99 or i + 1 == len(paths)):
            progress(i + 1, len(paths), what)
    if all(a.ndim == 2 for a in arrays):
        return torch.from_numpy(np.stack(arrays)).unsqueeze(1)
    colour = np.stack([a if a.ndim == 3 else np.repeat(a[..., None], 3, axis=2) for a in arrays])
    return torch.from_numpy(colour).permute(0, 3, 1, 2).contiguous()


_LAYOUTS = "{train,test}/CLASS/FILE, DOMAIN/CLASS/FILE or CLASS/FILE"


def _open(path: Path, size: int | None) -> np.ndarray:
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"{path} has more than 8 bits a channel (mode {image.mode}): convert it to 8 bits")
            grey = image.mode in ("1", "L", "LA")
            picture = image.convert("L" if grey else "RGB")
            return np.array(picture.resize((size, size), Image.Resampling.BILINEAR) if size else picture)
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path} cannot be read as an image ({error}): remove or replace it") from error


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
