"""What a page is made of: sections of figures, tables and remarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """A table's cell: what is shown, and what it is sorted by (text, or a number; None comes last)."""

    text: str
    key: str | float | None = None

    @classmethod
    def number(cls, value: float | None, digits: int = 3, *, more: str = "", share: bool = False) -> Cell:
        """A number with `more` behind it; a share as per cent; a dash where there is none."""
        if value is None or math.isnan(value):
            return cls("–")
        if math.isinf(value):
            return cls("infinite", value)
        text = f"{100 * value:.1f}%" if share else f"{value:.{digits}f}"
        return cls(f"{text} {more}".strip(), value)


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by every column; the first column names the row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def ranks(self) -> list[list[int]]:
        """(rows, columns): the place of each cell in the ascending order of its column."""
        out = [[0] * len(self.columns) for _ in self.rows]
        for c in range(len(self.columns)):
            keys = [row[c].key for row in self.rows]
            order = sorted(range(len(keys)), key=lambda r: _sortable(keys[r]))
            for place, r in enumerate(order):
                out[r][c] = place
        return out


def _sortable(key: str | float | None) -> tuple[int, float, str]:
    if key is None:
        return 2, 0.0, ""
    return (1, 0.0, key) if isinstance(key, str) else (0, key, "")


@dataclass(frozen=True)
class Picture:
    """An `<svg>` element and the words under it."""

    svg: str
    caption: str
    wide: bool = False  # takes the whole width of the page


@dataclass
class Section:
    """One heading of the page. `missing` says what is left out, and why."""

    title: str
    text: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())
