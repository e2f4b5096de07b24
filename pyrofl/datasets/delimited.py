"""Text tables: the separator and the decimal mark are found or asked for, and never guessed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

SEPARATORS = (",", ";", "\t", "|")
MISSING = frozenset({"", "na", "n/a", "nan", "null", ".", "?"})  # in small letters

_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")  # with either decimal mark
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_NUMBER_LIKE = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*")


@dataclass(frozen=True)
class Table:
    """The cells of one file, as text."""

    path: Path
    columns: dict[str, list[str]]  # by name, in the order of the file
    lines: list[int]  # line in the file of each row
    decimal: str


def read(path: Path, *, separator: str | None = None, decimal: str | None = None) -> Table:
    """A table with a header line; a byte-order mark is passed over.

    Without `separator` it is the only one of comma, semicolon, tab and bar by which all rows have equally
    many fields; without `decimal` it is a comma where numbers such as 1,5 occur and none with a point.
    Anything else is an error that shows the first lines.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from error
    separator = separator or _separator(path, text)
    found = list(_rows(path, text, separator))
    lines, rows = [line for line, _ in found], [row for _, row in found]
    if len(rows) < 2:
        raise ValueError(f"{path} has {len(rows)} lines: a header and at least one row are needed")
    header = rows[0]
    for row, line in zip(rows, lines):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} fields, and the header has {len(header)} (separator "
                f"{separator!r}): correct the line, or give the separator. {_head(text)}"
            )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has more than one column named {', '.join(map(repr, twice))}: rename them")
    columns = {name: [row[j] for row in rows[1:]] for j, name in enumerate(header)}
    if decimal is None:
        decimal = _decimal(path, columns, text)
    return Table(path, columns, lines[1:], decimal)


def numbers(cells: Sequence[str], decimal: str) -> np.ndarray:
    """float64, NaN where the cell is missing or no finite number."""
    out = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell.lower() in MISSING or "_" in cell or (decimal == "," and "." in cell):
            continue  # Python would read 1_000 as a number, and 1.234 may be a thousand here
        try:
            out[i] = float(cell.replace(",", ".") if decimal == "," else cell)
        except ValueError:
            continue
    return np.where(np.isfinite(out), out, np.nan)


def is_missing(cells: Sequence[str]) -> np.ndarray:
    return np.array([cell.lower() in MISSING for cell in cells], dtype=bool)


def number_like(cell: str) -> bool:
    """Digits and punctuation without a letter, such as 1.234,5 or 3+: perhaps a number, perhaps a name."""
    return _NUMBER_LIKE.fullmatch(cell) is not None


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line in the file, cells) of each line that is not empty."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}. {_head(text)}") from error


def _separator(path: Path, text: str) -> str:
    in_header, consistent = [], []
    for separator in SEPARATORS:
        widths = [len(row) for _, row in islice(_rows(path, text, separator), 200)]
        if widths and widths[0] > 1:
            in_header.append(separator)
            if len(set(widths)) == 1:
                consistent.append(separator)
    for found in (consistent, in_header):
        if len(found) == 1:
            return found[0]
    many = " or ".join(map(repr, in_header))
    reason = f"separator may be {many}" if in_header else "header has none of comma, semicolon, tab and bar"
    raise ValueError(f"{path}: the {reason}: give the separator. {_head(text)}")


def _decimal(path: Path, columns: dict[str, list[str]], text: str) -> str:
    comma, point, thousands = "", "", True
    for name, cells in columns.items():
        present = [c for c in cells if c.lower() not in MISSING]
        if not all(_NUMBER.fullmatch(c) or _THOUSANDS.fullmatch(c) for c in present):
            continue  # no column of numbers under either mark
        if with_comma := [c for c in present if "," in c]:
            comma = name
            thousands &= all(_THOUSANDS.fullmatch(c) for c in with_comma)
        if any("." in c for c in present):
            point = name
    if not comma:
        return "."
    if point:
        reason = f"column {comma!r} has numbers with a comma and column {point!r} numbers with a point"
    elif thousands:
        reason = f"numbers in column {comma!r} may have a decimal comma or thousands separators"
    else:
        return ","
    raise ValueError(f"{path}: {reason}: make them alike, or give decimal = ',' or '.'. {_head(text)}")


def _head(text: str) -> str:
    lines = text.splitlines()[:4]
    return "The file begins:\n" + "\n".join(f"  {line[:100]}" for line in lines)
