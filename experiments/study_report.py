"""What a study found: results.csv, a table with intervals, and a figure."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

import pyrofl
from pyrofl.plots import save
from pyrofl.plots.style import figure, look, tidy

from .study_file import Cell, Study
from .tables import gap, markdown, points, test_per_train

COLUMNS = {  # score: heading
    "personal/accuracy": "personal",
    "personal/worst": "worst client",
    "personal/nll": "NLL",
    "personal/ece": "ECE",
    "global/accuracy": "global",
    "common/accuracy": "common test rows",
    "balanced/accuracy": "balanced",
    "matched/accuracy": "matched",
}
OURS = {"personal/accuracy": "ours, own models", "global/accuracy": "ours, global model"}
LEVEL = 0.95


def interval(values: pd.Series) -> tuple[float, float]:
    """Mean, and half the width of its 95% t interval (NaN for one value)."""
    v = values.dropna()
    if len(v) < 2:
        return float(v.mean()) if len(v) else float("nan"), float("nan")
    half = student.ppf((1 + LEVEL) / 2, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))
    return float(v.mean()), float(half)


def table(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """One row an arm, sorted by the first score in each cell: means over seeds, and the difference from `against`."""
    scores = {k: h for k, h in COLUMNS.items() if k in frame and frame[k].notna().any()}
    parts = []
    for cell, here in _by_cell(frame):
        rows = []
        for name, runs in here.groupby("arm", sort=False):
            row: dict[str, object] = {"cell": cell, "arm": name, "order": runs[_first(study, frame)].mean()}
            for score, heading in scores.items():
                mean, half = interval(runs[score])
                row[heading] = "" if np.isnan(mean) else f"{mean:.3f}" + ("" if np.isnan(half) else f" +- {half:.3f}")
            row[f"- {study.against}"] = difference(study, here, str(name))
            if "matched/accuracy" in scores:
                row[f"matched - {study.against}"] = difference(study, here, str(name), "matched/accuracy")
            if "personal/nll" in scores:
                row[f"NLL - {study.against}"] = nll_difference(study, here, str(name))
            row["MiB"], row["seconds"] = f"{runs['bytes'].mean() / 2**20:.1f}", f"{runs['seconds'].mean():.1f}"
            row["chosen"] = runs["chosen"].iloc[0]
            rows.append(row)
        parts.append(pd.DataFrame(rows).sort_values("order", ascending=False, kind="stable"))
    out = pd.concat(parts).drop(columns="order")
    return out if "cell" in frame else out.drop(columns="cell")


def _by_cell(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each cell, in the order of the file."""
    if "cell" not in frame:
        return [("", frame)]
    return [(str(name), here) for name, here in frame.groupby("cell", sort=False)]


