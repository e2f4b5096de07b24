"""`pyrofl evaluate`: the draws of a run as netCDF files, and the checks of its posterior as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import arviz, diagnostics
from .arviz.adapter import refuse_few
from .arviz.runs import has_density, predictive_moments, prior_moments
from .assembly import refuse_missing, reopen
from .console import Reporter
from .diagnostics.table import ALL
from .run import Run
from .store import CHECKS, RunDirectory, read_metrics

TRAIN, TEST = "draws.nc", "draws-test.nc"


def diagnose(
    directory: Path,
    others: Sequence[Path],
    *,
    draws: int,
    model: Literal["global", "personal"] | None,
    data_root: Path | None,
    console: Console,
) -> None:
    """Write RUN/draws.nc (training rows) and RUN/draws-test.nc (held-out rows); print a line a client."""
    where, *rest = (RunDirectory(p) for p in (directory, *others))
    for found in (where, *rest):
        refuse_missing(found)
    run = reopen(where, data_root=data_root, observer=Reporter(console)).run(where, read_only=True)
    if has_density(run.method):
        refuse_few(draws)
    committed = where.committed()[1]
    made = run.to_arviz(model=model, draws=draws)
    console.print(f"wrote {arviz.save(made, directory / TRAIN)}: {draws} draws, training rows", markup=False)
    if any(c.test.rows for c in run.federation.clients):
        held = run.to_arviz(model=model, draws=draws, split="test")
        console.print(f"wrote {arviz.save(held, directory / TEST)}: {draws} draws, held-out rows", markup=False)
    prior = prior_moments(run)
    frame = diagnostics.table(made, losses=losses(where.metrics, committed), prior=prior)
    frame.assign(round=run.round).to_csv(directory / CHECKS, index_label="client")
    console.print(_table(frame, f"round {run.round}, {made.attrs['model']} posterior, training rows"))
    undefined = [site for site, (_, sd) in (prior or {}).items() if np.isnan(sd).any()]
    for line in notes(made.attrs, frame, undefined):
        console.print(line, style="dim", markup=False)
    if others:
        runs = [reopen(p, data_root=data_root).run(p, read_only=True) for p in rest]
        console.print(_table(agreements([run, *runs]), f"agreement of {len(runs) + 1} runs, in posterior sd"))


def losses(metrics: Path, size: int | None = None) -> dict[str, list[float]]:
    """Client -> its training loss, -ELBO / n in nats per row, of each round it took part in (see `read_metrics`)."""
    out: dict[str, list[float]] = {}
    for row in read_metrics(metrics, size):
        if row.split == "train" and row.metric == "loss" and row.value is not None:
            out.setdefault(row.client, []).append(row.value)
    return out


def notes(attrs: Mapping[Any, Any], frame: pd.DataFrame, undefined: Sequence[str] = ()) -> list[str]:
    """What the numbers mean, and what is missing from them; the priors of `undefined` sites have no finite variance."""
    out = []
    if left := str(attrs.get("clients_left_out", "")):
        out.append(f"left out, for they predict with the server's own posterior: {_some(left.split(', '))}")
    if "k-hat" in frame:
        out.append("k-hat: below min(1 - 1 / log10 draws, 0.7) importance weights can correct the guide")
        out.append("elpd: leave-one-out log predictive density in nats, summed over rows, +- its standard error")
    else:
        out.append("no k-hat and no LOO: they need a guide that is a density, under a proper prior")
    if "contraction" in frame:
        out.append("contraction: median over weights of 1 - (posterior sd / prior sd)^2")
        if undefined:
            out.append(f"no contraction where the prior has no finite variance: {_some(undefined)}")
    if "ELBO" in frame:
        out.append("ELBO: Theil-Sen slope of the training loss over the last half of the rounds, 95% interval")
    if attrs.get("constant_sites"):
        out.append(f"constant in every draw (point estimates): {attrs['constant_sites']}")
    return out


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first names of many, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def agreements(runs: Sequence[Run]) -> pd.DataFrame:
    """Agreement of the server's posteriors: of weights, and of predictions for the first run's training rows."""
    first, lines = runs[0], {}
    thetas = [r.method.common(r.server) for r in runs]
    shared = [t for t in thetas if t is not None]
    if len(shared) < len(runs):
        raise ValueError("agreement compares the server's posteriors, and this method has none")
    program = first.method.program
    if program.mean_field:
        weights = [
            {s: (m.cpu().numpy(), v.cpu().numpy()) for s, (m, v) in program.posterior(t).items()} for t in shared
        ]
        lines["weights"] = diagnostics.agreement(weights)
    lines["predictions"] = diagnostics.agreement([predictive_moments(first, t) for t in shared])
    return pd.DataFrame(
        {
            k: {"median": a.median, "largest": a.largest, "over 1 sd": a.apart, "verdict": a.verdict}
            for k, a in lines.items()
        }
    ).T


def _table(frame: pd.DataFrame, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("client" if ALL in frame.index or "rows" in frame else "")
    for column in frame.columns:
        table.add_column(column, justify="left" if column in ("guide", "ELBO", "verdict") else "right")
    for name, line in frame.iterrows():
        table.add_row(escape(str(name)), *(escape(_cell(v)) for v in line))
    return table


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1:
        return str(int(value))
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:.1f}"
        if isinstance(value, float)
        else str(value)
    )
