"""Read a site table: one row a site, with an estimate and its standard error, or with counts.

Separator and decimal comma are recognised or refused, never guessed into other numbers; every error names the file,
the column and the rows, as they are numbered in the file.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyrofl.names import nearest

MISSING = frozenset({"", ".", "na", "n/a", "nan", "null", "none", "?", "-"})
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")  # which may be a decimal comma with three places


class TableError(ValueError):
    """The table cannot be read as asked; the message says where and what to do."""


@dataclass(frozen=True)
class Table:
    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]  # line number of each row in the file
    separator: str

    def head(self) -> str:
        """The header and first rows as they were understood."""
        return "\n".join("  " + " | ".join(row) for row in (self.columns, *self.rows[:3]))

    def text(self, column: str) -> list[str]:
        if column not in self.columns:
            raise TableError(f"{self.path}: no column {column!r}{nearest(column, self.columns)}")
        at = self.columns.index(column)
        return [row[at].strip() for row in self.rows]

    def without(self, dropped: set[int]) -> Table:
        """The table without some rows, given by position."""
        kept = [i for i in range(len(self.rows)) if i not in dropped]
        return Table(
            self.path,
            self.columns,
            tuple(self.rows[i] for i in kept),
            tuple(self.lines[i] for i in kept),
            self.separator,
        )

    def missing(self, columns: list[str]) -> set[int]:
        """Positions of the rows with a missing value in any of the columns."""
        return {i for column in columns for i, v in enumerate(self.text(column)) if v.lower() in MISSING}

    def decimal_commas(self) -> bool:
        """Whether some value of the table has a comma that cannot stand between thousands."""
        fields = (field.strip() for row in self.rows for field in row)
        return any(DECIMAL_COMMA.fullmatch(v) and not THOUSANDS.fullmatch(v) for v in fields)

    def numbers(self, column: str) -> list[float]:
        """The column as numbers; `inf` is one, a missing value is not."""
        values = self.text(column)
        commas = [i for i, v in enumerate(values) if DECIMAL_COMMA.fullmatch(v)]
        grouped = [i for i, v in enumerate(values) if THOUSANDS.fullmatch(v)]
        if grouped and not self.decimal_commas():
            first = grouped[0]
            raise TableError(
                f"{self.path}: column {column!r} holds {values[first]!r}, row {self.lines[first]}: thousands or "
                "decimals? Write thousands without a separator, decimals with a point"
            )
        if commas and any("." in v and v.lower() not in MISSING for v in values):
            raise TableError(
                f"{self.path}: column {column!r} mixes decimal commas and points, first at row "
                f"{self.lines[commas[0]]}; write one kind. Read as:\n{self.head()}"
            )
        out, bad = [], []
        for i, value in enumerate(values):
            try:
                number = float(value.replace(",", ".") if commas else value)
            except ValueError:
                number = math.nan
            if math.isnan(number):
                bad.append(i)
            out.append(number)
        if bad:
            rows = ", ".join(str(self.lines[i]) for i in bad[:8]) + (" ..." if len(bad) > 8 else "")
            gone = [i for i in bad if values[i].lower() in MISSING]
            advice = " --drop-missing leaves rows with missing values out." if gone else ""
            example = f"{values[bad[0]]!r}" if values[bad[0]] else "an empty field"
            raise TableError(
                f"{self.path}: column {column!r} holds {example} where a number is needed, row {rows}.{advice}"
            )
        return out


def read_table(path: str | Path) -> Table:
    """A CSV file with a header: comma, semicolon, tab or bar between fields, with or without a byte-order mark."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise TableError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise TableError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as CSV UTF-8"
        ) from error
    if not text.strip():
        raise TableError(f"{path}: the file is empty")
    separator = _separator(path, text)
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    header, rows, lines = None, [], []
    for row in reader:
        if not any(field.strip() for field in row):
            continue
        if header is None:
            header = tuple(field.strip() for field in row)
            continue
        rows.append(tuple(row))
        lines.append(reader.line_num)
    assert header is not None
    table = Table(path, header, tuple(rows), tuple(lines), separator)
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise TableError(f"{path}: two columns are called {twice[0]!r}; rename one")
    odd = [i for i, row in enumerate(rows) if len(row) != len(header)]
    if odd:
        raise TableError(
            f"{path}: row {lines[odd[0]]} has {len(rows[odd[0]])} fields, the header {len(header)}; with decimal "
            f"commas the fields need another separator or quotes. Read with {separator!r} between:\n{table.head()}"
        )
    if not rows:
        raise TableError(f"{path}: a header ({', '.join(header)}) and no rows")
    return table


def _separator(path: Path, text: str) -> str:
    """The separator of the header; where it holds several, the one that gives all lines the same number of fields."""
    sample = text[: 1 << 16].splitlines()[:50]
    found = [s for s in ";\t|," if s in sample[0]]
    if not found:
        return ","  # one column
    for separator in found:
        widths = {len(row) for row in csv.reader(sample, delimiter=separator, skipinitialspace=True) if row}
        if len(widths) == 1:
            return separator
    return found[0]
