"""Suggestions for misspelt names, in one wording everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 50  # names that are listed in full
_FEW = 8  # else as many of the nearest


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean "x"? known are ...' for an error message, the suggestion only where one is near.

    Of many names only the nearest are listed.
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ";"
    if len(known) > _MOST:
        some = difflib.get_close_matches(name, known, n=_FEW, cutoff=0.0)
        return f"{hint} of the {len(known)} known the nearest are {', '.join(some)}"
    return f"{hint} known are {', '.join(known) or 'none'}"
