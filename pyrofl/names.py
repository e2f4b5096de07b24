"""Suggestions for misspelt names, in one wording everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean "x"? known are ...' for an error message, the suggestion only where one is near."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ";"
    return f"{hint} known are {', '.join(known) or 'none'}"
