"""Several methods on the same clients with the same budget and seeds, and their tables and figure."""

from __future__ import annotations

import argparse
import copy
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import track

from pyrofl import assemble, store
from pyrofl.config import Config, config_of, override
from pyrofl.plots import save
from pyrofl.plots.style import figure, look, tidy
from pyrofl.run import Run

from ..study_jobs import Job
from ..study_report import made_by
from ..tables import markdown, points, test_per_train

HERE = Path(__file__).parent
SCORES = ("balanced_accuracy", "accuracy")
PARTS = "parts"  # in the folder of results: the scores of each run
console = Console()


@dataclass(frozen=True)
class Arm:
    """A contestant: its method's own keys, and other tables that it needs; `single` runs every client by itself."""

    method: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    single: bool = False


ALONE, FEDAVG, FEDPROX = Arm({"name": "alone"}), Arm({"name": "fedavg"}), Arm({"name": "fedprox", "mu": 0.01})
PUBLIC = {"name": "fedmap", "fixed_variance": 15.0, "literal": True}
ARMS = {
    "alone": ALONE,
    "fedavg": FEDAVG,
    "fedprox": FEDPROX,
    "fedbn": Arm({"name": "fedbn", "weighting": "rows"}, {"model": {"norm": True}}),
    "fedmap": Arm({"name": "fedmap"}),
    "fedmap_fixed": Arm(PUBLIC),
    "fedmap_single": Arm(PUBLIC, single=True),
}


def scores(
    config: str, arms: Mapping[str, Arm], out: Path, *, seeds: Sequence[int], less: Sequence[str] = ()
) -> pd.DataFrame:
    """One row an arm, seed and client: the personal model's scores on the client's test rows after the last round.

    All arms share the file's budget (rounds, epochs, batch, optimizer), and at each seed the same rows. Every run is
    kept in `out`/PARTS by its configuration, so that what was stopped goes on.
    """
    base = tomllib.loads((HERE / config).read_text(encoding="utf-8"))
    budget = {k: v for k, v in base["method"].items() if k in ("epochs", "size", "optimizer")}
    frames = []
    for seed in track(seeds, description=config, console=console, transient=True):
        for name, arm in arms.items():
            table = copy.deepcopy(base) | {"seed": seed}
            table["method"] = {**budget, **arm.method}
            for key, more in arm.tables.items():
                table[key] = {**table.get(key, {}), **more}
            for text in less:
                override(table, text)
            made = config_of(table)
            place = out / PARTS / f"{name}-{Job(made).digest}.csv"
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                store.write(place, pd.DataFrame(_rows(made, single=arm.single)).to_csv(index=False).encode())
            frames.append(pd.read_csv(place).assign(arm=name, seed=seed))
    return pd.concat(frames, ignore_index=True)[["arm", "seed", "client", *SCORES]]


def _rows(config: Config, *, single: bool) -> Iterator[dict[str, Any]]:
    """The scores of each client after the last round."""
    for last in _last_rounds(config, single=single):
        for client, values in last.scores["personal"].items():
            if not client.startswith("("):
                yield {"client": client, **{s: values[s] for s in SCORES}}


def _last_rounds(config: Config, *, single: bool) -> Iterator[Any]:
    assembled = assemble(config)
    if not single:
        yield list(assembled.run())[-1]
        return
    whole = assembled.run()
    for client in assembled.federation.clients:
        federation = replace(assembled.federation, clients=(client,))
        alone = Run(assembled.method, federation, engine=whole.engine, rounds=whole.rounds, seed=whole.seed)
        yield list(alone)[-1]


def means(frame: pd.DataFrame, groups: Mapping[str, Sequence[str]], score: str) -> pd.DataFrame:
    """Mean over seeds of each client, and of the mean over each group of clients: a row each, a column an arm."""
    table = frame.pivot_table(index="client", columns="arm", values=score, sort=False)
    for name, clients in groups.items():
        table.loc[f"mean of {name}"] = table.loc[list(clients)].mean()
    return table[list(dict.fromkeys(frame["arm"]))]


