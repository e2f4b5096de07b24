"""What a study file says: arms on one base run, in one setting or several."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

from pyrofl import Config, federate
from pyrofl.config import ConfigError, config_of, override
from pyrofl.metrics.score import SCORES
from pyrofl.names import nearest

Table = dict[str, Any]
NEEDED = ("title", "base", "arms")
KNOWN = (*NEEDED, "against", "seeds", "score", "cells", "scales")
OF_SCALE = ("seeds", "set", "only")
TUNE_SEED = 0  # in no table
METRICS = (*SCORES, "worst")
MODELS = ("personal", "global", "common", "balanced", "matched")  # whose scores a study can be ordered by


@dataclass(frozen=True)
class Cell:
    """A setting in which arms are compared: its place in the figure, and what the paper found there, in percent."""

    name: str = ""
    panel: str = ""
    at: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    tuned_in: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arm:
    """A contestant in a cell: its run, and the candidates of the one key that is tuned for it."""

    kind: str
    table: Table
    key: str | None = None
    candidates: tuple[Any, ...] = ()
    cell: Cell = Cell()
    tuned_as: Arm | None = None  # whose choice is taken
    first: Arm | None = None  # from whose model it starts

    @property
    def name(self) -> str:
        return f"{self.cell.name}/{self.kind}" if self.cell.name else self.kind

    def untuned(self) -> Arm:
        """The arm with the first of its candidates alone."""
        first, tuned_as = (None if a is None else a.untuned() for a in (self.first, self.tuned_as))
        return replace(self, candidates=self.candidates[:1], first=first, tuned_as=tuned_as)

    def config(self, seed: int, value: Any = None) -> Config:
        """The run at a seed, with `value` for what is tuned."""
        table = copy.deepcopy(self.table)
        if self.key is not None and value is not None:
            at = table
            *path, last = self.key.split(".")
            for key in path:
                at = at.setdefault(key, {})
            at[last] = value
        return config_of({**table, "seed": seed}, f"arm {self.name}")

    @property
    def test(self) -> float:
        """The share of test rows."""
        return float(self.table["data"].get("test", signature(federate).parameters["test"].default))


@dataclass(frozen=True)
class Study:
    """Arms on one base run, in one cell or several."""

    title: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    against: str
    score: str = ""  # that orders the arms; default: the first that there is

    @classmethod
    def read(cls, path: Path, scale: str = "cpu", less: Sequence[str] = ()) -> Study:
        """The study of a file at a scale; `less` are further `key=value` settings of every cell's base run."""
        table = _table(path)
        scales = table.get("scales", {})
        if scale != "cpu" and scale not in scales:
            raise ConfigError(
                f"{path}: there is no scale {scale!r}; it has {', '.join(dict.fromkeys(['cpu', *scales]))}"
            )
        chosen = scales.get(scale, {})
        settings = (*chosen.get("set", ()), *less)
        arms: dict[str, Arm] = {}
        for cell, tables in _cells(path, table):
            base = merged(table["base"], tables)
            for text in settings:
                override(base, text)
            kinds = cell.only or tuple(table["arms"])
            here = {kind: _arm(path, kind, table["arms"][kind], base, cell) for kind in kinds}
            if cell.tuned_in:
                here = {k: replace(arm, tuned_as=arms.get(f"{cell.tuned_in}/{k}")) for k, arm in here.items()}
            for kind, arm in here.items():
                if (first := table["arms"][kind].get("from")) is not None:
                    arm = replace(arm, first=_first(path, arm, first, here, table["arms"]))
                arms[arm.name] = arm
        seeds = tuple(chosen.get("seeds", table.get("seeds", (1, 2, 3))))
        against = table.get("against", next(iter(table["arms"])))
        if against not in table["arms"]:
            raise ConfigError(f"{path}: against = {against!r} is no arm{nearest(against, table['arms'])}")
        for arm in arms.values():
            if not 0 < arm.test < 1:
                raise ConfigError(
                    f"{path}: arm {arm.name}: data.test = {arm.test}: a study needs 0 < data.test < 1 to score"
                )
        _check(path, seeds, table.get("score", ""))
        study = cls(table["title"], tuple(arms.values()), seeds, against, table.get("score", ""))
        return study.only(chosen.get("only", ()))

    def untuned(self) -> Study:
        """The study in which nothing is chosen: every arm, and what it starts from, takes its first candidate."""
        return replace(self, arms=tuple(arm.untuned() for arm in self.arms))

    def only(self, names: Sequence[str]) -> Study:
        """The study of some arms: CELL/ARM, or all of an ARM's or of a CELL's."""
        known = {n for a in self.arms for n in (a.name, a.kind, a.cell.name) if n}
        for name in names:
            if name not in known:
                raise ConfigError(f"there is no arm {name!r}{nearest(name, known)}")
        wanted = [a for a in self.arms if {a.name, a.kind, a.cell.name} & set(names)]
        needed = {a.first.name for a in wanted if a.first is not None}
        kept = tuple(a for a in self.arms if a in wanted or a.name in needed)
        return replace(self, arms=kept) if names else self


