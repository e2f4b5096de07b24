"""Images in folders: NAME/{train,test}/CLASS/FILE, or DOMAIN/CLASS/FILE with one natural client a domain."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from ..data import Dataset
from .files import Progress, cached, data_root, find, fingerprint, pixels
from .images import decode, scan
from .labels import encode, first_of_each

_WORTH_KEEPING = 1000  # files; fewer are decoded in a moment


def imagefolder(
    *,
    path: str | Path,
    size: int | None = None,
    limit: int | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Labelled images from a folder tree; x is (N, channels, height, width) float32 in [0, 1].

    `train` and `test` folders give training rows and test rows shared by all clients. Other folders that hold
    class folders are domains, the natural clients. Class folders alone are one set. `size` resizes images to
    size x size; `limit` takes the first files of each class (and split or domain). Sets of 1000 files and
    more are kept, decoded, under ROOT/.cache.
    """
    folder = find(path, root)
    found = scan(folder)
    groups = list(dict.fromkeys(p.group for p in found))
    notes = []
    if "train" in groups:
        extra = [g for g in groups if g not in ("train", "test")]
        if extra:
            notes.append(f"{folder.name}: folders beside train and test are not read: {', '.join(extra)}")
        groups = [g for g in groups if g in ("train", "test")]
    elif "test" in groups:
        raise ValueError(f"{folder} has a folder test and none named train")
    if limit is not None:
        notes.append(f"{folder.name}: the first {limit} images of each class")
    found = [p for p in found if p.group in groups]
    kept = [found[i] for i in first_of_each([p[1:] for p in found], limit)]

    paths = [p.path for p in kept]
    file = data_root(root) / ".cache" / f"{folder.name}-{fingerprint(paths, size)}.safetensors"
    make = partial(decode, paths, size=size, progress=progress, what=folder.name)
    x = pixels(cached(file, make) if len(paths) >= _WORTH_KEEPING else make())
    which = torch.tensor([groups.index(p.group) for p in kept])
    codes, classes = encode([p.label for p in kept], column="class folder")
    y = torch.from_numpy(codes)
    if "train" not in groups:
        site = which if groups != [""] else None
        sites = tuple(groups) if site is not None else ()
        return Dataset(x, y, "categorical", classes, site, sites, notes=tuple(notes))

    train = which == groups.index("train")
    names = {g: {p.label for p in kept if p.group == g} for g in groups}
    if odd := names.get("test", set()) - names["train"]:
        raise ValueError(f"{folder}/test has class folders that train has not: {', '.join(sorted(odd))}")
    test = (x[~train], y[~train]) if not train.all() else None
    return Dataset(x[train], y[train], "categorical", classes, test=test, notes=tuple(notes))
