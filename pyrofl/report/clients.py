"""The section on clients: a table with intervals, and the headline score of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import metrics, plots
from .answer import LEVEL, failing, share_interval, whose
from .figures import Figures
from .parts import Cell, Section, Table
from .read import Recorded, Rows

_NONE = 1e-9  # nats: the epistemic entropy of a point estimate, up to rounding


def clients(runs: Sequence[Recorded], figures: Figures) -> Section:
    """The table of clients, and the headline score of each with its interval."""
    section = Section("Clients")
    for run in runs:
        if run.scored is None:
            section.missing.append(run.say("no round was scored yet."))
            continue
        section.tables.append(_of_classes(run) if run.of_classes else _of_numbers(run))
        known = {c: _triple(run, c) for c in run.clients}
        if run.rows and run.of_classes and any(known.values()):
            interval = f"{LEVEL:.0%} Clopper-Pearson"
            drawn = plots.caterpillar(known, "accuracy", interval=interval, pooled=run.pooled("accuracy"), width=4.6)
            section.pictures.append(
                figures.picture(drawn, run.say(f"accuracy of each client with {whose(run)}, the worst on top"))
            )
    if any(failing(r) for r in runs):
        section.text.append("Marked ▼: clients whose accuracy is below that of all rows, beyond chance.")
    return section


def _triple(run: Recorded, client: str) -> tuple[float, float, float] | None:
    right = run.rows_of(client).get("right", np.empty(0))
    if not len(right):
        return None
    low, high = share_interval(float(right.sum()), len(right))
    return float(right.mean()), low, high


def _held(run: Recorded, client: str, column: str) -> Cell:
    if run.partition is None:
        return Cell("–")
    count = int(run.partition.set_index("client")[column][client])
    return Cell(str(count), count)


def _name(run: Recorded, client: str, bad: Sequence[str]) -> Cell:
    return Cell(f"▼ {client}" if client in bad else client, client)


def _mean_nll(rows: Rows) -> Cell:
    nll = rows.get("nll", np.empty(0))
    if not len(nll):
        return Cell("–")
    if len(nll) < 2 or not np.isfinite(nll).all():
        return Cell.number(float(nll.mean()))
    half = 1.96 * float(nll.std(ddof=1)) / len(nll) ** 0.5
    return Cell.number(float(nll.mean()), more=f"± {half:.3f}")


def _extra(run: Recorded) -> list[tuple[str, dict[str, float | None], bool]]:
    """Columns that only some runs have: (label, client -> value, is it a share)."""
    wanted = [
        ("balanced, shared rows", "balanced", "accuracy", True),
        ("matched, shared rows", "matched", "accuracy", True),
        ("epistemic entropy", run.model, "entropy_epistemic", False),
        ("temperature", "tempered", "temperature", False),
        ("NLL at that temperature", "tempered", "nll", False),
        ("global model’s accuracy", "global" if run.model == "personal" else "", "accuracy", True),
    ]
    found = [(label, run.last(model, score), share) for label, model, score, share in wanted if model]
    return [entry for entry in found if any(v is not None and v > _NONE for v in entry[1].values())]


def _of_classes(run: Recorded) -> Table:
    scores = {s: run.last(run.model, s) for s in ("accuracy", "balanced_accuracy", "brier", "ece", "auroc")}
    extra, bad = _extra(run), failing(run)
    columns = ["client", "train rows", "test rows", "accuracy", "balanced accuracy", "NLL", "Brier", "ECE", "AUROC"]
    lines = []
    for i, c in enumerate(run.clients):
        rows, triple = run.rows_of(c), _triple(run, c)
        more = "" if triple is None else f"({100 * triple[1]:.0f}–{100 * triple[2]:.0f})"
        error = ""
        if triple is not None:
            rng = np.random.default_rng(i)
            error = "({:.2f}–{:.2f})".format(
                *metrics.confidence_interval(rows["confidence"], rows["right"], rng=rng, resamples=200)[:2]
            )
        lines.append(
            [
                _name(run, c, bad),
                _held(run, c, "train"),
                _held(run, c, "test"),
                Cell.number(scores["accuracy"].get(c), share=True, more=more),
                Cell.number(scores["balanced_accuracy"].get(c), share=True),
                _mean_nll(rows) if rows else Cell.number(run.last(run.model, "nll").get(c)),
                Cell.number(scores["brier"].get(c)),
                Cell.number(scores["ece"].get(c), more=error),
                Cell.number(scores["auroc"].get(c)),
                *(Cell.number(values.get(c), share=share) for _, values, share in extra),
            ]
        )
    caption = run.say(f"{whose(run)}; {LEVEL:.0%} intervals: accuracy Clopper-Pearson, NLL normal, ECE bootstrap")
    return Table(caption, [*columns, *(label for label, _, _ in extra)], lines)


def _of_numbers(run: Recorded) -> Table:
    scores = ("rmse", "crps", "coverage_50", "coverage_90")
    found = {s: run.last(run.model, s) for s in scores}
    columns = ["client", "train rows", "test rows", "RMSE", "CRPS", "NLL", "in 50% interval", "in 90% interval"]
    lines = []
    for c in run.clients:
        rows = run.rows_of(c)
        more = ""
        if rows and len(rows["pit"]):
            inside = np.abs(2 * rows["pit"] - 1) <= 0.9
            more = "({:.0f}–{:.0f})".format(*(100 * v for v in share_interval(float(inside.sum()), len(inside))))
        lines.append(
            [
                _name(run, c, ()),
                _held(run, c, "train"),
                _held(run, c, "test"),
                Cell.number(found["rmse"].get(c)),
                Cell.number(found["crps"].get(c)),
                _mean_nll(rows) if rows else Cell.number(run.last(run.model, "nll").get(c)),
                Cell.number(found["coverage_50"].get(c), share=True),
                Cell.number(found["coverage_90"].get(c), share=True, more=more),
            ]
        )
    return Table(run.say(f"{whose(run)}; {LEVEL:.0%} intervals in parentheses"), columns, lines)
