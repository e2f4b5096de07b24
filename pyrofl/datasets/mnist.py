"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 pixels in ten classes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data import Dataset
from .files import Progress, data_root, pixels
from .imagefolder import imagefolder
from .labels import first_of_each

_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FILES = {"train": "train-{}-ubyte", "test": "t10k-{}-ubyte"}


def mnist(
    *,
    download: bool = True,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Handwritten digits; x (60000, 1, 28, 28) in [0, 1], and the set's own 10,000 test rows.

    Read from ROOT/mnist/{train,test}/CLASS/FILE, or from the idx files in ROOT/mnist or ROOT/MNIST/raw, or
    fetched by torchvision. `limit` takes the first rows of each class.

    Reference: LeCun, Bottou, Bengio, Haffner, 1998.
    """
    return _load("mnist", "MNIST", tuple("0123456789"), (), download, limit, root, progress)


def fashion_mnist(
    *,
    download: bool = True,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Pictures of clothes in the format of `mnist`, under the names fashion_mnist and FashionMNIST.

    The files of the Debian package dataset-fashion-mnist are found too.

    Reference: Xiao, Rasul, Vollgraf, 2017.
    """
    system = (Path("/usr/share/datasets/fashion-mnist"),)
    return _load("fashion_mnist", "FashionMNIST", _CLOTHES, system, download, limit, root, progress)


def read_idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in an idx file, gzipped or not."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    head = 4 + 4 * (raw[3] if len(raw) > 3 else 0)
    shape = tuple(np.frombuffer(raw[4:head], dtype=">u4").tolist()) if len(raw) >= head else ()
    if raw[:3] != b"\x00\x00\x08" or len(raw) != head + np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} is not a whole idx file of bytes ({len(raw)} bytes): fetch it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape).copy()


def _load(
    name: str,
    torchvision_name: str,
    classes: tuple[str, ...],
    system: tuple[Path, ...],
    download: bool,
    limit: int | None,
    root: str | Path | None,
    progress: Progress | None,
) -> Dataset:
    base = data_root(root)
    if (base / name / "train").is_dir():
        return imagefolder(path=base / name, limit=limit, root=root, progress=progress)
    places = (base / name, base / torchvision_name / "raw", *system)
    folder = next((p for p in places if _complete(p)), None)
    if folder is None:
        looked = f"{name} is not in {base / name}/train nor, as idx files, in {', '.join(map(str, places))}"
        if not download:
            raise FileNotFoundError(f"{looked}: put it there, name another root, or set download = true")
        _fetch(torchvision_name, base, looked)
        folder = base / torchvision_name / "raw"
    (x, y), test = (_read(folder, split, limit) for split in _FILES)
    notes = () if limit is None else (f"{name}: the first {limit} images of each class",)
    return Dataset(x, y, "categorical", classes, test=test, notes=notes)


def _file(folder: Path, split: str, what: str) -> Path | None:
    plain = folder / _FILES[split].format(what)
    return next((p for p in (plain, plain.with_name(plain.name + ".gz")) if p.is_file()), None)


def _complete(folder: Path) -> bool:
    return all(_file(folder, split, what) for split in _FILES for what in ("images-idx3", "labels-idx1"))


def _read(folder: Path, split: str, limit: int | None) -> tuple[Tensor, Tensor]:
    images, labels = (_file(folder, split, what) for what in ("images-idx3", "labels-idx1"))
    assert images is not None and labels is not None  # `folder` is complete
    x, y = read_idx(images), read_idx(labels)
    if len(x) != len(y):
        raise ValueError(f"{images} holds {len(x)} images and {labels} holds {len(y)} labels: fetch both again")
    rows = first_of_each(y.tolist(), limit)
    return pixels(torch.from_numpy(x[rows]).unsqueeze(1)), torch.from_numpy(y[rows].astype(np.int64))


def _fetch(name: str, base: Path, looked: str) -> None:
    import torchvision  # seconds to import, and needed for a download alone

    try:
        getattr(torchvision.datasets, name)(str(base), download=True)
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(
            f"{looked}, and the download failed ({error}): connect to the network, or put the files there"
        ) from error
