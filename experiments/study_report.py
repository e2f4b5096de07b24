"""What a study found: results.csv, a table with intervals, and a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from pyrofl.plots import save
from pyrofl.plots.style import figure, tidy

from .study import Study
from .tables import markdown, points

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
LEVEL = 0.95


def interval(values: pd.Series) -> tuple[float, float]:
    """Mean, and half the width of its 95% t interval (NaN for one value)."""
    v = values.dropna()
    if len(v) < 2:
        return float(v.mean()) if len(v) else float("nan"), float("nan")
    half = student.ppf((1 + LEVEL) / 2, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))
    return float(v.mean()), float(half)


def table(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """One row an arm, sorted by personal accuracy: means over seeds, and the difference from `against`."""
    scores = {k: h for k, h in COLUMNS.items() if k in frame and frame[k].notna().any()}
    rows = []
    for name, runs in frame.groupby("arm", sort=False):
        row: dict[str, object] = {"arm": name, "order": runs[_first(frame)].mean()}
        for score, heading in scores.items():
            mean, half = interval(runs[score])
            row[heading] = "" if np.isnan(mean) else f"{mean:.3f}" + ("" if np.isnan(half) else f" +- {half:.3f}")
        row[f"- {study.against}"] = difference(frame, str(name), study.against)
        row["MiB"], row["seconds"] = f"{runs['bytes'].mean() / 2**20:.1f}", f"{runs['seconds'].mean():.1f}"
        row["chosen"] = runs["chosen"].iloc[0]
        rows.append(row)
    return pd.DataFrame(rows).sort_values("order", ascending=False, kind="stable").drop(columns="order")


def _first(frame: pd.DataFrame) -> str:
    """The score that orders the arms: the first of COLUMNS that there is."""
    return next(k for k in (*COLUMNS, "common/accuracy") if k in frame and frame[k].notna().any())


def difference(frame: pd.DataFrame, a: str, b: str) -> str:
    """a - b with its 95% interval over paired seeds, in points."""
    score = _first(frame)
    by_arm = {arm: dict(zip(runs["seed"], runs[score])) for arm, runs in frame.groupby("arm") if arm in (a, b)}
    return "" if a == b or len(by_arm) < 2 else points(by_arm[a], by_arm[b])


def draw(study: Study, frame: pd.DataFrame, path: Path) -> Path:
    """Personal and global accuracy of every arm with 95% intervals over seeds, best at the top."""
    order = frame.groupby("arm")[_first(frame)].mean().sort_values().index
    drawn = figure(7, 0.24 * len(order) + 1.4)
    axes = tidy(drawn.add_subplot())
    for score, marker in (("personal/accuracy", "o"), ("global/accuracy", "|"), ("common/accuracy", "x")):
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


def write(study: Study, frame: pd.DataFrame, out: Path, name: str) -> None:
    """NAME.csv, NAME.md and NAME.png in `out`."""
    if frame.empty:
        return
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    seeds = ", ".join(map(str, sorted(frame["seed"].unique())))
    text = (
        f"# {study.title}\n\nMeans over clients, then over seeds ({seeds}); +- is half of a 95% t interval over seeds; "
        f"'- {study.against}' is the paired difference in points of the first score, with its 95% t interval. "
        "'chosen' is the value of the tuned key with the lowest held-out negative log-likelihood.\n\n"
    )
    (out / f"{name}.md").write_text(text + markdown(table(study, frame)) + "\n", encoding="utf-8")
    draw(study, frame, out / f"{name}.png")
