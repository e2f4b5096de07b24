"""From one data set to a federation: server rows, partition, test rows, less data, rotation, noise, then scaling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import server_rows
from .data import Client, Data, Dataset, Federation, Rotation, Scaling
from .noise import Noise
from .partition import partition
from .random import fold, generator
from .suggest import choose


def federate(
    dataset: Dataset,
    *,
    key: Tensor,
    clients: int | None = None,
    split: Mapping[str, Any] | None = None,
    test: float = 0.2,
    fraction: float = 1.0,
    validation: float = 0.0,
    rotation: float | None = None,
    noise: Mapping[str, Any] | None = None,
    standardise: Literal["none", "client"] = "none",
    empty: Literal["keep", "refuse"] = "keep",
    unlabelled: int = 0,
    labelled: int = 0,
) -> Federation:
    """Deal a data set to clients.

    0. `unlabelled` and `labelled` rows at random go to the server, which keeps the inputs of the first and the second
       as they are. No client has them, for training or for testing.
    1. `split` says which client holds which rows; the default is by natural clients, or iid where there are
       none.
    2. Each client's rows are shuffled and round(test n) of them are its test rows: at least one and not all,
       where it has two rows or more.
    3. Of its training rows `fraction` stay, with the class proportions kept (`thin`).
    4. With `rotation` all images of client k of K are turned by k `rotation` / K degrees, k = 0, ..., K - 1.
       Rows that belong to no client stay upright.
    5. `noise`, the arguments of `Noise`, falls on the splits that it names.
    6. The last round(`validation` n) of a client's training rows, where it has two or more, are put aside: no
       model learns from them.
    7. With `standardise = "client"` each feature of a table gets mean 0 and standard deviation 1 over the
       client's own training rows; its other rows are scaled by the same numbers.

    Train rows come in random order, and targets as the likelihood scores them: int64 for categorical, else
    float32. Every step draws from its own stream of `key`. What was done is in the notes.
    """
    choose(standardise, ("none", "client"), "standardise")
    choose(empty, ("keep", "refuse"), "empty")
    if not 0 <= test < 1:
        raise ValueError(f"test is the part of each client's rows held out, 0 <= test < 1, got {test}")
    if not 0 <= validation < 1:
        raise ValueError(f"validation is the part of the training rows put aside, in [0, 1), got {validation}")
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is the part of the training rows that stays, in (0, 1], got {fraction}")
    if standardise == "client" and (dataset.x.dim() != 2 or dataset.test is not None):
        raise ValueError(
            "standardise = 'client' is for tables (N, features) without shared test rows, which belong to no "
            f"client; here x has shape {tuple(dataset.x.shape)}: use 'none'"
        )
    if rotation is not None and not 0 <= rotation <= 360:
        raise ValueError(f"rotation is the range of the clients' angles in degrees, in [0, 360], got {rotation}")
    if rotation and dataset.x.dim() != 4:
        raise ValueError(
            "rotation is for images (N, channels, height, width); here x has shape "
            f"{tuple(dataset.x.shape)}: use rotation = 0, or load images"
        )
    if split is None:
        split = {"kind": "iid" if dataset.site is None else "site"}
    total, taken = len(dataset.y), server_rows.take(dataset, unlabelled, labelled, fold(key, "server"))
    parts = partition(server_rows.without(dataset, taken), key=key, clients=clients, split=split)
    left = np.setdiff1d(np.arange(total), taken)
    parts = [left[part] for part in parts]
    names = dataset.sites if split["kind"] == "site" else [f"client{i}" for i in range(len(parts))]
    step = (rotation or 0.0) / max(len(parts), 1)
    disturb = Noise.of(noise) if noise is not None else None

    def finish(x: Tensor, y: Tensor, part: str, *path: int, turn: Rotation | None = None) -> Data:
        data = Data.of(x, y) if turn is None else turn.apply(Data.of(x, y))
        if disturb is not None and part in disturb.splits:
            data = disturb(data, len(dataset.classes), fold(key, "noise", part, *path))
        return data if dataset.likelihood == "categorical" else data._replace(y=data.y.float())

    people = []
    for i, (name, part) in enumerate(zip(names, parts)):
        train, held = _hold_out(part, test, generator(fold(key, "test", i)))
        train = train[thin(dataset.y.numpy()[train], fraction, generator(fold(key, "fraction", i)))]
        turn = Rotation(i * step) if rotation else None
        learn, valid = _put_aside(finish(dataset.x[train], dataset.y[train], "train", i, turn=turn), validation)
        client = Client(name, learn, finish(dataset.x[held], dataset.y[held], "test", i, turn=turn), valid, turn)
        people.append(_standardised(client) if standardise == "client" else client)
    common = finish(*dataset.test, "common") if dataset.test is not None else None
    kept = finish(dataset.x[taken], dataset.y[taken], "server")
    if standardise == "client":
        kept = _standardised(Client("(server)", kept, kept)).train
    x, y, _ = kept

    bare = [c.name for c in people if c.train.rows == 0]
    said = f"{len(bare)} of {len(people)} clients have no training rows: {_few(bare)}"
    if bare and empty == "refuse":
        raise ValueError(f"{said}; use fewer clients, another split, or empty = 'keep'")
    spare = len(left) - sum(map(len, parts))
    notes = {
        f"{unlabelled} rows without labels and {labelled} with are the server's own": len(taken) > 0,
        f"{len(left)} rows over {len(people)} clients by {_table(split)}": True,
        f"{spare} rows are left over and belong to no client": spare > 0,
        f"test rows: {test:.0%} of each client's rows, at random after the split": test > 0,
        f"training rows: {fraction:.0%} of each client's, class by class; test rows are all kept": fraction < 1,
        f"validation rows: {validation:.0%} of each client's training rows, of which no model learns": validation > 0,
        f"images of client k = 0, ..., {len(people) - 1} turned by {step:g} k degrees": step > 0,
        str(disturb): disturb is not None,
        "features standardised by each client's own training rows": standardise == "client",
        said: bool(bare),
    }
    said_once = (*dataset.notes, *(note for note, holds in notes.items() if holds))
    return Federation(
        tuple(people),
        dataset.likelihood,
        dataset.classes,
        common,
        said_once,
        x[:unlabelled] if unlabelled else None,
        Data.of(x[unlabelled:], y[unlabelled:]) if labelled else None,
    )


def thin(y: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of round(fraction n) rows (at least one), ascending, with the class proportions of y.

    Row j of the n_c rows of class c, in random order, sits at (j + u_c) / n_c with u_c ~ U(0, 1), and the
    rows that sit lowest stay. So each class keeps its fraction to within rounding, and the rows of a smaller
    fraction are among those of a larger one. Targets that are not classes are thinned at random.
    """
    group = y if y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)
    place = np.empty(len(y))
    for c in np.unique(group):
        rows = rng.permutation(np.flatnonzero(group == c))
        place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    keep = min(max(round(fraction * len(y)), 1), len(y))
    return np.sort(np.argsort(place, kind="stable")[:keep])


