"""From runs to one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..store import write
from ..version import __version__
from .answer import answer
from .figures import Figures
from .read import Recorded, named
from .sections import SECTIONS


def page(runs: Sequence[Recorded], *, figures: Figures | None = None) -> str:
    """The page as text. Whatever comes from a run (names of clients, classes, runs; the configuration) is escaped."""
    figures = figures or Figures()
    sections = [answer(runs), *(section(runs, figures) for section in SECTIONS)]
    environment = Environment(
        loader=PackageLoader("pyrofl.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("pyrofl.report").joinpath("templates/style.css").read_text()
    return environment.get_template("page.html").render(
        title=" · ".join(r.name for r in runs),
        sections=sections,
        runs=[(r, again(r)) for r in runs],
        style=Markup(style),
        svg=Markup,
        version=__version__,
    )


def again(run: Recorded) -> str:
    """The command that makes the run once more from its resolved configuration."""
    path = run.directory.path
    return shlex.join(["pyrofl", "run", str(run.directory.config), "--out", f"{path}-again"])


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one or several runs; returns where: `report.html` in the run, or in the working directory."""
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    if target.is_dir():
        raise ValueError(f"{target} is a directory: --out names a file, such as {target / 'report.html'}")
    content = page(named(list(paths)))
    target.parent.mkdir(parents=True, exist_ok=True)
    write(target, content.encode())
    return target
