"""Refusing numbers of a configuration's table that no run could use."""

from __future__ import annotations

import math

EPOCHS = 1e6  # the most in one go: beyond it a mistyped exponent is likelier than patience


def positive(where: str, table: object, *names: str, most: float = math.inf) -> None:
    """Raise unless every named field of `table` is None or a positive, finite number of at most `most`."""
    for name in names:
        value = getattr(table, name)
        if value is None or (0 < value <= most and value < math.inf):
            continue
        if 0 < value < math.inf:
            raise ValueError(f"{where}.{name} must be at most {most:g}, got {value}")
        raise ValueError(f"{where}.{name} must be positive{'' if value <= 0 else ' and finite'}, got {value}")


def between(where: str, table: object, low: float, high: float, *names: str) -> None:
    """Raise unless every named field of `table` is a number from `low` to `high`."""
    for name in names:
        if not low <= (value := getattr(table, name)) <= high:
            raise ValueError(f"{where}.{name} must be from {low} to {high}, got {value}")


def inside(where: str, table: object, low: float, high: float, *names: str) -> None:
    """Raise unless every named field of `table` is a number above `low` and below `high`."""
    for name in names:
        if not low < (value := getattr(table, name)) < high:
            raise ValueError(f"{where}.{name} must be between {low} and {high}, got {value}")


def at_least(where: str, table: object, least: float, *names: str, unit: str = "") -> None:
    """Raise unless every named field of `table` is None or a finite number from `least` on; `unit` is a word for it."""
    for name in names:
        value = getattr(table, name)
        if value is not None and not least <= value < math.inf:
            also = f" {unit}" * bool(unit) + " and finite" * (value == math.inf)
            raise ValueError(f"{where}.{name} must be at least {least}{also}, got {value}")