class Holding(NamedTuple):
    """One line of the table of a partition."""

    name: str
    train: int  # rows
    test: int  # rows
    classes: tuple[int, ...]  # training rows of each class, empty for regression


def counts(federation: Federation, *, split: Literal["train", "test", "all"] = "train") -> np.ndarray:
    """Rows of each class at each client, (clients, classes) int64."""
    choose(split, ("train", "test", "all"), "split")
    if not federation.classes:
        raise ValueError(f"a {federation.likelihood} federation has no classes to count")
    held = ("train", "test") if split == "all" else (split,)
    table = np.zeros((len(federation), len(federation.classes)), dtype=np.int64)
    for row, client in zip(table, federation.clients):
        for part in held:
            data: Data = getattr(client, part)
            row += np.bincount(data.y[: data.rows].long().numpy(), minlength=len(row))
    return table


def holdings(federation: Federation) -> list[Holding]:
    """The table of a partition: name, rows and class counts of each client, in order of the clients."""
    of_class = counts(federation).tolist() if federation.classes else [[] for _ in federation.clients]
    return [Holding(c.name, c.train.rows, c.test.rows, tuple(n)) for c, n in zip(federation.clients, of_class)]


def _hold_out(rows: np.ndarray, part: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(train, test) rows, both in random order."""
    rows = rng.permutation(rows)
    held = min(max(round(part * len(rows)), 1), max(len(rows) - 1, 0)) if part else 0
    return rows[held:], rows[:held]


def _put_aside(data: Data, part: float) -> tuple[Data, Data | None]:
    """(the rows to learn from, the last `part` of the rows): at least one each, where there are two or more."""
    if not part:
        return data, None
    held = min(max(round(part * data.rows), 1), max(data.rows - 1, 0))
    cut = data.rows - held
    return Data.of(data.x[:cut], data.y[:cut]), Data.of(data.x[cut:], data.y[cut:])


def _standardised(client: Client) -> Client:
    """Scaled by the client's training rows; a feature that is constant there is only centred."""
    if client.train.rows == 0:
        return client
    x = client.train.x.double()
    center, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-6 * (1 + center.abs()), spread, 1.0)

    scaling = Scaling(center, spread)
    return dataclasses.replace(
        client,
        train=scaling.apply(client.train),
        test=scaling.apply(client.test),
        valid=None if client.valid is None else scaling.apply(client.valid),
        transform=scaling,
    )


def _table(split: Mapping[str, Any]) -> str:
    options = ", ".join(f"{k} = {v}" for k, v in split.items() if k != "kind")
    return f"{split['kind']} ({options})" if options else str(split["kind"])


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
