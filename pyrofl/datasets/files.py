"""Where data sets lie, and decoded arrays kept so that 60,000 files are decoded once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from ..store import load_tree, save_tree

Progress = Callable[[int, int, str], None]  # (done, total, what)


def data_root(root: str | Path | None = None) -> Path:
    """The folder of all data sets: `root`, else the variable PYROFL_DATA, else ~/.cache/pyrofl/data."""
    chosen = root or os.environ.get("PYROFL_DATA") or Path("~/.cache/pyrofl/data")
    return Path(chosen).expanduser()


def find(path: str | Path, root: str | Path | None) -> Path:
    """A file or folder as named, or under the data root."""
    places = [Path(path).expanduser().absolute(), data_root(root) / path]
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(f"{path} is neither at {places[0]} nor at {places[1]}: check the path or root")


def fingerprint(paths: Iterable[Path], *extra: object) -> str:
    """A hash of names, sizes and modification times: it changes when a file does."""
    digest = hashlib.sha256(repr(extra).encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def cached(file: Path, make: Callable[[], Tensor]) -> Tensor:
    """The tensor stored in `file`, else `make()`, which is stored there if the place is writable.

    A file that is cut short or damaged counts as absent.
    """
    try:
        return load_tree(file)[0]["x"]
    except (OSError, ValueError, KeyError):
        x = make()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_tree(file, {"x": x})
    return x


def pixels(x: Tensor) -> Tensor:
    """Bytes 0..255 as float32 in [0, 1]."""
    return x.to(torch.float32).div_(255)
