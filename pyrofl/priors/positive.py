"""Refusing hyper-parameters that are not positive numbers."""

from __future__ import annotations

import math


def positive(prior: str, **values: float) -> None:
    """Raise unless every named value is a positive, finite number."""
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"prior.{name} of the {prior} prior must be a number, got {value!r}")
        if not 0 < value < math.inf:
            raise ValueError(f"prior.{name} of the {prior} prior must be positive and finite, got {value}")
