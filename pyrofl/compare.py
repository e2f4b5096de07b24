"""Several runs side by side: one table, and the figures that go with it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from . import metrics, plots
from .config import ConfigError
from .console import size
from .metrics import Bins
from .names import nearest
from .store import COLUMNS, RunDirectory

_MODELS = ("personal", "global", "tempered", "balanced", "matched")
_TITLES = {
    "tempered": "personal models at the temperature of each client's validation rows, test rows of each client",
    "balanced": "personal models, test rows that all clients share, each class weighing the same",
    "matched": "personal models, test rows that all clients share, weighted to each client's own labels",
}
_BESIDE = ("nll", "brier", "ece")


@dataclass(frozen=True)
class Finished:
    """A run as it lies on disk: its name, its metrics (round, client, split, metric, value), its seconds."""

    name: str
    method: str
    directory: RunDirectory
    metrics: pd.DataFrame
    seconds: float | None

    @classmethod
    def read(cls, path: Path) -> Finished:
        where = RunDirectory(path)
        if not where.config.exists():
            near = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
            raise ConfigError(f"{path} is not a run directory{nearest(path.name, near)}")
        config = where.table()
        whole = where.metrics.read_bytes()[: where.committed()[1]]  # a run that goes on may be writing the next line
        types = {"client": str, "split": str, "metric": str}
        table = read_table(where.metrics, COLUMNS, io.BytesIO(whole), dtype=types, keep_default_na=False)
        try:
            table["value"] = pd.to_numeric(table["value"])  # an empty value is undefined
        except ValueError as error:
            raise ValueError(f"{where.metrics}: {error}: it was changed after the run") from None
        seconds = None
        if where.timings.exists():
            times = read_table(where.timings, ("round", "seconds")).drop_duplicates("round", keep="last")
            seconds = float(times["seconds"].sum())
        return cls(path.name, config["method"]["name"], where, table, seconds)

    def last(self, metric: str) -> dict[str, float | None]:
        """Client -> value at the last evaluated round; undefined values are None."""
        rows = self.metrics[(self.metrics["metric"] == metric) & (self.metrics["split"] == "test")]
        rows = rows[rows["round"] == rows["round"].max()]
        return {c: None if pd.isna(v) else float(v) for c, v in zip(rows["client"], rows["value"])}

    def total(self, metric: str) -> float:
        rows = self.metrics[(self.metrics["metric"] == metric) & (self.metrics["split"] == "run")]
        return float(rows["value"].sum())

    def row(self) -> dict[str, object]:
        """The run's line in the table: scores are means over clients at the last round, totals are over all rounds."""
        out: dict[str, object] = {"run": self.name, "method": self.method}
        for model in _MODELS:
            for score in ("accuracy", "rmse", *_BESIDE):
                found = {c: v for c, v in self.last(f"{model}/{score}").items() if not c.startswith("(")}
                if not found:
                    continue
                s = metrics.summary(f"{model}/{score}", found)
                out[f"{model} {score}"] = s.mean_over_clients
                if score in ("accuracy", "rmse"):
                    out |= {f"{model} spread": s.spread_over_clients, f"{model} worst": s.worst}
                    out |= {f"{model} worst client": s.worst_client}
        out |= {"bytes": self.total("bytes_down") + self.total("bytes_up"), "seconds": self.seconds}
        return out


def read_table(path: Path, columns: Sequence[str], source: io.BytesIO | None = None, **options: Any) -> pd.DataFrame:
    """A CSV file of a run, or what was read of it, with at least these columns; errors name the file."""
    try:
        found = pd.read_csv(path if source is None else source, **options)
    except ValueError as error:  # a parser's, or of text that is no UTF-8
        raise ValueError(f"{path}: not a readable CSV file: {str(error).strip()}") from None
    lacking = [c for c in columns if c not in found.columns and c != found.index.name]
    if lacking:
        raise ValueError(f"{path}: no column {lacking[0]!r}: it was changed after the run")
    return found


