"""Timing by interleaving: all contestants take turns in one process, and ratios are taken turn by turn."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

Contestant = Callable[[], int]  # runs once, returns how many units of work it did
console = Console()


def interleave(contestants: dict[str, Contestant], *, turns: int, what: str, quiet: bool) -> dict[str, list[float]]:
    """Seconds per unit of each contestant's turns, after one turn that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in track(range(turns + 1), description=what, disable=quiet, transient=True, console=console):
        for name, run in contestants.items():
            began = time.perf_counter()
            units = run()
            if turn:
                seconds[name].append((time.perf_counter() - began) / units)
    return seconds


def ratio(seconds: dict[str, list[float]], a: str, b: str) -> list[float]:
    """Turn by turn, the time of `a` over that of `b`."""
    return [x / y for x, y in zip(seconds[a], seconds[b])]


class Figures:
    """Named figures with their spread, and the bar that each should reach."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._rows: list[tuple[str, str, str, str]] = []

    def add(self, name: str, samples: list[float] | float, *, bar: float | None = None) -> None:
        """A figure by its median (or one value); `bar` is the most it may be."""
        samples = samples if isinstance(samples, list) else [samples]
        middle = statistics.median(samples)
        low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (middle,) * 3
        self.values[name] = middle
        wanted = "" if bar is None else f"<= {bar:g} {'reached' if middle <= bar else 'MISSED'}"
        self._rows.append((name, f"{middle:.4g}", f"{low:.4g} to {high:.4g}", wanted))

    def show(self, title: str) -> None:
        table = Table("figure", "median", "quartiles", "bar", title=title, title_justify="left")
        for row in self._rows:
            table.add_row(*row)
        console.print(table)


def options(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one flat JSON object, figure name to number")
    parser.add_argument("--turns", type=int, default=15, help="counted turns of each contestant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads")
    return parser


def finish(figures: Figures, title: str, *, as_json: bool) -> None:
    """Print the figures as a table or as JSON."""
    if as_json:
        print(json.dumps(figures.values))
        return
    figures.show(f"{title}; torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
