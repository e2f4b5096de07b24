"""Image sets that are read from a folder tree under the data root and nowhere else."""

from __future__ import annotations

from pathlib import Path

from ..data import Dataset
from .files import Progress, data_root
from .imagefolder import imagefolder


def tinyimagenet(
    *,
    size: int = 64,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Tiny-ImageNet: 200 classes of 64 x 64 colour images, from ROOT/tinyimagenet/{train,test}/CLASS/FILE.

    Resized to size x size pixels.

    The original's test labels are not public: its validation images, sorted into class folders, are the test
    rows.

    Reference: Le, Yang, 2015.
    """
    return _tree("tinyimagenet", "{train,test}/CLASS/FILE", size, limit, root, progress)


def officecaltech10(
    *,
    size: int = 64,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Office-Caltech-10: ten classes in four domains (amazon, caltech10, dslr, webcam), the natural clients.

    From ROOT/officecaltech10/DOMAIN/CLASS/FILE, resized to size x size pixels.

    Reference: Gong, Shi, Sha, Grauman, 2012.
    """
    return _tree("officecaltech10", "DOMAIN/CLASS/FILE", size, limit, root, progress)


def _tree(
    name: str,
    layout: str,
    size: int,
    limit: int | None,
    root: str | Path | None,
    progress: Progress | None,
) -> Dataset:
    folder = data_root(root) / name
    if not folder.is_dir():
        raise FileNotFoundError(f"{name} is not at {folder}: unpack it there as {layout}, or name another root")
    return imagefolder(path=folder, size=size, limit=limit, root=root, progress=progress)
