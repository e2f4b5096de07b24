"""Refusing a value that is none of a few."""

from __future__ import annotations

from collections.abc import Iterable

from .names import nearest


def choose(name: object, options: Iterable[str], what: str) -> None:
    """Raise unless `name` is one of `options`, naming them and the nearest."""
    options = list(options)
    if name not in options:
        raise ValueError(f"unknown {what} {name!r}{nearest(str(name), options)}")
