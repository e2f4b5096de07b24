"""The command line: pyrofl run | resume | evaluate | compare | report | partition | check-site | shrink | list."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pyro
import torch
import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table as RichTable

from . import __version__
from .assembly import Assembled, assemble, flower, reopen
from .catalogue import GIVEN, describe, first_line, markdown
from .check_site import rehearse
from .check_site import say as say_site
from .compare import compare as compare_runs
from .config import ConfigError, load, signature
from .console import Reporter, nothing_learned, partition_table
from .datasets import DATASETS
from .empirical_bayes.command import shrink
from .engines import Sequential, Vectorised, choose
from .guides import GUIDES
from .likelihoods import LIKELIHOODS
from .methods import METHODS
from .optim import OPTIMIZERS
from .partition import PARTITIONS
from .plots import partition as plot_partition
from .plots import save
from .priors import PRIORS
from .report import write_report
from .run import Run, RunStopped
from .store import RunDirectory
from .suggest import choose as one_of

app = typer.Typer(
    help="Probabilistic federated learning in Pyro.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)

File = Annotated[Path, typer.Argument(help="a TOML configuration")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, for example method.epochs=1 seed=3")]
DataRoot = Annotated[
    Path | None, typer.Option(help="where data sets lie; default: PYROFL_DATA, then ~/.cache/pyrofl/data")
]


@app.command()
def run(
    file: File,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="run directory; default: runs/NAME of the file")] = None,
    data_root: DataRoot = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run that is already there")] = False,
) -> None:
    """Train: print the resolved configuration and the partition, then a line a round."""
    reporter = Reporter(console)
    config = load(file, overrides or [])
    directory = RunDirectory(out or Path("runs") / file.stem)
    if not overwrite:
        directory.refuse_existing()
    assembled = assemble(config, data_root=data_root, observer=reporter)
    _say(assembled)
    if overwrite:
        with directory.at_work():
            directory.clear()
    directory.create(_header(data_root) + assembled.config.toml())
    with directory.at_work():
        try:
            run = assembled.run(directory, reporter)
        except (ValueError, OSError):
            directory.clear()  # it never began: a corrected file may go to the same place
            raise
        _go(run, reporter, directory)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="a run directory")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="only rounds, engine, device, evaluate, flower, on_error")
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Go on with a stopped run after its last committed round; `rounds` is the total."""
    reporter = Reporter(console)
    where = RunDirectory(directory)
    assembled = reopen(where, overrides or [], data_root=data_root, observer=reporter)
    with where.at_work():
        run = assembled.run(where, reporter)
        if overrides:  # recorded once the run has taken them
            comments = [line for line in where.config.read_text().splitlines() if line.startswith("#")]
            where.rewrite("\n".join([*comments, _command()]) + "\n\n" + assembled.config.toml())
        _go(run, reporter, where)


def _go(run: Run, reporter: Reporter, directory: RunDirectory) -> None:
    if run.done:
        console.print(
            f"round {run.round} of {run.rounds} is done: nothing to do. "
            f"More rounds: pyrofl resume {directory.path} rounds={2 * run.rounds}"
        )
        _refuse_untrained(run)
        return
    if run.round:
        console.print(f"going on after round {run.round} of {run.rounds}")
    try:
        with reporter.rounds(run.round, run.rounds):
            for now in run:
                reporter.round(now, run.rounds)
    except KeyboardInterrupt:
        console.print(f"stopped: round {run.committed} stands. Go on with: pyrofl resume {directory.path}")
        raise typer.Exit(130) from None
    _refuse_untrained(run)
    console.print(f"done: {directory.path} (compare runs with: pyrofl compare {directory.path} ...)", markup=False)


def _refuse_untrained(run: Run) -> None:
    """Exit with 1 where no round of a run was ever aggregated."""
    if text := nothing_learned(run):
        console.print(text, style="red", markup=False)
        raise typer.Exit(1)


def _header(data_root: Path | None) -> str:
    lines = [
        _command(),
        f"# versions: pyrofl {__version__}, torch {torch.__version__}, pyro-ppl {pyro.__version__}, "
        f"python {sys.version.split()[0]}",
    ]
    if data_root is not None:
        lines.append(f"# data-root: {data_root.resolve()}")
    return "\n".join(lines) + "\n\n"


def _command() -> str:
    return f"# command: {shlex.join(['pyrofl', *sys.argv[1:]])}"


def _say(assembled: Assembled) -> None:
    console.print("[bold]configuration[/bold], as resolved")
    console.print(Syntax(assembled.config.toml().strip(), "toml", background_color="default"))
    _say_data(assembled)


def _say_data(assembled: Assembled) -> None:
    for note in assembled.federation.notes:
        console.print(note, style="dim", markup=False)
    console.print(partition_table(assembled.federation))