def beside_paper(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """One row an arm in the cells that the paper has: its accuracy and ours in percent, both less that of `against`."""
    rows = []
    papers = {a.cell.name: a.cell.paper for a in study.arms if a.cell.paper}
    for cell, here in _by_cell(frame):
        if (paper := papers.get(cell)) is None:
            continue
        for name, runs in here.groupby("arm", sort=False):
            theirs = paper.get(str(name))
            row: dict[str, object] = {"cell": cell, "arm": name, "paper": "" if theirs is None else f"{theirs:.2f}"}
            for score, heading in OURS.items():
                if score in here and runs[score].notna().any():
                    row[heading] = _percent(runs[score])
            if study.against in paper:
                known = theirs is not None and name != study.against
                row[f"paper - {study.against}"] = f"{theirs - paper[study.against]:+.2f}" if known else ""
                row[f"ours - {study.against}"] = difference(study, here, str(name))
            rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _percent(values: pd.Series) -> str:
    """Mean and standard error over seeds, of shares, in percent."""
    v = 100 * values.dropna()
    return f"{v.mean():.1f}" if len(v) < 2 else f"{v.mean():.1f} +- {v.sem():.1f}"


def _first(study: Study, frame: pd.DataFrame) -> str:
    """The score that orders the arms: the study's, or the first of COLUMNS that there is."""
    return study.score or next(k for k in COLUMNS if k in frame and frame[k].notna().any())


def difference(study: Study, frame: pd.DataFrame, arm: str, score: str = "") -> str:
    """An arm's score (default: the first) less that of `against` in the same cell, paired by seeds (see `points`)."""
    pair = _pair(study, frame, arm, score or _first(study, frame))
    return points(*pair, overlap=_overlap(study, frame)) if pair else ""


def nll_difference(study: Study, frame: pd.DataFrame, arm: str) -> str:
    """The same of own models' negative log-likelihood, in nats a row: lower is better."""
    pair = _pair(study, frame, arm, "personal/nll")
    return gap(*pair, digits=3, overlap=_overlap(study, frame)) if pair else ""


def _pair(study: Study, frame: pd.DataFrame, arm: str, score: str) -> tuple[dict[int, float], dict[int, float]] | None:
    """A score by seed, of an arm and of `against`; None where they are the same or one is missing."""
    by_arm = {str(name): dict(zip(runs["seed"], runs[score])) for name, runs in frame.groupby("arm")}
    if arm == study.against or not {arm, study.against} <= by_arm.keys():
        return None
    return by_arm[arm], by_arm[study.against]


def _overlap(study: Study, frame: pd.DataFrame) -> float:
    """`overlap` in a cell, where every seed deals the same rows of a data set anew.

    Shared test rows are not dealt, but what trains for them is: their intervals are widened by as much. `fraction`,
    which thins training rows after the deal, is left out: test rows recur as often with it as without.
    """
    cells = set(frame["cell"]) if "cell" in frame else {""}
    return test_per_train(next(a for a in study.arms if a.cell.name in cells).test)


def draw(study: Study, frame: pd.DataFrame, path: Path) -> Path:
    """Personal and global accuracy of every arm with 95% intervals over seeds, best at the top."""
    first = _first(study, frame)
    order = frame.groupby("arm")[first].mean().sort_values().index
    drawn = figure(7, 0.24 * len(order) + 1.4)
    axes = tidy(drawn.add_subplot())
    shown = ("personal/accuracy", "o"), ("global/accuracy", "|"), ("common/accuracy", "x"), ("balanced/accuracy", "s")
    for score, marker in shown:
        if score not in frame or frame[score].isna().all():
            continue
        places, means, halves = [], [], []
        for i, arm in enumerate(order):
            mean, half = interval(frame[frame["arm"] == arm][score])
            if not np.isnan(mean):
                places.append(i)
                means.append(mean)
                halves.append(0.0 if np.isnan(half) else half)
        label = {"common/accuracy": "global model, common rows"}.get(score, f"{score.partition('/')[0]} models")
        axes.errorbar(means, places, xerr=halves, fmt=marker, label=label, markersize=5, elinewidth=1)
    axes.set_yticks(range(len(order)), list(order), fontsize=8)
    axes.set_xlabel("accuracy on test rows, mean over clients; bars: 95% t intervals over seeds")
    axes.set_title(study.title, fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return save(drawn, path)


def draw_cells(study: Study, frame: pd.DataFrame, path: Path) -> Path:
    """A column of axes a panel, its cells along the axis: the paper's accuracy above, below it ours with its error."""
    cells = list({a.cell.name: a.cell for a in study.arms}.values())
    panels = list(dict.fromkeys(c.panel for c in cells))
    kinds = list(dict.fromkeys(a.kind for a in study.arms))
    printed = any(c.paper for c in cells)
    score = _first(study, frame)
    drawn = figure(max(7.0, 1.6 + 2.3 * len(panels)), 2.6 * (1 + printed) + 0.6 + 0.05 * len(kinds))
    grid = drawn.subplots(1 + printed, len(panels), squeeze=False, sharex="col")
    for column, panel in enumerate(panels):
        here = _in_order([c for c in cells if c.panel == panel])
        for i, kind in enumerate(kinds):
            side = 0.5 * (i - (len(kinds) - 1) / 2) / max(len(kinds), 2)  # so that bars do not hide each other
            runs = [frame[(frame["cell"] == c.name) & (frame["arm"] == kind)][score].dropna() for c in here]
            ours = [(x + side, 100 * r.mean(), 100 * r.sem()) for x, r in enumerate(runs) if len(r)]
            if ours:
                x, mean, error = zip(*ours)
                grid[-1, column].errorbar(x, mean, np.nan_to_num(error), label=kind, **look(i))
            theirs = [(x + side, c.paper[kind]) for x, c in enumerate(here) if kind in c.paper]
            if theirs:
                grid[0, column].plot(*zip(*theirs), **look(i))
        for axes in grid[:, column]:
            tidy(axes)
        grid[0, column].set_title(panel, fontsize=10)
        grid[-1, column].set_xticks(range(len(here)), [c.at for c in here], fontsize=8)
        grid[-1, column].set_xlim(-0.5, len(here) - 0.5)
    grid[-1, 0].set_ylabel("here, %, +- s.e.")
    if printed:
        grid[0, 0].set_ylabel("the paper, %")
    drawn.legend(*_labels(grid[-1]), fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    drawn.suptitle(study.title, fontsize=10)
    return save(drawn, path)


def _in_order(cells: list[Cell]) -> list[Cell]:
    """Cells by the number that stands at the axis, where all have one; else as they came."""
    try:
        return sorted(cells, key=lambda c: float(c.at))
    except ValueError:
        return cells


def _labels(row: np.ndarray) -> tuple[list[Any], list[str]]:
    """Handles and labels of all axes of a row, each label once."""
    found = {label: handle for axes in row for handle, label in zip(*axes.get_legend_handles_labels())}
    return list(found.values()), list(found)


def write(study: Study, frame: pd.DataFrame, out: Path, name: str, *, command: str = "") -> None:
    """NAME.csv, NAME.md and NAME.png in `out`."""
    if frame.empty:
        return
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    seeds = ", ".join(map(str, sorted(frame["seed"].unique())))
    parts = [f"# {study.title}\n"]
    papers = beside_paper(study, frame)
    if len(papers):
        parts.append(
            "Accuracy in percent, mean and standard error over seeds; the differences from "
            f"{study.against} in points, ours of the same seeds with a 95% t interval (see below).\n\n"
            f"{markdown(papers)}\n"
        )
    matched = f", 'matched - {study.against}' that of matched accuracy" if "matched/accuracy" in frame else ""
    parts.append(
        f"Means over clients, then over seeds ({seeds}); +- is half of a 95% t interval over seeds; "
        f"'- {study.against}' is the paired difference in points of the first score"
        f"{matched}, 'NLL - {study.against}' that of "
        "NLL in nats a row, both with 95% t intervals; they allow for seeds that deal the same rows anew (Nadeau and "
        "Bengio, 2003). "
        "'chosen' is the value of the tuned key with the lowest held-out negative log-likelihood.\n\n"
        f"{markdown(table(study, frame))}\n"
    )
    parts.append(made_by(command))
    (out / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")
    (draw_cells if "cell" in frame else draw)(study, frame, out / f"{name}.png")


def made_by(command: str) -> str:
    """The command and the versions behind a result."""
    names = ("torch", "pyro-ppl", "numpy", "scipy")
    versions = ", ".join(f"{n} {version(n)}" for n in names)
    started = f"`{command}`; " if command else ""
    return f"Made by {started}pyrofl {pyrofl.__version__}, Python {platform.python_version()}, {versions}.\n"
