"""The evidence behind the answer. Each function makes one section of all runs; `SECTIONS` is their order.

A section that has nothing to say of a run says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from .. import metrics, plots
from ..compare import choices
from ..console import size
from .answer import LEVEL, whose
from .clients import clients
from .figures import Figures
from .parts import Cell, Section, Table
from .read import Recorded

_NOT_KEPT = "no predictions of single rows are kept (the run was not scored yet, or by an older version)"
_NO_POSTERIORS = "no posteriors are kept (not scored yet, or a guide without a location and scale for each weight)."
_CLASSES_ONLY = "is for classes, and this run predicts numbers"
_NUMBERS_ONLY = "is for numbers and counts, and this run predicts classes"


def learning(runs: Sequence[Recorded], figures: Figures) -> Section:
    """Scores and training loss against the round, all runs in one figure."""
    section = Section("Learning curves")
    frame = pd.concat([r.metrics.assign(run=r.name) for r in runs], ignore_index=True)
    there = set(zip(frame["metric"], frame["split"]))
    wanted = [(f"{m}/{s}", "test") for m in ("personal", "global") for s in ("accuracy", "rmse", "nll")]
    for metric, split in [*wanted, ("loss", "train")]:
        values = frame[(frame["metric"] == metric) & (frame["split"] == split)]["value"]
        if (metric, split) in there and np.isfinite(values).any():
            model, _, score = metric.rpartition("/")
            label = metrics.meaning(score).label
            words = (
                f"{label.capitalize()} of the {model} models on test rows"
                if model
                else f"{label.capitalize()} of the clients"
            )
            drawn = plots.learning_curves(frame, metric, split=split, narrow=True)
            section.pictures.append(figures.picture(drawn, f"{words}, by round"))
    if len(section.pictures) == 0:
        section.missing.append("No round was scored yet.")
    return section


def reliability(runs: Sequence[Recorded], figures: Figures) -> Section:
    """Isotonic reliability, and what is gained by keeping only sure predictions."""
    section = Section("Reliability")
    for run in runs:
        if not run.of_classes:
            section.missing.append(run.say(f"a reliability diagram {_CLASSES_ONLY}."))
            continue
        if not run.rows:
            section.missing.append(run.say(f"{_NOT_KEPT}."))
            continue
        sure, right = run.rows["confidence"], run.rows["right"]
        curve = metrics.isotonic(sure, right, rng=np.random.default_rng(0), level=LEVEL)
        section.text.append(
            run.say(
                f"recalibration would save {curve.miscalibration:.4f} of the Brier score of “the prediction is right” "
                f"(miscalibration); confidence explains {curve.discrimination:.4f} of it (discrimination)."
            )
        )
        drawn = plots.isotonic_curve(curve, sure)
        caption = run.say(f"share of right predictions against confidence, test rows of all clients, {whose(run)}")
        section.pictures.append(figures.picture(drawn, caption))
        drawn = plots.selective_curve(sure, right)
        section.pictures.append(figures.picture(drawn, run.say("accuracy if the least sure rows are passed on")))
    return section


def intervals(runs: Sequence[Recorded], figures: Figures) -> Section:
    """Coverage at every level, and the PIT."""
    section = Section("Coverage and PIT")
    for run in runs:
        if run.of_classes:
            section.missing.append(run.say(f"coverage of intervals {_NUMBERS_ONLY}."))
        elif not run.rows:
            section.missing.append(run.say(f"{_NOT_KEPT}."))
        else:
            u = run.rows["pit"]
            covered = figures.picture(plots.coverage_curve(u), run.say("observations inside central intervals"))
            heaps = figures.picture(
                plots.pit_histogram(u),
                run.say("probability integral transform; a dome means too wide forecasts, a bowl too narrow ones"),
            )
            section.pictures += [covered, heaps]
    return section


def selected(runs: Sequence[Recorded], figures: Figures) -> Section:
    """The optimizers that clients chose."""
    section = Section("Selected optimizers")
    for run in runs:
        chosen = choices(run.table)
        if chosen.empty:
            method = run.config["method"]
            why = "no round is done yet." if "optimizers" in method else f"method {method['name']} selects nothing."
            section.missing.append(run.say(why))
            continue
        shares = chosen["choice"].value_counts(normalize=True)
        said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        section.text.append(run.say(f"over clients and rounds {said}."))
        drawn = plots.selected_optimizers(
            chosen, choices=run.config["method"]["optimizers"], clients=run.clients or None
        )
        section.pictures.append(figures.picture(drawn, run.say("what each client chose in each round")))
    return section


def partition(runs: Sequence[Recorded], figures: Figures) -> Section:
    """Who holds what; runs on the same data share a figure."""
    section = Section("Partition")
    drawn: list[pd.DataFrame] = []
    for run in runs:
        table = run.partition
        if table is None:
            section.missing.append(run.say("the partition is not recorded, an older version ran it."))
            continue
        if any(table.equals(other) for other in drawn):
            continue
        drawn.append(table)
        train, test = table["train"], table["test"]
        section.text.append(
            run.say(
                f"{len(table)} clients, {train.sum()} training and {test.sum()} test rows; training rows a "
                f"client from {train.min()} to {train.max()}, median {train.median():g}."
            )
        )
        classes = list(table.columns[3:])
        if classes and len(table):
            counts = table[classes].to_numpy()
            figure = plots.partition(counts, names=list(table["client"]), classes=classes)
            section.pictures.append(figures.picture(figure, run.say("training rows of each class at each client")))
    return section


def disagreement(runs: Sequence[Recorded], figures: Figures) -> Section:
    """How far the clients' own posteriors are apart."""
    section = Section("Disagreement between clients")
    for run in runs:
        kept = run.posteriors.values
        if not kept:
            section.missing.append(run.say(_NO_POSTERIORS))
            continue
        distance = np.asarray(kept["distance"])
        if len(distance) < 2 or not distance.max() > 0:
            section.missing.append(run.say("all clients predict with the same model."))
            continue
        names = [run.clients[i] for i in kept["client"]]
        off = distance[~np.eye(len(distance), dtype=bool)]
        far = np.unravel_index(distance.argmax(), distance.shape)
        section.text.append(
            run.say(
                f"Wasserstein-2 distance between two clients’ weights {np.median(off):.3g} (median), at most "
                f"{distance.max():.3g}, between {names[far[0]]} and {names[far[1]]}."
            )
        )
        drawn = plots.disagreement(distance, names=names)
        section.pictures.append(figures.picture(drawn, run.say("distances between clients’ posteriors")))
    return section


