"""Tables with natural clients: one file a site in a folder, or one file with a column that names the site."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from ..data import Dataset
from ..suggest import choose
from .columns import Columns, in_order
from .delimited import is_missing, read
from .files import find
from .labels import encode

Likelihood = Literal["categorical", "bernoulli", "gaussian", "poisson"]

_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
_MOST_LEVELS = 50  # more 0/1 columns than this from one column are asked for, not made by chance


def csv(
    *,
    path: str | Path,
    target: str,
    likelihood: Likelihood,
    site: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    classes: Sequence[str | int | float] | None = None,
    missing: Literal["error", "drop"] = "error",
    separator: str | None = None,
    decimal: Literal[".", ","] | None = None,
    root: str | Path | None = None,
) -> Dataset:
    """Rows of a text table with a header; x is (N, features) float32.

    `path` is a file, whose column `site` names the client of each row if there is one, or a folder with one
    file a site. `features` are column names; without them, all columns but target, site and row numbers. A
    column of text, or one named in `categorical`, becomes 0/1 columns, one a level after the first, by one
    encoder for all clients. A missing value, or text in a column of numbers, is an error unless `missing =
    "drop"` drops its rows. `classes` fixes the labels and their order; otherwise they are those found.
    """
    choose(likelihood, get_args(Likelihood), "likelihood")
    choose(missing, ("error", "drop"), "missing")
    where = find(path, root)
    if where.is_dir() and site is not None:
        raise ValueError(f"{where} is a folder, where each file is a site: leave out site = {site!r}")
    columns = Columns([read(file, separator=separator, decimal=decimal) for file in _files(where)])
    features, notes = _feature_names(columns, where.name, target, site, features, categorical)
    text = {c for c in features if c in categorical or columns.is_text(c)}
    as_text = text | {site} | ({target} if likelihood in ("categorical", "bernoulli") else set())
    bad = {
        name: is_missing(columns.cells(name)) if name in as_text else np.isnan(columns.numbers(name))
        for name in (*features, target, *([site] if site is not None else []))
    }
    rows = columns.usable(bad, drop=missing == "drop")
    everyone = columns.cells(site) if site is not None else columns.files() if where.is_dir() else None
    clients = [everyone[i] for i in rows] if everyone is not None else None
    sites = in_order(everyone or ())
    y, names = _target(columns, target, likelihood, rows, classes, clients)
    x, made = _features(columns, features, text, rows, categorical)
    lost = len(next(iter(bad.values()))) - len(rows)
    if lost:
        notes.append(f"{where.name}: {lost} of {lost + len(rows)} rows with missing values dropped")
    notes.append(f"{where.name}: features as float32: {', '.join(made)}")
    place = {name: k for k, name in enumerate(sites)}
    codes = torch.tensor([place[c] for c in clients]) if clients is not None else None
    return Dataset(torch.from_numpy(x), torch.from_numpy(y), likelihood, names, codes, tuple(sites), notes=tuple(notes))


def _files(where: Path) -> list[Path]:
    if not where.is_dir():
        return [where]
    files = sorted(p for p in where.iterdir() if p.suffix.lower() in _SUFFIXES and not p.name.startswith("."))
    if not files:
        raise FileNotFoundError(f"{where} holds no table ({', '.join(_SUFFIXES)})")
    return files


def _feature_names(
    columns: Columns,
    name: str,
    target: str,
    site: str | None,
    features: Sequence[str] | None,
    categorical: Sequence[str],
) -> tuple[list[str], list[str]]:
    """(feature columns, notes), after checking all names that were given."""
    special = [target] if site is None else [target, site]
    for column in (*special, *(features or ()), *categorical):
        choose(column, columns.names, f"column of {name}")
    if features is not None:
        chosen, notes = list(dict.fromkeys(features)), []
    else:
        numbering = [c for c in columns.names if c not in special and columns.counts_rows(c)]
        chosen = [c for c in columns.names if c not in (*special, *numbering)]
        notes = [f"{name}: left out, as they number the rows: {', '.join(numbering)}"] if numbering else []
    if both := [c for c in special if c in chosen]:
        raise ValueError(f"column {both[0]!r} is the target or the site and cannot be a feature too")
    if not chosen:
        raise ValueError(f"{name} has no feature columns beside the target and the site")
    if odd := [c for c in categorical if c not in chosen]:
        raise ValueError(f"categorical names {', '.join(map(repr, odd))}, which are no features")
    return chosen, notes


def _target(
    columns: Columns,
    target: str,
    likelihood: str,
    rows: np.ndarray,
    classes: Sequence[object] | None,
    clients: Sequence[str] | None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(y (N,), class names): int64 codes, or float32."""
    if likelihood in ("categorical", "bernoulli"):
        cells = columns.cells(target)
        y, names = encode([cells[i] for i in rows], column=target, classes=classes, clients=clients)
        if likelihood == "bernoulli" and len(names) != 2:
            raise ValueError(
                f"column {target!r} has {len(names)} labels ({', '.join(names[:5])}), bernoulli takes two: "
                "use categorical, or name both as classes"
            )
        return y, names
    if classes is not None:
        raise ValueError(f"classes have no meaning for likelihood {likelihood!r}: leave them out")
    y = columns.numbers(target)[rows]
    wrong = (y < 0) | (y != np.round(y))
    if likelihood == "poisson" and wrong.any():
        raise ValueError(f"poisson takes counts; column {target!r} holds {columns.places(rows[wrong], target)}")
    return y.astype(np.float32), ()


def _features(
    columns: Columns, features: Sequence[str], text: Collection[str], rows: np.ndarray, asked: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """(x (N, D) float32, what each of its columns is)."""
    parts: list[np.ndarray] = []
    made: list[str] = []
    for name in features:
        if name not in text:
            parts.append(columns.numbers(name)[rows])
            made.append(name)
            continue
        cells = np.array(columns.cells(name), dtype=object)[rows]
        levels = in_order(cells)
        if len(levels) > _MOST_LEVELS and name not in asked:
            raise ValueError(
                f"column {name!r} has {len(levels)} different texts, such as {levels[0]!r}: leave it out of "
                f"features, or name it in categorical to make {len(levels) - 1} columns of it"
            )
        parts += [cells == level for level in levels[1:]]
        made += [f"{name}={level}" for level in levels[1:]]
    if not parts:
        raise ValueError(f"the features {', '.join(features)} hold one text each: name others")
    return np.stack(parts, axis=1).astype(np.float32), made
