"""Columns of several text tables, one below the other, and what is wrong with their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .delimited import Table, is_missing, number_like, numbers


class Columns:
    """The common columns of one table a file; rows are numbered through all files."""

    def __init__(self, tables: Sequence[Table]):
        self.tables = tables
        self.names = list(tables[0].columns)
        for table in tables[1:]:
            if odd := set(self.names) ^ set(table.columns):
                raise ValueError(
                    f"{tables[0].path.name} and {table.path.name} differ in the columns "
                    f"{', '.join(map(repr, sorted(odd)))}: all files must have the same"
                )

    def cells(self, name: str) -> list[str]:
        return [cell for table in self.tables for cell in table.columns[name]]

    def numbers(self, name: str) -> np.ndarray:
        """(N,) float64, NaN where the cell is missing or no number."""
        return np.concatenate([numbers(t.columns[name], t.decimal) for t in self.tables])

    def files(self) -> list[str]:
        """Name of the file of each row, without its ending."""
        return [table.path.stem for table in self.tables for _ in table.lines]

    def counts_rows(self, name: str) -> bool:
        """Whether the column only numbers the rows of each file, from 0 or 1."""
        columns = [numbers(t.columns[name], t.decimal) for t in self.tables]
        return max(map(len, columns)) > 2 and any(
            all(np.array_equal(c, np.arange(len(c)) + start) for c in columns) for start in (0, 1)
        )

    def is_text(self, name: str) -> bool:
        """Whether no cell could be meant as a number; text mixed with what looks like numbers is an error.

        A column in which at least half of the cells are numbers is a column of numbers.
        """
        cells = self.cells(name)
        there = ~is_missing(cells)
        good = ~np.isnan(self.numbers(name))
        like = np.array([number_like(cell) for cell in cells], dtype=bool) & there
        if not (good | like).any():
            return bool(there.any())
        if 2 * good.sum() < there.sum():
            raise ValueError(
                f"column {name!r} mixes text with what looks like numbers: "
                f"{self.places(np.flatnonzero(there & ~good), name)}; correct it, or name it in categorical"
            )
        return False

    def places(self, rows: np.ndarray, column: str) -> str:
        """The first of the given rows: file, line and cell."""
        where = [(table.path.name, line) for table in self.tables for line in table.lines]
        cells = self.cells(column)
        shown = ", ".join(f"{where[i][0]} line {where[i][1]} ({cells[i]!r})" for i in rows[:5])
        return shown + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")

    def usable(self, bad: dict[str, np.ndarray], *, drop: bool) -> np.ndarray:
        """Rows that are bad in no column; a bad row is an error unless `drop`, and then some must be left."""
        lost = np.any(list(bad.values()), axis=0)
        faults = "\n".join(
            f"  column {name!r}: {self.places(np.flatnonzero(rows), name)}" for name, rows in bad.items() if rows.any()
        )
        if lost.any() and not drop:
            raise ValueError(
                f"missing values, or text in a column of numbers:\n{faults}\ncorrect them, name text columns "
                "in categorical, or drop these rows with missing = 'drop'"
            )
        if lost.all():
            raise ValueError(f"every row has a missing value:\n{faults}\nleave such columns out of features")
        return np.flatnonzero(~lost)


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once: by value if all are numbers, else alphabetically."""
    found = sorted(set(names))
    by_value: Callable[[int], float] = list(numbers(found, ".")).__getitem__
    if np.isnan(numbers(found, ".")).any():
        return found
    return [found[i] for i in sorted(range(len(found)), key=by_value)]
