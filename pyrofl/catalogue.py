"""What there is to choose from, in words: the docstrings and declarations of the methods, as a table and as a page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .config import defaults
from .methods.fedavg import FedAvg
from .optim import Optimizer, render

# fields that a run fills in: no keys of a configuration
GIVEN = ("program", "rounds", "clients", "participation", "seed", "unlabelled", "labelled")
_FAMILIES = {"other": "any other autoguide"}
_HEAD = """\
# Methods

The value of `method.name` in a configuration. A method is a frozen dataclass; its fields are the keys of its table
([configuration.md](configuration.md)), and [extending.md](extending.md) shows how to write another one. This page is
printed by the second command, from the docstrings; the first prints the short form.

```bash
pyrofl list methods
pyrofl list methods --markdown
```

In the formulas x is the server's model and y_k what client k makes of it with its n_k rows; mean_k counts clients
alike, f_k is client k's mean loss.
"""


@dataclass(frozen=True)
class Entry:
    """One method, described."""

    name: str
    summary: str
    text: tuple[str, ...]  # paragraphs
    travels: str
    stays: str
    guides: tuple[str, ...]  # the default first
    prior: str
    keys: Mapping[str, Any]  # key -> default
    reference: str


def first_line(thing: Callable[..., Any]) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def describe(name: str, method: type[FedAvg]) -> Entry:
    """A method's docstring, taken apart at its paragraphs, with what its class declares."""
    first, *rest = (re.sub(r"\s*\n\s*", " ", p.strip()) for p in re.split(r"\n\s*\n", inspect.getdoc(method) or ""))
    references = [p.removeprefix("Reference: ") for p in rest if p.startswith("Reference: ")]
    return Entry(
        name=name,
        summary=first,
        text=tuple(p for p in rest if not p.startswith("Reference: ")),
        travels=method.travels,
        stays=method.stays,
        guides=tuple(sorted((_FAMILIES.get(g, g) for g in method.guides), key=lambda g: g != method.guide)),
        prior=method.prior,
        keys=defaults(method, {}, dict.fromkeys(GIVEN)),
        reference=" ".join(references),
    )


def markdown(methods: Mapping[str, type[FedAvg]]) -> str:
    """All methods as one page: a table, then a section for each."""
    entries = [describe(name, method) for name, method in methods.items()]
    cells = [(f"[`{e.name}`](#{e.name})", e.summary, e.travels, e.stays) for e in entries]
    rows = [" | ".join(text.replace("|", "\\|") for text in row) for row in cells]
    head = ["| name | what it is | what travels | what stays |", "|---|---|---|---|"]
    table = "\n".join([*head, *(f"| {row} |" for row in rows)])
    return "\n".join([_HEAD, table, "", *map(_section, entries)])


def _section(e: Entry) -> str:
    keys = ", ".join(f"`{k} = {_value(v)}`" for k, v in e.keys.items() if v is not None)
    unset = ", ".join(f"`{k}`" for k, v in e.keys.items() if v is None)
    items = {
        "travels": e.travels,
        "stays at the client": e.stays,
        "guides": ", ".join(g if " " in g else f"`{g}`" for g in e.guides),
        "prior": f"`{e.prior}` unless another is named",
        "keys": keys + (f"; not set: {unset}" if unset else ""),
        "reference": e.reference,
    }
    lines = [f"- {what}: {text}" for what, text in items.items() if text]
    return "\n".join([f"## {e.name}", "", *(f"{p}\n" for p in (e.summary, *e.text)), *lines, ""])


def _value(value: Any) -> str:
    """A default as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Optimizer):
        return f'"{render(value)}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
