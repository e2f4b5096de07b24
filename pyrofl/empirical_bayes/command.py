"""`pyrofl shrink`: shrink a table of estimates, print it sorted, and write CSV, prior and figures."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table as RichTable

from pyrofl.empirical_bayes.figures import caterpillar, prior_figure
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.npmle import Progress
from pyrofl.empirical_bayes.shrinkage import PriorName, Shrunk, shrink_sites, sites_of
from pyrofl.empirical_bayes.table import TableError, read_table
from pyrofl.names import nearest
from pyrofl.plots.style import save
from pyrofl.random import root
from pyrofl.store import write

FAMILIES = {"fixed": None, "binomial": "trials", "poisson": "exposure"}
SHOWN = 60  # rows printed without --all


def shrink(
    file: Annotated[Path, typer.Argument(help="a CSV file with a header, one row a site")],
    estimate: Annotated[str | None, typer.Option(help="column of estimates")] = None,
    se: Annotated[str | None, typer.Option(help="column of their standard errors")] = None,
    events: Annotated[str | None, typer.Option(help="column of event counts, instead of --estimate")] = None,
    trials: Annotated[str | None, typer.Option(help="column of trials: events are binomial")] = None,
    exposure: Annotated[str | None, typer.Option(help="column of exposures: events are Poisson")] = None,
    id: Annotated[str | None, typer.Option(help="column of site names")] = None,
    n: Annotated[str | None, typer.Option(help="column of row counts, shown beside the sites")] = None,
    prior: Annotated[str, typer.Option(help="npmle, gaussian or mixture")] = "npmle",
    family: Annotated[str | None, typer.Option(help="fixed, binomial or poisson; follows from the columns")] = None,
    prior_from: Annotated[Path | None, typer.Option(help="score the sites against this stored prior")] = None,
    level: Annotated[float, typer.Option(help="probability of the credible intervals")] = 0.95,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="leave out rows with missing values")] = False,
    seed: Annotated[int, typer.Option(help="seed of the cross-validation that sets the prior's width")] = 1,
    out: Annotated[Path | None, typer.Option(help="folder for the files; default: beside the table")] = None,
    all: Annotated[bool, typer.Option("--all", help="print every site")] = False,
) -> None:
    """Shrink the estimates of many sites towards what they have in common."""
    console = Console(highlight=False)
    try:
        paths = _shrink(
            console,
            file,
            estimate,
            se,
            events,
            trials,
            exposure,
            id,
            n,
            prior,
            family,
            prior_from,
            level,
            drop_missing,
            seed,
            out,
            all,
        )
    except ValueError as error:  # TableError among them: the message is for the user
        Console(stderr=True, highlight=False).print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    console.print("written: " + ", ".join(map(str, paths)), markup=False, soft_wrap=True)


def _shrink(
    console: Console,
    file: Path,
    estimate: str | None,
    se: str | None,
    events: str | None,
    trials: str | None,
    exposure: str | None,
    id: str | None,
    n: str | None,
    prior: str,
    family: str | None,
    prior_from: Path | None,
    level: float,
    drop_missing: bool,
    seed: int,
    out: Path | None,
    everything: bool,
) -> list[Path]:
    _check_family(family, trials, exposure)
    if not 0 < level < 1:
        raise ValueError(f"--level {level:g}: a probability lies between 0 and 1, such as 0.95")
    stem = _stem(file, out)
    table = read_table(file)
    sites = sites_of(
        table,
        estimate=estimate,
        se=se,
        events=events,
        trials=trials,
        exposure=exposure,
        id=id,
        drop_missing=drop_missing,
    )
    sizes = None if n is None else sites.table.text(n)
    stored = None if prior_from is None else _stored(prior_from, sites.scale)
    if prior not in (names := ("npmle", "gaussian", "mixture")):
        raise ValueError(f"unknown prior {prior!r}{nearest(prior, names)}")
    choice: PriorName = prior  # type: ignore[assignment]
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("estimating the prior", total=None)

        def progress(step: Progress) -> None:
            bar.update(task, description=f"estimating the prior: step {step.step}, gap {step.gap:.1e} nats a site")

        def fold_progress(done: int, folds: int) -> None:
            bar.update(task, description=f"choosing the prior's width: fold {done} of {folds}")

        shrunk = shrink_sites(
            sites,
            prior=choice,
            stored=stored,
            level=level,
            key=root(seed),
            progress=progress,
            fold_progress=fold_progress,
        )
    _show(console, shrunk, sizes, everything)
    return _write(shrunk, stem)


def _show(console: Console, shrunk: Shrunk, sizes: list[str] | None, everything: bool) -> None:
    low = f"{shrunk.level:.0%} from"
    shown = RichTable("site", *(["rows"] if sizes else []), "raw", "shrunken", low, "to", "prior weight", box=None)
    for column in shown.columns[1:]:
        column.justify = "right"
    order = sorted(range(len(shrunk.mean)), key=lambda k: -shrunk.mean[k])
    half = SHOWN // 2
    few = order if everything or len(order) <= SHOWN else [*order[:half], None, *order[-half:]]
    for k in few:
        if k is None:
            shown.add_row(f"... {len(order) - SHOWN} more, --all prints them")
            continue
        numbers = (shrunk.sites.raw[k], shrunk.mean[k], shrunk.low[k], shrunk.high[k])
        row = [shrunk.sites.names[k], *([sizes[k]] if sizes else []), *(f"{v:.4g}" for v in numbers)]
        shown.add_row(*row, f"{shrunk.prior_weight[k]:.0%}")
    console.print(shown)
    prior = shrunk.prior
    console.print(
        f"prior: {len(prior.weights)} atoms; {prior.status}"
        + (f"; searched by {prior.search}" if prior.search else ""),
        markup=False,
    )
    for note in shrunk.notes:
        console.print(f"note: {note}", markup=False)


def _stem(file: Path, out: Path | None) -> Path:
    """What the names of all results begin with, in a folder that is there."""
    folder = file.parent if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: {error.strerror}: name a folder that can be written to") from None
    return folder / file.stem


def _write(shrunk: Shrunk, stem: Path) -> list[Path]:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["site", "raw", "shrunken", "low", "high", "prior_weight"])
    columns = (shrunk.sites.raw, shrunk.mean, shrunk.low, shrunk.high, shrunk.prior_weight)
    for name, *numbers in zip(shrunk.sites.names, *columns):
        writer.writerow([name, *(repr(float(v)) for v in numbers)])
    paths = [Path(f"{stem}-{end}") for end in ("shrunken.csv", "prior.json", "caterpillar.png", "prior.png")]
    write(paths[0], content.getvalue().encode())
    shrunk.prior.save(paths[1])
    record = json.loads(paths[1].read_text(encoding="utf-8"))
    write(paths[1], (json.dumps({**record, "scale": shrunk.sites.scale}, indent=1, allow_nan=False) + "\n").encode())
    save(caterpillar(shrunk), paths[2])
    save(prior_figure(shrunk), paths[3])
    return paths


def _stored(path: Path, scale: str) -> Mixture:
    prior = Mixture.load(path)
    own = json.loads(path.read_text(encoding="utf-8")).get("scale", scale)
    if own != scale:
        raise ValueError(f"{path}: this prior is of kind {own!r}, the table's columns are of kind {scale!r}")
    return prior


def _check_family(family: str | None, trials: str | None, exposure: str | None) -> None:
    if family is None:
        return
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}{nearest(family, FAMILIES)}")
    given = "binomial" if trials is not None else "poisson" if exposure is not None else "fixed"
    if given != family:
        needs = FAMILIES[family]
        wanted = f"--events with --{needs}" if needs else "--estimate with --se"
        raise TableError(f"family {family!r} needs {wanted}")
