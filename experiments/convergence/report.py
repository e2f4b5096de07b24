"""Tables, figure and Markdown of what `measure.curves` found."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.study_report import interval, markdown
from pyrofl.plots import save
from pyrofl.plots.style import PALETTE, QUIET, figure, look, tidy

from . import claims
from .bounds import RATES, READINGS, theorem2, theorem2_rate
from .measure import STEPS, constants
from .problems import Problem
from .training import Path as Trained

HEADINGS = {
    **{reading: f"Theorem 2, Phi with {reading}" for reading in READINGS},
    "frozen": "Theorem 2, Phi at its first value",
    "li": "Li et al.",
}
SHOWN = 1e3  # curves are cut there


def slope(k: np.ndarray, values: np.ndarray) -> float:
    """Least-squares slope of log values on log k; NaN where a value is not finite and positive."""
    good = np.isfinite(values) & (values > 0)
    return float(np.polyfit(np.log(k), np.log(values), 1)[0]) if good.all() and len(k) > 1 else float("nan")


def slopes(frame: pd.DataFrame, column: str, since: int) -> pd.Series:
    """One slope a seed over the rounds from `since` on."""
    late = frame[(frame["k"] >= since) & (frame["k"] > 0)]
    return late.groupby("seed")[["k", column]].apply(lambda g: slope(g["k"].to_numpy(float), g[column].to_numpy()))


def _text(mean: float, half: float = float("nan"), *, form: str = ".2f") -> str:
    if not np.isfinite(mean):
        return "diverged" if form == ".2e" else ""
    return f"{mean:{form}}" + (f" +- {half:{form}}" if np.isfinite(half) else "")


def _since(runs: pd.DataFrame) -> int:
    """Where slopes begin: the last decade of rounds, or the smallest of the horizons."""
    return int(max(runs["k"].max() // 10, 1)) if (runs["k"] == 0).any() else int(runs["k"].min())


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a problem and schedule: the last gap, the slope of the gap and of the rate, and the bounds at K."""
    rows = []
    for (problem, name), runs in frame.groupby(["problem", "schedule"], sort=False):
        last, since = runs[runs["k"] == runs["k"].max()], _since(runs)
        rate = slopes(runs, "rate", since)
        row = {
            "problem": problem,
            "schedule": name,
            "F(w_K) - F*": _text(*interval(last["gap"]), form=".2e"),
            "slope": _text(*interval(slopes(runs, "gap", since))),
            "slope of eta_k": _text(rate.mean()),
            "rounds": f"{since} to {runs['k'].max()}",
        }
        for column in HEADINGS:
            row[HEADINGS[column]] = _text(float(last[column].mean()), form=".2g")
        rows.append(row)
    return pd.DataFrame(rows)


def gradients(frame: pd.DataFrame) -> pd.DataFrame:
    """E||grad F(z_K)||^2 of the three schedules of Theorem 1: at K, its slope beside that of the claimed rate."""
    rows = []
    for (problem, name), runs in frame[frame["schedule"].isin(RATES)].groupby(["problem", "schedule"], sort=False):
        last, since = runs[runs["k"] == runs["k"].max()], max(_since(runs), 2)
        k = np.sort(runs["k"].unique())
        k = k[k >= since].astype(float)
        rows.append(
            {
                "problem": problem,
                "schedule": name,
                "E grad(z_K)^2": _text(*interval(last["square"]), form=".2e"),
                "equation 59 with C_1 = 0": _text(float(last["theorem1"].mean()), form=".2g"),
                "slope": _text(*interval(slopes(runs, "square", since))),
                "slope of the claimed rate": _text(slope(k, RATES[str(name)](k))),
            }
        )
    return pd.DataFrame(rows)


