"""Small configurations as plain tables, and as files."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import tomli_w

from pyrofl.methods import METHODS

from .cases import NEEDS, SETTINGS

SERVER_ROWS = ("unlabelled", "labelled")  # what a method may ask the data for

SMALL: dict[str, Any] = {
    "seed": 1,
    "rounds": 3,
    "engine": "sequential",
    "data": {"name": "synthetic", "sites": 3, "rows": 12},
    "model": {"name": "support.nets:Dense"},
    "method": {"name": "bayfl", "epochs": 1.0, "size": 8, "optimizer": "sgd:0.1"},
    "evaluate": {"every": 2, "draws": 2, "final_draws": 3},
}


def small(**changes: Any) -> dict[str, Any]:
    """SMALL with whole tables replaced; None takes one out."""
    table = {**copy.deepcopy(SMALL), **changes}
    return {k: v for k, v in table.items() if v is not None}


def small_of(method: str, **arguments: Any) -> dict[str, Any]:
    """SMALL with another method, and the network it needs."""
    model = {"name": "support.nets:Dense", **NEEDS.get(method, {})}
    known = {f.name for f in dataclasses.fields(METHODS[method]) if f.init}
    epochs = int(SETTINGS.get(method, {}).get("epochs", 1))
    budget = {k: v for k, v in (("epochs", epochs), ("size", 8)) if k in known}
    data = {**SMALL["data"], **{k: 6 for k in SERVER_ROWS if k in known}}
    return small(method={"name": method, **budget, **arguments}, model=model, data=data)


def written(path: Path, table: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(table))
    return path
