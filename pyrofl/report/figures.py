"""The figures of a page."""

from __future__ import annotations

from .. import plots
from ..plots.style import Figure
from .parts import Picture


class Figures:
    """Counts the figures of a page, so that their ids differ."""

    def __init__(self) -> None:
        self.count = 0

    def picture(self, drawn: Figure, caption: str) -> Picture:
        """The figure as it stands on the page; its caption is its alternative text."""
        self.count += 1
        wide = drawn.get_size_inches()[0] > 5
        return Picture(plots.svg(drawn, caption, name=f"f{self.count}"), caption, bool(wide))