def _table(path: Path) -> Table:
    """What a study file says, with the keys that a study has."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not a study file: {error}") from error
    if lacks := [key for key in NEEDED if key not in table]:
        raise ConfigError(f"{path}: not a study file: it has no {' and no '.join(map(repr, lacks))}")
    parts = {"": (table, KNOWN), **{f" of scale {k!r}": (v, OF_SCALE) for k, v in table.get("scales", {}).items()}}
    for where, (part, known) in parts.items():
        for key in part:
            if key not in known:
                raise ConfigError(f"{path}: unknown key {key!r}{where}{nearest(key, known)}")
    return table


def _check(path: Path, seeds: Sequence[Any], score: str) -> None:
    """Refuse seeds and a score that would only be found wanting when all runs are done."""
    if not seeds or len(set(seeds)) < len(seeds) or TUNE_SEED in seeds:
        raise ConfigError(
            f"{path}: seeds = {list(seeds)}: a study needs some, each once, and not {TUNE_SEED}, which tunes"
        )
    model, _, metric = score.partition("/")
    if score and (model not in MODELS or metric not in METRICS):
        known = [f"{m}/{name}" for m in MODELS for name in METRICS]
        raise ConfigError(f"{path}: unknown score {score!r}{nearest(score, known)}")


def _cells(path: Path, table: Table) -> list[tuple[Cell, Table]]:
    """The cells of a file, each with the tables that it changes; a file without has one, of no name."""
    cells: list[tuple[Cell, Table]] = []
    for name, own in table.get("cells", {"": {}}).items():
        tables = dict(own)
        says = {k: tables.pop(k) for k in ("panel", "at", "paper", "tuned_in", "only") if k in tables}
        cell = Cell(name, **{**says, "only": tuple(says.get("only", ()))})
        for arm in (*cell.paper, *cell.only):
            if arm not in table["arms"]:
                raise ConfigError(f"{path}: cell {name!r}: there is no arm {arm!r}{nearest(arm, table['arms'])}")
        earlier = [c.name for c, _ in cells]
        if cell.tuned_in and cell.tuned_in not in earlier:
            raise ConfigError(f"{path}: cell {name!r} is tuned in {cell.tuned_in!r}, which is no cell before it")
        cells.append((cell, tables))
    return cells


def _arm(path: Path, kind: str, own: Table, base: Table, cell: Cell) -> Arm:
    tables = dict(own)
    tune = tables.pop("tune", {})
    tables.pop("from", None)
    if len(tune) > 1:
        raise ConfigError(f"{path}: arm {kind!r} tunes {len(tune)} keys; every arm tunes one, so that all have as much")
    ((key, values),) = tune.items() or ((None, ()),)
    return Arm(kind, merged(base, tables), key, tuple(values), cell)


def _first(path: Path, arm: Arm, kind: str, here: Mapping[str, Arm], tables: Table) -> Arm:
    """The arm of the same cell from whose model an arm starts."""
    if kind not in here:
        raise ConfigError(f"{path}: arm {arm.name!r} starts from one: there is no arm {kind!r}{nearest(kind, here)}")
    if "from" in tables[kind]:
        raise ConfigError(f"{path}: arm {arm.name!r} starts from {kind!r}: name an arm that starts anew")
    return here[kind]


def merged(base: Table, more: Mapping[str, Any]) -> Table:
    """`base` with the values of `more` in place of its own, table by table; a new `name` or `kind` replaces its
    whole table, except for the budget of a method."""
    out = copy.deepcopy(base)
    for key, value in more.items():
        old = out.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            same = all(value.get(k, old.get(k)) == old.get(k) for k in ("name", "kind"))
            keep = old if key == "method" or same else {}
            out[key] = merged(keep, value)
        else:
            out[key] = copy.deepcopy(value)
    return out