def difference(frame: pd.DataFrame, a: str, b: str, clients: Sequence[str], score: str, *, overlap: float = 0.0) -> str:
    """a - b in points, averaged over `clients`, with its 95% interval: seeds are paired."""
    some = frame[frame["client"].isin(clients)].groupby(["arm", "seed"])[score].mean()
    return points(some[a].to_dict(), some[b].to_dict(), overlap=overlap)


def overlap_of(config: str) -> float:
    """`overlap` of a data set that every seed deals anew."""
    return test_per_train(float(tomllib.loads((HERE / config).read_text(encoding="utf-8"))["data"]["test"]))


def rounded(table: pd.DataFrame, *, digits: int = 3) -> pd.DataFrame:
    """The table with its index as a first column without a name, and numbers as text."""
    return table.map(lambda v: f"{v:.{digits}f}").reset_index(names="")


def report(
    frame: pd.DataFrame,
    groups: Mapping[str, Sequence[str]],
    against: Sequence[tuple[str, str]],
    *,
    title: str,
    overlap: float = 0.0,
) -> str:
    """The scores of an experiment, and the differences `against`, as Markdown; `overlap`: see `paired_difference`."""
    seeds = sorted(frame["seed"].unique())
    parts = [f"## {title}", f"Seeds {', '.join(map(str, seeds))}; personal models, test rows, means over seeds."]
    for score in SCORES:
        parts += [f"### {score.replace('_', ' ')}", markdown(rounded(means(frame, groups, score)))]
    gap = lambda a, b, clients: difference(frame, a, b, clients, "balanced_accuracy", overlap=overlap)
    gaps = {f"{a} - {b}": {g: gap(a, b, clients) for g, clients in groups.items()} for a, b in against}
    text = "### differences of balanced accuracy, in points, with 95% t intervals over seeds"
    text += ", which deal the same rows anew" if overlap else ""
    return "\n\n".join([*parts, text, markdown(pd.DataFrame(gaps).T.reset_index(names=""))]) + "\n"


def draw(frames: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Balanced accuracy of each client, a panel an experiment; the arms of a client side by side."""
    columns, seen = min(len(frames), 3), set[str]()
    drawn = figure(3.6 * columns + 2, 2.9 * math.ceil(len(frames) / columns) + 0.6)
    arms = list(dict.fromkeys(arm for frame in frames.values() for arm in frame["arm"]))
    for i, (title, frame) in enumerate(frames.items()):
        place = (math.ceil(len(frames) / columns), columns, i + 1)
        axes = tidy(drawn.add_subplot(*place, sharey=drawn.axes[0] if i else None))
        table = means(frame, {}, "balanced_accuracy")
        for arm in table.columns:
            j = arms.index(arm)
            places = [row + 0.8 * (j + 0.5) / len(arms) - 0.4 for row in range(len(table))]
            style = {**look(j), "linestyle": "none"}
            axes.plot(places, table[arm], label=arm if arm not in seen else None, **style)
            seen.add(arm)
        axes.set_xticks(range(len(table)), [str(c).removeprefix("client ") for c in table.index], fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("client")
    for axes in drawn.axes[::columns]:
        axes.set_ylabel("balanced accuracy, test rows")
    drawn.legend(loc="outside upper center", ncols=len(arms), fontsize=8, frameon=False)
    return save(drawn, path)


def options_of(about: str | None, given: Sequence[str] | None) -> argparse.Namespace:
    """--scale smoke (one round, one seed) or cpu (the committed results; full is the same), and --out."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("smoke", "cpu", "full"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(given)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def write(name: str, options: argparse.Namespace, frames: Mapping[str, pd.DataFrame], texts: Sequence[str]) -> None:
    """NAME.csv, NAME.md and NAME.png in `options.out`."""
    out, made = options.out, made_by(f"python -m experiments.fedmap.{name} --scale {options.scale} --out DIR")
    everything = pd.concat([frame.assign(experiment=title) for title, frame in frames.items()])
    everything.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    (out / f"{name}.md").write_text("\n".join([*texts, made]), encoding="utf-8")
    draw(frames, out / f"{name}.png")
    console.print(f"wrote {name}.csv, {name}.md and {name}.png to {out}")
