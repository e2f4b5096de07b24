"""Numbers that no run could use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pyrofl.limits import at_least, between, positive

INF, NAN = float("inf"), float("nan")


@dataclass
class Table:
    value: Any


@pytest.mark.parametrize("value", [3, 3.5, 1e300])
def test_what_is_allowed_passes(value: float) -> None:
    at_least("method", Table(value), 3, "value")
    positive("method", Table(value), "value")
    between("method", Table(value), 3, INF, "value")


def test_nothing_given_is_allowed_where_it_may_be_left_out() -> None:
    at_least("method", Table(None), 1, "value")
    positive("method", Table(None), "value")


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (0, "", r"method\.value must be at least 1, got 0$"),
        (0, "step", r"method\.value must be at least 1 step, got 0$"),
        (INF, "step", r"method\.value must be at least 1 step and finite, got inf$"),
        (NAN, "", r"method\.value must be at least 1, got nan$"),
    ],
)
def test_the_least_is_named(value: float, unit: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        at_least("method", Table(value), 1, "value", unit=unit)


@pytest.mark.parametrize("value", [-0.1, 1.1, NAN])
def test_both_ends_are_named(value: float) -> None:
    with pytest.raises(ValueError, match=rf"method\.value must be from 0 to 1, got {value}"):
        between("method", Table(value), 0, 1, "value")
