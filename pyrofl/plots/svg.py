"""Figures as inline SVG for a page: text as text, an alternative text, and colours that follow the page's theme."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib
from matplotlib.figure import Figure

from .style import PALE, QUIET

THEMED = {"#000000": "ink", QUIET: "quiet", "#dddddd": "grid", PALE: "pale", "#999999": "line", "#0072b2": "blue"}
"""Colours that are replaced by the page's variables: `var(--ink)` and so on."""


def svg(drawn: Figure, alt: str, *, name: str) -> str:
    """The figure as an `<svg>` element: `alt` describes it, `name` makes its ids unique on a page.

    The background is transparent. Black, greys and the first colour of the palette become the variables of `THEMED`,
    so that the page can redefine them on a dark ground.
    """
    content = io.StringIO()
    drawn.patch.set_visible(False)
    for axes in drawn.axes:
        axes.patch.set_visible(False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(content, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = content.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for colour, variable in THEMED.items():
        text = re.sub(rf"(fill|stroke): {colour}\b", rf"\1: var(--{variable}, {colour.lower()})", text, flags=re.I)
    width, height = (72 * inches for inches in drawn.get_size_inches())
    box = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}pt"'
    head = f'<svg role="img" aria-label="{escape(alt)}" {box}'
    return re.sub(r"<svg\b[^>]*>", lambda _: f"{head}><title>{escape(alt)}</title>", text, count=1).strip()
