"""Suggestions for misspelt names."""

from __future__ import annotations

from pyrofl.names import nearest


def test_few_names_are_listed_in_full_and_of_many_the_nearest() -> None:
    assert nearest("fedagv", ["fedavg", "alone"]) == '; did you mean "fedavg"? known are alone, fedavg'
    said = nearest("client77", [f"client{i}" for i in range(400)])
    assert said.startswith('; did you mean "client77"? of the 400 known the nearest are client77, client')
    assert said.count(",") == 7
