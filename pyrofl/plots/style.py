"""How all figures look, and how they are written: no pyplot, no process-wide settings."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..store import write

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008): told apart under all common colour-vision deficiencies; without their pale yellow."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))
MARKERS = "osD^v<>"
QUIET = "#666666"  # axes' small print
PALE = "#E8E8E8"  # "nothing here"
ALARM = "#D55E00"  # the worst client

_ROW = 0.26  # inches of a client's row while there is room
_TALLEST = 9.0  # inches of all rows together
_LABEL = 0.15  # inches between two names


def look(position: int) -> dict[str, Any]:
    """Colour, dash and marker of the line at a position: all differ, so that print in grey stays readable."""
    return {
        "color": PALETTE[position % len(PALETTE)],
        "linestyle": DASHES[position // len(PALETTE) % len(DASHES)],
        "marker": MARKERS[position % len(MARKERS)],
        "markersize": 4,
    }


def plain(name: object, *, width: int = 28) -> str:
    """A name as literal text: no mathematics between dollar signs, shown in legends, and not too long."""
    text = " ".join(str(name).split())
    text = text if len(text) <= width else text[: width - 1] + "…"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels that start with "_"


def figure(width: float, height: float) -> Figure:
    """A figure of the given size in inches that no window or global list knows of."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> Axes:
    """Light axes: two spines, a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(colors=QUIET, labelcolor="black", labelsize=9)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#DDDDDD", linewidth=0.6)
    return axes


def rows_height(rows: int) -> float:
    """Inches for so many rows, one a client: bounded, so that 200 clients still fit a page."""
    return min(max(rows, 3) * _ROW, _TALLEST)


def name_rows(axes: Axes, names: Sequence[object], *, height: float | None = None) -> None:
    """Clients' names beside the rows 0..C-1, the first on top; one in 2, 5, 10 ... where all have no room.

    `height` of all rows in inches is `rows_height` unless given.
    """
    count = len(names)
    room = (rows_height(count) if height is None else height) / _LABEL  # how many names fit
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if count / s <= room), 1000)
    places = range(0, count, step)
    axes.set_yticks(list(places), [plain(names[i]) for i in places], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(count - 0.5, -0.5)
    if step > 1:
        axes.set_ylabel(f"{count} clients, one in {step} named", fontsize=9)


def in_order(names: Iterable[object]) -> list[object]:
    """Unique names in the order people count: client-2 before client-10."""

    def key(name: object) -> list[tuple[int, float, str]]:
        parts = re.split(r"(\d+)", str(name))
        return [(0, float(p), "") if p.isdigit() else (1, 0.0, p) for p in parts if p]

    return sorted(set(names), key=key)


def save(drawn: Figure, path: str | os.PathLike[str], *, dpi: int = 150) -> Path:
    """Write a figure as the suffix says (png, svg, pdf): the old file stands until the new one is whole."""
    target = Path(path)
    kind = target.suffix.lstrip(".").lower()
    known = drawn.canvas.get_supported_filetypes()
    if kind not in known:
        raise ValueError(f"{target}: cannot draw a {kind or 'file without suffix'!r}; use one of {', '.join(known)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    drawn.savefig(content, format=kind, dpi=dpi)
    write(target, content.getvalue())
    return target
