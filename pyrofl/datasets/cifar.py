"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32 x 32 pixels in 10 or 100 classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data import Dataset
from .files import Progress, data_root, pixels
from .imagefolder import imagefolder
from .labels import first_of_each

_PIXELS = 3 * 32 * 32
_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class _Archive:
    """The binary version of a set, free of pickled objects: a record is its label bytes, then the pixels."""

    name: str
    file: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int  # the last one is the class


_CIFAR10 = _Archive(
    "cifar10",
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test_batch.bin",
    "batches.meta.txt",
    1,
)
_CIFAR100 = _Archive(
    "cifar100",
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    "fine_label_names.txt",
    2,
)


def cifar10(
    *,
    download: bool = True,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Ten classes of objects; x (50000, 3, 32, 32) in [0, 1], and the set's own 10,000 test rows.

    Read from ROOT/cifar10/{train,test}/CLASS/FILE, or from the binary version in ROOT/cifar-10-batches-bin,
    which is fetched if need be. `limit` takes the first rows of each class.

    Reference: Krizhevsky, 2009.
    """
    return _load(_CIFAR10, download, limit, root, progress)


def cifar100(
    *,
    download: bool = True,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """One hundred (fine) classes in the format of `cifar10`, in ROOT/cifar100 or ROOT/cifar-100-binary.

    Reference: Krizhevsky, 2009.
    """
    return _load(_CIFAR100, download, limit, root, progress)


def _load(
    archive: _Archive, download: bool, limit: int | None, root: str | Path | None, progress: Progress | None
) -> Dataset:
    base = data_root(root)
    tree, folder = base / archive.name, base / archive.folder
    if (tree / "train").is_dir():
        dataset = imagefolder(path=tree, limit=limit, root=root, progress=progress)
        if next(tree.glob("train/*/*.jp*g"), None) is None:
            return dataset
        return replace(
            dataset,
            notes=(
                *dataset.notes,
                f"{archive.name}: JPEG files, so pixels differ a little from the original",
            ),
        )
    if not all((folder / f).is_file() for f in (*archive.train, archive.test, archive.names)):
        looked = f"{archive.name} is neither in {tree}/train nor, in its binary version, in {folder}"
        if not download:
            raise FileNotFoundError(f"{looked}: put it there, name another root, or set download = true")
        _fetch(archive, base, looked)
    classes = tuple((folder / archive.names).read_text().split())
    x, y = _read([folder / f for f in archive.train], archive.label_bytes, len(classes), limit)
    test = _read([folder / archive.test], archive.label_bytes, len(classes), limit)
    notes = () if limit is None else (f"{archive.name}: the first {limit} images of each class",)
    return Dataset(x, y, "categorical", classes, test=test, notes=notes)


def _read(paths: list[Path], label_bytes: int, classes: int, limit: int | None) -> tuple[Tensor, Tensor]:
    parts = []
    for path in paths:
        raw = np.fromfile(path, dtype=np.uint8)
        if len(raw) == 0 or len(raw) % (label_bytes + _PIXELS):
            raise ValueError(f"{path} does not hold whole images ({len(raw)} bytes): fetch it again")
        parts.append(raw.reshape(-1, label_bytes + _PIXELS))
    records = np.concatenate(parts)
    y = records[:, label_bytes - 1]
    if y.max() >= classes:
        raise ValueError(f"{paths[0].parent} holds label {y.max()} and names {classes} classes: fetch it again")
    rows = first_of_each(y.tolist(), limit)
    images = torch.from_numpy(records[rows, label_bytes:]).reshape(-1, 3, 32, 32)
    return pixels(images), torch.from_numpy(y[rows].astype(np.int64))


def _fetch(archive: _Archive, base: Path, looked: str) -> None:
    from torchvision.datasets.utils import download_and_extract_archive  # seconds to import

    try:
        download_and_extract_archive(_URL + archive.file, str(base), md5=archive.md5)
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(
            f"{looked}, and the download failed ({error}): connect to the network, or put the files there"
        ) from error
