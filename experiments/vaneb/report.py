"""Tables and figures of the simulation, from its CSV alone.

python -m experiments.vaneb.report --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.study_report import made_by
from experiments.vaneb.simulations import COLUMNS, SETTINGS, curves
from pyrofl.plots.style import look, save

EXACT = ("vaneb_exact", "exact_cross")
METHODS = ("gaussian", "adamix", "npeb", "fixed", "alternating", "vaneb", "vaneb_cross", "vaneb_exact", "exact_cross")
CHANCES = ("raw", "fixed", "alternating", "vaneb", "vaneb_exact")  # whose error of probabilities is shown
NAMES = {
    "gaussian": "Gaussian EB",
    "adamix": "AdaMix",
    "npeb": "NPEB (package recipe)",
    "fixed": "fixed-variance EB",
    "alternating": "VANEB, alternating",
    "vaneb": "VANEB",
    "vaneb_cross": "VANEB, cross-fitted",
    "vaneb_exact": "exact counts",
    "exact_cross": "exact, cross-fitted",
    "raw": "raw",
}


def excess_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard error over repeats of error minus oracle error, by setting, sites and method."""
    return _excess(rows, rows.error - rows.oracle)


def chance_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The same for the error of class probabilities over that of the oracle with the exact likelihood."""
    best = rows.groupby(["setting", "sites", "repeat"]).chance_oracle.transform("min")
    return _excess(rows, rows.chance_error - best)


def _excess(rows: pd.DataFrame, excess: pd.Series) -> pd.DataFrame:
    some = rows.assign(excess=excess).dropna(subset="excess")
    return some.groupby(["setting", "sites", "method"]).excess.agg(["mean", "sem", "count"])


def present(table: pd.DataFrame, setting: str, methods: Sequence[str]) -> list[str]:
    """The methods that the table has for the setting."""
    has = set(table.loc[setting].index.get_level_values("method")) if setting in table.index else set()
    return [method for method in methods if method in has]


def slope(table: pd.DataFrame, setting: str, method: str) -> tuple[float, float]:
    """Least-squares slope of log excess on log K with its standard error."""
    part = table.loc[setting].xs(method, level="method")["mean"]
    part = part[part > 0]
    if len(part) < 3:
        return float("nan"), float("nan")
    fit, covariance = np.polyfit(np.log(part.index), np.log(part), 1, cov=True)
    return float(fit[0]), float(np.sqrt(covariance[0, 0]))


def paired(rows: pd.DataFrame, setting: str, sites: int) -> tuple[float, float, int]:
    """Fixed-variance error minus VANEB error on the same data: mean, standard error, repeats."""
    part = rows[(rows.setting == setting) & (rows.sites == sites)]
    wide = part[part.method.isin(["fixed", "vaneb"])].pivot(index="repeat", columns="method", values="error")
    gap = wide.fixed - wide.vaneb
    return float(gap.mean()), float(gap.sem()), len(gap)


def cell(mean: float, error: float, digits: int = 4) -> str:
    """A mean and its standard error, or a dash where nothing was run."""
    return ("-" if np.isnan(mean) else f"{mean:.{digits}f} ({error:.{digits}f})").rjust(23)


def block(table: pd.DataFrame, setting: str, methods: Sequence[str], ends: dict[int, str]) -> list[str]:
    """A line for each number of sites, `ends` after it, and the slopes."""
    lines = ["    K " + "".join(f"{NAMES[m]:>23}" for m in methods)]
    for sites in sorted(table.loc[setting].index.get_level_values("sites").unique()):
        means = table.loc[(setting, sites)].reindex(methods)
        lines.append(f"{sites:5d} " + "".join(map(cell, means["mean"], means["sem"])))
        lines[-1] += ends.get(sites, "")
    return [*lines, "slope " + "".join(cell(*slope(table, setting, m), digits=2) for m in methods)]


def text(rows: pd.DataFrame) -> str:
    """Everything the README quotes."""
    rows = rows.reindex(columns=COLUMNS)
    table, chances, lines = excess_table(rows), chance_table(rows), []
    for setting in rows.setting.unique():
        part, about = rows[rows.setting == setting], SETTINGS[setting]
        raw, bound = part[part.method == "raw"].error.mean(), part.van_trees.mean()
        oracle = part[~part.method.isin(["vaneb_exact", "exact_cross", "smoothed_exact"])].oracle.mean()
        lines.append(f"\n{setting}: {about.text}; n_k {about.smallest} to {about.largest}")
        lines.append(f"raw {raw:.4f}, oracle {oracle:.4f}, van Trees bound {bound:.4f} (thickened prior)")
        lines.append("excess over the oracle, mean (standard error); at the end fixed - VANEB, paired")
        ends = {}
        for sites in sorted(part.sites.unique()):
            gap, error, count = paired(rows, setting, sites)
            ends[sites] = f"   {gap:+.4f} ({error:.4f}), {count} repeats"
        lines += block(table, setting, present(table, setting, METHODS), ends)
        if shown := present(chances, setting, CHANCES):
            lines.append("error of the class probabilities, excess over the oracle with the exact likelihood")
            lines += block(chances, setting, shown, {})
    with_intervals = rows[rows.coverage.notna()]
    covered = with_intervals.groupby(["method", "setting", "sites"]).coverage.agg(["mean", "sem", "count"])
    lines.append("\ncoverage of 95% intervals, widened prior, over sites and coordinates")
    lines.append(covered.round(4).to_string())
    timing = rows[rows.method.isin(METHODS)].groupby(["method", "sites"]).seconds.mean().unstack()
    lines.append("\nmean seconds (two shared cores)\n" + timing.round(2).to_string())
    gaps = rows[rows.method.isin(["vaneb", "fixed", "vaneb_exact"])].groupby("method").gap.max()
    lines.append("\nlargest gap, nats a site (asked for 1e-3)\n" + gaps.to_string())
    return "\n".join(lines)


def excess_figure(rows: pd.DataFrame) -> Figure:
    rows = rows.reindex(columns=COLUMNS)
    table, settings = excess_table(rows), list(rows.setting.unique())
    drawn = Figure(figsize=(11, 6.5), layout="constrained", facecolor="white")
    axes = drawn.subplots(2, -(-len(settings) // 2), squeeze=False).ravel()
    for ax, setting in zip(axes, settings):
        chances = (
            setting in chance_table(rows).index
        )  # where log odds have no end: the exact fits would hide the others
        for method in present(table, setting, [m for m in METHODS if not (chances and m in EXACT)]):
            i = METHODS.index(method)
            part = table.loc[setting].xs(method, level="method")
            ax.errorbar(part.index, part["mean"], yerr=part["sem"].fillna(0), label=NAMES[method], **look(i))
        ax.set(xscale="log", yscale="log", title=setting, xlabel="sites K", ylabel="mean squared error - oracle")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(settings) :]:
        ax.remove()
    entries = {label: handle for ax in drawn.axes for handle, label in zip(*ax.get_legend_handles_labels())}
    drawn.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=4, frameon=False, handlelength=4)
    return drawn


def prior_figure() -> Figure:
    points = curves(np.random.default_rng(0), 4000)
    drawn = Figure(figsize=(5, 5), layout="constrained", facecolor="white")
    ax = drawn.add_subplot(projection="3d")
    ax.scatter(*points.T, s=1, c=points[:, 2], cmap="viridis")
    ax.set_title("the five-curve prior")
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of simulations.csv")
    out = parser.parse_args(arguments).out
    if not (out / "simulations.csv").exists():
        parser.error(f"{out} has no simulations.csv: python -m experiments.vaneb.simulations --out {out} makes it")
    rows = pd.read_csv(out / "simulations.csv")
    save(excess_figure(rows), out / "excess.png", dpi=110)
    save(prior_figure(), out / "prior.png", dpi=110)
    said, made = text(rows), made_by("python -m experiments.vaneb.simulations --out DIR")
    (out / "simulations.md").write_text(
        f"# Simulations of variance-aware empirical Bayes\n\n```text{said}\n```\n\n{made}"
    )
    print(said)


if __name__ == "__main__":
    main()