def checks(problems: dict[str, Problem]) -> pd.DataFrame:
    """The derivation's steps on numbers (see `claims`), for each problem with the constants at its start."""
    rows: list[dict[str, str]] = []
    for name, p in problems.items():
        start = np.zeros((1, 1, p.x.shape[2]))
        noise, square = p.noise(np.zeros((len(p.x), p.x.shape[2])), 5)
        c = constants(p, Trained(start, np.empty((0, 1)), noise, float(square.max())))
        at = [theorem2(np.array(k), c, "(eta + 1)/eta^2") for k in (10, 100, 1000)]
        grow = ", ".join(f"{float(v):.2g}" for v in at)
        measured, said = claims.local_slopes(p)
        add = lambda step, found, name=name: rows.append({"problem": name, "step": step, "found": found})
        add("bound of Theorem 2 at K = 10, 100, 1000", grow)
        add(
            "eta_0 L, and first k with eta_k <= 1/(4L)",
            f"{theorem2_rate(0, c) * c.L:.0f}, {claims.first_allowed_round(c)}",
        )
        add("induction: Y_K (K + omega) over the claimed m", f"{claims.induction_ratio(c, 20_000):.2f}")
        add(
            "at w*: mean of grad F_n^2, and 2L times the mean of F_n - F*, said to be above",
            f"{measured:.3g}, {said:.0g}",
        )
        if p.kind == "linear":
            floors = [claims.floor_without_noise(p, 0.1, t) for t in (1, STEPS)]
            add("gap of a constant rate 0.1, no noise, T = 1 and 5", f"{floors[0]:.1g}, {floors[1]:.2g}")
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------- figure