def compare(paths: Sequence[Path], out: Path | None, console: Console) -> None:
    """Print the table; with `out`, write compare.csv and the figures there."""
    runs = [Finished.read(p) for p in paths]
    frame = pd.DataFrame([r.row() for r in runs])
    for model in _MODELS:
        if (table := _table(frame, model)) is not None:
            console.print(table)
    _say_choices(runs, console)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        frame.to_csv(out / "compare.csv", index=False)
        for path in figures(runs, out):
            console.print(f"wrote {path}", markup=False)


def _table(frame: pd.DataFrame, model: str) -> RichTable | None:
    headline = next((h for h in ("accuracy", "rmse") if f"{model} {h}" in frame), None)
    if headline is None:
        return None
    title = _TITLES.get(model, f"{model} models, test rows of each client")
    table = RichTable(title=f"{title}, means over clients", title_justify="left")
    names = (
        "run",
        "method",
        f"{headline} (+- spread)",
        "worst client",
        "NLL",
        "Brier",
        "ECE",
        "bytes",
        "seconds",
    )
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < 2 else "right")
    frame = frame.sort_values(f"{model} {headline}", ascending=headline == "rmse", na_position="last")
    for _, r in frame.iterrows():
        if pd.isna(r[f"{model} {headline}"]):
            continue
        spread = _number(r.get(f"{model} spread"))
        table.add_row(
            escape(str(r["run"])),
            escape(str(r["method"])),
            f"{_number(r[f'{model} {headline}'])} +- {spread}",
            f"{escape(str(r[f'{model} worst client']))} {_number(r[f'{model} worst'])}",
            *(_number(r.get(f"{model} {s}")) for s in _BESIDE),
            size(r["bytes"]),
            _number(r["seconds"], 1),
        )
    return table


def _number(value: object, digits: int = 3) -> str:
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"


def choices(run: Finished) -> pd.DataFrame:
    """(round, client, choice): the optimizer that each client chose in each round; empty for other methods."""
    rows = run.metrics[run.metrics["metric"] == "choice"]
    if rows.empty:
        return pd.DataFrame({"round": [], "client": [], "choice": []})
    names = run.directory.table()["method"]["optimizers"]
    picked = [names[int(v)] for v in rows["value"]]
    return pd.DataFrame({"round": rows["round"].to_numpy(), "client": rows["client"].to_numpy(), "choice": picked})


def _say_choices(runs: Sequence[Finished], console: Console) -> None:
    for run in runs:
        chosen = choices(run)
        if chosen.empty:
            continue
        shares = chosen["choice"].value_counts(normalize=True)
        text = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        console.print(f"{run.name}: selected optimizers over clients and rounds: {text}", markup=False)


def figures(runs: Sequence[Finished], out: Path) -> list[Path]:
    """Learning curves, reliability diagrams, and the selected optimizers, as PNG files in `out`."""
    frame = pd.concat([r.metrics.assign(run=r.name) for r in runs], ignore_index=True)
    written = []
    for model in _MODELS:
        for score in ("accuracy", "rmse"):
            if ((frame["metric"] == f"{model}/{score}") & (frame["split"] == "test")).any():
                curve = plots.learning_curves(frame, f"{model}/{score}")
                written.append(plots.save(curve, out / f"learning-{model}.png"))
        tables: dict[str, Bins] = {r.name: t for r in runs if (t := r.directory.load_bins(model)) is not None}
        if tables:
            written.append(plots.save(plots.reliability_diagram(tables), out / f"reliability-{model}.png"))
    for run in runs:
        if not (chosen := choices(run)).empty:
            names = run.directory.table()["method"]["optimizers"]
            drawn = plots.selected_optimizers(chosen, choices=names)
            written.append(plots.save(drawn, out / f"optimizers-{run.name}.png"))
    return written