def layers(runs: Sequence[Recorded], figures: Figures) -> Section:
    """How wide the posteriors are, and how much of them is signal."""
    section = Section("Posterior by layer")
    for run in runs:
        kept, notes = run.posteriors
        if not kept:
            section.missing.append(run.say(_NO_POSTERIORS))
            continue
        if np.isnan(kept["width"]).all():
            section.missing.append(run.say("the weights are point estimates, which have no width."))
            continue
        drawn = plots.layers(kept["width"], kept["snr"], sites=notes["sites"].split("\n"))
        section.pictures.append(
            figures.picture(drawn, run.say("posterior scale and signal-to-noise ratio of each layer’s weights"))
        )
    return section


def trust(runs: Sequence[Recorded], figures: Figures) -> Section:
    """Whether the variational posterior deserves trust: the table of `pyrofl evaluate`."""
    section = Section("Trust in the posterior")
    for run in runs:
        if run.checks is None:
            section.missing.append(run.say(f"k-hat, LOO and contraction are computed by: pyrofl evaluate {run.name}"))
            continue
        columns = list(run.checks.columns)
        rows = [[Cell(str(name), str(name)), *map(_checked, line)] for name, line in run.checks.iterrows()]
        section.tables.append(Table(run.say("checks on training rows, a line a client"), ["client", *columns], rows))
        section.text.append("k-hat above 0.7: the guide is far from the posterior; “high k”: rows where LOO is unsure.")
    return section


def _checked(value: object) -> Cell:
    return Cell.number(float(value), 2) if isinstance(value, int | float) else Cell(str(value), str(value))


def communication(runs: Sequence[Recorded], figures: Figures) -> Section:
    """What was sent, and how long it took."""
    section = Section("Communication")
    lines = []
    for run in runs:
        down, up, lost = (run.table.total(m) for m in ("bytes_down", "bytes_up", "left_out"))
        done = max(run.round, 1)
        lines.append(
            [
                Cell(run.name, run.name),
                Cell(str(run.round), run.round),
                *(Cell(size(v), v) for v in (down, up, (down + up) / done)),
                Cell(f"{lost:.0f}", lost),
                Cell.number(run.table.seconds, 1),
            ]
        )
    columns = ["run", "rounds", "to clients", "to server", "a round, both ways", "replies left out", "seconds"]
    section.tables.append(Table("Bytes of uncompressed tensors, over all clients and rounds", columns, lines))
    reported = [r for r in runs if not _reported(r).empty]
    for run in reported:
        last = _reported(run).groupby("metric")["value"].last()
        rows = [[Cell(n.replace("_", " "), n), Cell.number(float(v), 4)] for n, v in last.items()]
        section.tables.append(Table(run.say("the server’s own numbers, last round"), ["number", "value"], rows))
    return section


def _reported(run: Recorded) -> pd.DataFrame:
    server = run.metrics[run.metrics["split"] == "run"]
    return server[~server["metric"].isin(("bytes_down", "bytes_up", "left_out"))]


SECTIONS: tuple[Callable[[Sequence[Recorded], Figures], Section], ...] = (
    clients,
    learning,
    reliability,
    intervals,
    selected,
    partition,
    disagreement,
    layers,
    trust,
    communication,
)
