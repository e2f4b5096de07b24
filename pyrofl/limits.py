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
