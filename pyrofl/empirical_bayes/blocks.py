"""Work over blocks of sites that fit the processor's cache, on a few threads, added up in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Run = Callable[[Callable[[slice], T], int, int], list[T]]
ENTRIES = 1 << 17  # numbers in one block: one mebibyte of float64


def split(rows: int, columns: int) -> list[slice]:
    """Slices of `rows` such that a block of `columns` numbers a row stays near one mebibyte."""
    step = max(1, min(rows, ENTRIES // max(columns, 1)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@contextmanager
def threads(workers: int | None) -> Iterator[Callable[[Callable[[slice], T], int, int], list[T]]]:
    """A function `run(job, rows, columns)` that returns the results of all blocks, in order.

    The blocks do not depend on `workers` (None: as many as there are processors), so neither does any sum of them.
    """
    count = workers or os.cpu_count() or 1
    if count == 1:
        yield lambda job, rows, columns: [job(block) for block in split(rows, columns)]
        return
    with ThreadPoolExecutor(count) as pool:
        yield lambda job, rows, columns: list(pool.map(job, split(rows, columns)))
