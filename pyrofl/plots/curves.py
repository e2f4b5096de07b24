"""Learning curves: a score against the round, one line a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..metrics.score import SCORES, Meaning
from ..names import nearest
from .style import figure, in_order, look, plain, tidy


def learning_curves(
    metrics: pd.DataFrame,
    metric: str,
    *,
    split: str = "test",
    by: str = "run",
    unit: str = "",
    narrow: bool = False,
) -> Figure:
    """Mean of a score over clients in each round, with a band of one standard deviation between clients.

    `metrics` has the columns round, client, split, metric, value and `by` (the run, or a method to join
    seeds). Names in parentheses, such as (pooled), are no clients and are left out where there are clients;
    so are clients without a value in a round. The legend gives the last mean, best first; in a `narrow` figure it is
    above the curves.
    """
    rows = _rows(metrics, metric, split, by)
    model, _, name = metric.rpartition("/")
    meaning = SCORES.get(name, Meaning(name.replace("_", " "), unit))
    whose = f"{model} models, " if model else ""
    curves = {run: _curve(rows[rows[by] == run]) for run in in_order(rows[by])}
    drawn = figure(4.6, 3.1 + 0.17 * len(curves)) if narrow else figure(7.2, 4.2)
    axes = tidy(drawn.add_subplot())
    faint = min(0.16, 0.6 / len(curves))
    for position, (run, curve) in enumerate(curves.items()):
        style = look(position)
        few = max(len(curve) // 12, 1)
        last = curve["mean"].iloc[-1]
        label = f"{plain(run)}  {last:#.3g}" if np.isfinite(last) else f"{plain(run)}  infinite"
        axes.plot(curve.index, curve["mean"], label=label, linewidth=1.8, markevery=few, **style)
        low = (curve["mean"] - curve["std"]).clip(meaning.low, meaning.high)
        high = (curve["mean"] + curve["std"]).clip(meaning.low, meaning.high)
        axes.fill_between(curve.index, low, high, color=style["color"], alpha=faint, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel(meaning.title.replace(" (", "\n(") if narrow and len(meaning.title) > 34 else meaning.title)
    arrow = {"higher": ", higher is better", "lower": ", lower is better", None: ""}[meaning.better]
    axes.set_title(f"{whose}{split} rows, mean ± 1 sd over clients{arrow}", fontsize=8 if narrow else 9, loc="left")
    sign = -1 if meaning.better == "higher" else 1
    order = np.argsort([sign * c["mean"].iloc[-1] for c in curves.values()], kind="stable")  # NaN last
    handles, texts = axes.get_legend_handles_labels()
    drawn.legend(
        [handles[i] for i in order],
        [texts[i] for i in order],
        loc="outside upper left" if narrow else "outside right upper",
        frameon=False,
        fontsize=8,
        title="last round",
        title_fontsize=8,
        alignment="left",
    )
    return drawn


def _rows(metrics: pd.DataFrame, metric: str, split: str, by: str) -> pd.DataFrame:
    missing = [c for c in ("round", "client", "split", "metric", "value", by) if c not in metrics]
    if missing:
        raise ValueError(f"no column {missing[0]!r} in the metrics; found {', '.join(map(str, metrics.columns))}")
    for column, wanted in (("metric", metric), ("split", split)):
        found = sorted(set(metrics[column].astype(str)))
        if wanted not in found:
            raise ValueError(f"no {column} {wanted!r} in the metrics{nearest(wanted, found)}")
    rows = metrics[(metrics["metric"] == metric) & (metrics["split"] == split)]
    rows = rows.assign(value=rows["value"].astype(float)).dropna(subset="value")
    aside = rows["client"].astype(str).str.startswith("(")
    rows = rows if aside.all() else rows[~aside]
    if rows.empty:
        raise ValueError(f"{metric} on {split} rows has no value in any round")
    return rows


def _curve(rows: pd.DataFrame) -> pd.DataFrame:
    """round -> (mean, std) over clients; the spread of one client is 0, and an infinite mean leaves a gap."""
    finite = rows.groupby("round")["value"].transform(lambda v: np.isfinite(v).all())
    curve = rows.assign(value=rows["value"].where(finite)).groupby("round")["value"].agg(["mean", "std"])
    return curve.fillna({"std": 0.0}).sort_index()
