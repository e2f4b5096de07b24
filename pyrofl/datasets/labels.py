"""One encoder of labels for all clients: whatever labels are called, codes are 0..C-1 and names are kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np


def encode(
    values: Iterable[object],
    *,
    column: str = "y",
    classes: Sequence[object] | None = None,
    clients: Sequence[str] | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(codes (N,) int64, class names in the order of their codes).

    Numbers are ordered by value and named without needless digits, so that 1, 1.0 and "1" are one class; text
    is ordered alphabetically. With declared `classes` their order is kept and any other label is an error;
    `clients` names the client of each row for it.
    """
    values = list(values)
    named = list(classes) if classes is not None else []
    everything = [_plain(v, column) for v in (*named, *values)]
    numbers = [_number(v) for v in everything]
    numeric = all(n is not None for n in numbers)
    names = [f"{n:.15g}" for n in numbers] if numeric else everything
    declared, found = names[: len(named)], names[len(named) :]
    if classes is None:
        order = sorted(set(found), key=float if numeric else str)
    else:
        order = declared
        _refuse_strangers(found, declared, column, clients)
        if len(set(declared)) < len(declared):
            raise ValueError(f"classes of column {column!r} name one class twice: {', '.join(declared)}")
    code = {name: c for c, name in enumerate(order)}
    return np.array([code[name] for name in found], dtype=np.int64), tuple(order)


def first_of_each(labels: Iterable[Hashable], limit: int | None) -> list[int]:
    """Positions of the first `limit` rows of every label, in order; all rows without a limit."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is a number of rows of each class and must be at least 1, got {limit}")
    seen: Counter[Hashable] = Counter()
    kept = []
    for i, label in enumerate(labels):
        seen[label] += 1
        if limit is None or seen[label] <= limit:
            kept.append(i)
    return kept


def _plain(value: object, column: str) -> str:
    text = str(value).strip()
    if value is None or text == "" or (isinstance(value, float | np.floating) and math.isnan(value)):
        raise ValueError(f"column {column!r} has a missing label: drop its rows first")
    return text


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number + 0.0 if math.isfinite(number) else None  # + 0.0: -0 is 0


def _refuse_strangers(
    found: Sequence[str], declared: Sequence[str], column: str, clients: Sequence[str] | None
) -> None:
    known = set(declared)
    strange = [i for i, name in enumerate(found) if name not in known]
    if not strange:
        return
    by_client: dict[str, list[str]] = {}
    for i in strange:
        seen = by_client.setdefault(f"client {clients[i]!r}" if clients is not None else "the data", [])
        if found[i] not in seen:
            seen.append(found[i])
    places = "; ".join(f"{who}: {', '.join(map(repr, seen[:5]))}" for who, seen in list(by_client.items())[:5])
    raise ValueError(
        f"column {column!r} holds labels that are not among the classes {', '.join(declared)} "
        f"in {len(strange)} rows ({places}): correct them, or add them to classes"
    )