@app.command()
def partition(
    file: File,
    overrides: Overrides = None,
    plot: Annotated[Path | None, typer.Option(help="write the partition's figure to this PNG")] = None,
    data_root: DataRoot = None,
) -> None:
    """Show who holds what, without training."""
    from .federation import counts

    assembled = assemble(load(file, overrides or []), data_root=data_root, observer=Reporter(console))
    _say_data(assembled)
    if plot is not None:
        federation = assembled.federation
        save(
            plot_partition(counts(federation), names=[c.name for c in federation.clients], classes=federation.classes),
            plot,
        )
        console.print(f"wrote {plot}", markup=False)


class Model(Enum):
    """Whose posterior is drawn from."""

    server = "global"
    clients = "personal"


@app.command()
def evaluate(
    directory: Annotated[Path, typer.Argument(help="a run directory")],
    others: Annotated[list[Path] | None, typer.Argument(help="runs of the same model with other seeds")] = None,
    draws: Annotated[int, typer.Option(help="posterior draws")] = 1000,
    model: Annotated[Model | None, typer.Option(help="default: global, where the server has one")] = None,
    data_root: DataRoot = None,
) -> None:
    """Draw from a run's posterior: draws.nc for ArviZ, and a table of whether the draws deserve trust."""
    from .diagnose import diagnose  # ArviZ takes seconds to import

    whose: Literal["global", "personal"] | None = None if model is None else model.value
    diagnose(directory, others or [], draws=draws, model=whose, data_root=data_root, console=console)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="run directories")],
    out: Annotated[Path | None, typer.Option(help="write compare.csv and the figures here")] = None,
) -> None:
    """One table of several runs: accuracy, NLL, Brier, ECE, bytes and seconds; and figures."""
    compare_runs(runs, out, console)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run directories, finished or not")],
    out: Annotated[
        Path | None, typer.Option(help="the page; default: report.html in the run, or here for several")
    ] = None,
) -> None:
    """One HTML page about a run, or several side by side: the answer, then the evidence."""
    console.print(f"wrote {write_report(runs, out)}", soft_wrap=True, markup=False)


@app.command("check-site")
def check_site(
    data: Annotated[Path, typer.Argument(help="the site's own file or folder")],
    config: Annotated[Path, typer.Option(help="the federation's TOML configuration, with a schema")],
    site: Annotated[str, typer.Option(help="the site's name in the schema")],
    overrides: Overrides = None,
) -> None:
    """Before joining: check the data against the federation's schema and show what would leave the site."""
    say_site(rehearse(load(config, overrides or []), data, site), console)


app.command()(shrink)

_REGISTRIES: dict[str, Mapping[str, Any]] = {
    "methods": METHODS,
    "priors": PRIORS,
    "guides": GUIDES,
    "likelihoods": LIKELIHOODS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "optimizers": OPTIMIZERS,
    "engines": {"auto": choose, "sequential": Sequential, "vectorised": Vectorised, "flower": flower},
}
_GIVEN = {  # arguments that a run fills in: no keys of a configuration
    "methods": GIVEN,
    "guides": ("model", "init_loc_fn", "create_plates"),
    "datasets": ("root", "progress"),
    "partitions": ("y", "clients", "rng", "site"),
    "engines": ("name", "program", "device", "chunk", "ragged", "config"),
}


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help=", ".join(_REGISTRIES))] = "methods",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="of the methods: the page docs/methods.md")] = False,
) -> None:
    """What can be named in a configuration, with its keys."""
    one_of(what, _REGISTRIES, "list")
    if as_markdown:
        if what != "methods":
            raise ConfigError(f"list {what} --markdown: only the methods have a page; leave the option out")
        typer.echo(markdown(METHODS), nl=False)
        return
    console.print(_methods() if what == "methods" else _things(what))


def _things(what: str) -> RichTable:
    table = RichTable("name", "what it is", "keys", title=what, title_justify="left")
    for name, thing in _REGISTRIES[what].items():
        table.add_row(name, first_line(thing), _keys(what, thing))
    return table


def _methods() -> RichTable:
    """One row a method; a key that most methods have is in the caption."""
    entries = [describe(name, method) for name, method in METHODS.items()]
    common = [k for k in entries[0].keys if sum(k in e.keys for e in entries) > len(entries) / 2]
    table = RichTable("name", "what it is", "travels", "stays", "guides", "keys of its own", "reference")
    table.title, table.title_justify, table.show_lines = "methods", "left", True
    table.caption = f"Most take also {', '.join(common)}. In full: pyrofl list methods --markdown"
    table.caption_justify = "left"
    for e in entries:
        mine = ", ".join(k for k in e.keys if k not in common)
        table.add_row(e.name, e.summary, e.travels, e.stays, ", ".join(e.guides), mine, e.reference)
    return table


def _keys(what: str, thing: Callable[..., Any]) -> str:
    return ", ".join(n for n in signature(thing) if n not in _GIVEN.get(what, ()))


def _version(asked: bool) -> None:
    if asked:
        console.print(f"pyrofl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def main() -> None:
    """The console script: errors that a user can mend are one message, without a traceback."""
    try:
        app()
    except (ValueError, RunStopped, OSError) as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