def draw(frame: pd.DataFrame, path: Path) -> Path:
    """A row a problem: the schedules with bounds, the others, and E||grad F(z_K)||^2."""
    problems = list(frame["problem"].unique())
    drawn = figure(13.5, 4.6 * len(problems))
    for i, problem in enumerate(problems):
        here = frame[frame["problem"] == problem]
        places = [tidy(drawn.add_subplot(len(problems), 3, 3 * i + j + 1), grid="both") for j in range(3)]
        _gap(places[0], here, ["theorem 2", "theorem 2, late", "li"])
        _promises(places[0], here)
        _gap(places[1], here, ["a/sqrt(K)", "a/k", "a/sqrt(k)", "chosen"])
        _squares(places[2], here)
        places[0].set_title(f"{problem}: rates c / (k + omega), and bounds")
        places[1].set_title(f"{problem}: Theorem 1's rates, and chosen ones")
        places[2].set_title(f"{problem}: z_K drawn like eta_k")
        for axes in places:
            axes.set(xscale="log", yscale="log", xlabel="round")
            axes.legend(fontsize=7, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        for axes in places[:2]:
            axes.set_ylabel("F(w) - F*, nats a row")
        places[2].set_ylabel("E ||grad F(z_K)||^2")
    return save(drawn, path)


def _mean(runs: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    means = runs[runs["k"] > 0].groupby("k")[column].mean()
    return means.index.to_numpy(float), np.where(means.to_numpy() <= SHOWN, means.to_numpy(), np.nan)


def _gap(axes: Axes, here: pd.DataFrame, names: list[str]) -> None:
    for i, name in enumerate(names):
        runs = here[(here["schedule"] == name) & (here["k"] > 0)]
        k, mean = _mean(runs, "gap")
        style = look(i) | ({} if len(k) < 9 else {"marker": ""})
        axes.plot(k, mean, label=name, **style, linewidth=1.2)
        low, high = (runs.groupby("k")["gap"].quantile(q).clip(upper=SHOWN) for q in (0.1, 0.9))
        axes.fill_between(k, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _promises(axes: Axes, here: pd.DataFrame) -> None:
    late, li = (here[here["schedule"] == name] for name in ("theorem 2, late", "li"))
    for i, (column, label) in enumerate(HEADINGS.items()):
        axes.plot(
            *_mean(li if column == "li" else late, column),
            color=PALETTE[3 + i],
            linestyle="--",
            linewidth=1,
            label=label,
        )
    k, mean = _mean(li, "gap")
    axes.plot(k, mean[-1] * k[-1] / k, color=QUIET, linestyle=":", linewidth=1, label="1/K")


def _squares(axes: Axes, here: pd.DataFrame) -> None:
    for i, (name, rate) in enumerate(RATES.items()):
        k, mean = _mean(here[here["schedule"] == name], "square")
        axes.plot(k, mean, **look(i) | ({} if len(k) < 9 else {"marker": ""}), linewidth=1.2, label=name)
        far = k >= 2
        claimed = rate(k[far])
        axes.plot(k[far], claimed * mean[far][-1] / claimed[-1], color=look(i)["color"], linestyle=":", linewidth=1)


# ---------------------------------------------------------------------- files


def write(frame: pd.DataFrame, problems: dict[str, Problem], out: Path, *, command: str, seconds: float) -> str:
    """convergence.csv, convergence.png and convergence.md; returns the text of the last."""
    out.mkdir(parents=True, exist_ok=True)
    thin(frame).to_csv(out / "convergence.csv", index=False, float_format="%.5g")
    draw(frame, out / "convergence.png")
    text = _page(frame, problems, command=command, seconds=seconds)
    (out / "convergence.md").write_text(text, encoding="utf-8")
    return text


def thin(frame: pd.DataFrame, *, points: int = 25) -> pd.DataFrame:
    """Means over seeds at about `points` rounds a schedule, evenly apart in log k, with the gap's 95% interval."""
    numbers = [c for c in frame.columns if c not in ("problem", "schedule", "seed", "k")]
    groups = frame.groupby(["problem", "schedule", "k"], sort=False)
    means = groups[numbers].mean()
    means.insert(1, "gap_half", groups["gap"].apply(lambda v: interval(v)[1]))
    means = means.reset_index()
    kept = np.unique(np.geomspace(1, max(frame["k"].max(), 1), points).round())
    return means[means["k"].isin({0, *kept}) | (means["schedule"] == "a/sqrt(K)")]


def _page(frame: pd.DataFrame, problems: dict[str, Problem], *, command: str, seconds: float) -> str:
    names = ("pyrofl", "torch", "numpy", "scipy")
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{n} {version(n)}" for n in names)])
    facts = pd.DataFrame(
        {
            "problem": name,
            "L": f"{p.smoothness:.4g}",
            "mu": f"{p.convexity:.4g}",
            "Gamma": f"{p.heterogeneity:.4g}",
            "F(0) - F*": f"{float(p.value(np.zeros(p.x.shape[2])) - p.value(p.minimum)):.4g}",
            "clients, rows, weights": ", ".join(map(str, p.x.shape)),
        }
        for name, p in problems.items()
    )
    parts = [
        "# Measured convergence",
        f"`{command}`, {frame['seed'].nunique()} seeds (0 and on; problem seed 1), {seconds:.0f} s CPU, {versions}.",
        markdown(facts),
        "Gap after K rounds and its log-log slope over the rounds named, 95% t intervals over seeds; bounds at K.",
        markdown(gaps(frame)),
        "E||grad F(z_K)||^2, z_K drawn with probability proportional to eta_k.",
        markdown(gradients(frame)),
        "Rates that clients choose, over a = 0.9/L: " + _choices(frame, problems) + ".",
        "Steps of the derivation, on numbers.",
        markdown(checks(problems)),
        "![Gaps, bounds and gradients](convergence.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _choices(frame: pd.DataFrame, problems: dict[str, Problem]) -> str:
    found = []
    for name, p in problems.items():
        runs = frame[(frame["problem"] == name) & (frame["schedule"] == "chosen")]
        share = runs.groupby("k")["rate"].mean().dropna() * p.smoothness / 0.9
        tenth = max(len(share) // 10, 1)
        early, late = share.iloc[:tenth].mean(), share.iloc[-tenth:].mean()
        found.append(f"{name} {early:.2f} in the first tenth of the rounds, {late:.2f} in the last")
    return "; ".join(found)
