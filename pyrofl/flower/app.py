"""The two apps that a Flower project names: `pyrofl.flower.app:server` and `pyrofl.flower.app:client`.

The project's `[tool.flwr.app.config]` holds `config` (a TOML file of pyrofl, in the project), `set` (overrides, as on
the command line) and `out` (the run's directory; a run that is there is gone on with).
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from ..assembly import Assembled, assemble, flower
from ..config import ConfigError, load
from ..console import Reporter, nothing_learned
from ..store import RunDirectory
from .client import client_app
from .open import open_site
from .run import FlowerRun

_STOPPING = 60.0  # seconds in which a ServerApp notices that its run of Flower was stopped, and ends

client = client_app(open_site)
server = ServerApp()


class Lines(Reporter):
    """A line a round, without bars: a log is read afterwards."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass


class NothingLearned(RuntimeError):
    """All rounds are through and none was aggregated: the run of Flower fails, and its log says so."""


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, from where the run in `out` stands."""
    reporter = Lines(Console(highlight=False, width=140))
    asked = context.run_config
    config = load(_find(str(asked.get("config") or "")), shlex.split(str(asked.get("set") or "")))
    assembled = assemble(config, observer=reporter, at="server" if config.schema else None)
    directory = RunDirectory(Path(str(asked["out"]))) if asked.get("out") else None
    if directory is None:
        _serve(grid, assembled, None, reporter)
        return
    if not directory.config.exists():
        directory.create(assembled.config.toml())
    with directory.at_work(_STOPPING):
        _serve(grid, assembled, directory, reporter)


def _serve(grid: Grid, assembled: Assembled, directory: RunDirectory | None, reporter: Lines) -> None:
    run = FlowerRun(
        assembled.method,
        assembled.federation,
        grid=grid,
        config=assembled.config.toml(),
        patience=flower(assembled.config),
        **assembled.options(directory, reporter),
    )
    if run.done:
        reporter.note(f"round {run.round} of {run.rounds} is done: nothing to do")
    elif run.round:
        reporter.note(f"going on after round {run.round} of {run.rounds}")
    for now in run:
        reporter.round(now, run.rounds)
    if text := nothing_learned(run):
        raise NothingLearned(text)
    kept = "nothing is kept, since out names no folder" if directory is None else directory.path
    reporter.note(f"done: {kept}")


def _find(file: str) -> Path:
    """A file of the project: Flower runs its apps from an unpacked copy, which is on the import path."""
    places = [Path(file), *(Path(folder) / file for folder in sys.path if folder)]
    found = next((place for place in places if place.is_file()), None)
    if not file or found is None:
        raise ConfigError(f"config = {file!r} is no file of this Flower project: give its path in the project")
    return found
