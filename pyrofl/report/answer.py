"""The first lines of the page: which method, how accurate, how well calibrated, and for whom it fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import beta

from .. import metrics
from .parts import Cell, Section, Table
from .read import Recorded

LEVEL = 0.95


def share_interval(hits: float, rows: int, *, level: float = LEVEL) -> tuple[float, float]:
    """Interval for a share of so many rows that holds at least the level for every true share.

    Reference: Clopper and Pearson, 1934.
    """
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, hits, rows - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, rows - hits)) if hits < rows else 1.0
    return low, high


def percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f}%"


def between(low: float, high: float) -> str:
    return f"{LEVEL:.0%} interval {percent(low)} to {percent(high)}"


def answer(runs: Sequence[Recorded]) -> Section:
    """The section that the page opens with."""
    section = Section("Answer")
    if len(runs) > 1:
        section.text += _best(runs)
        for of_classes in (True, False):
            if alike := [r for r in runs if r.of_classes is of_classes and r.scored is not None]:
                section.tables.append(side_by_side(alike))
        return section
    (run,) = runs
    if run.scored is None:
        section.text.append(state(run))
    else:
        section.text += [verdict(run), state(run), accuracy(run), calibration(run), failures(run)]
    return section


def verdict(run: Recorded) -> str:
    """All of it in one line."""
    s = run.summary(run.headline)
    show = percent if run.of_classes else (lambda v: "undefined" if v is None else f"{v:.3g}")
    said = [f"{run.config['method']['name']}: {run.headline} {show(s.mean_over_clients)} on average over clients"]
    if run.rows and run.of_classes:
        points = 100 * float(run.rows["confidence"].mean() - run.rows["right"].mean())
        said.append(f"{'over' if points > 0 else 'under'}-confident by {abs(points):.1f} points")
    if s.worst_client is not None:
        said.append(f"worst for {s.worst_client} ({show(s.worst)})")
    return ", ".join(said) + "."


def state(run: Recorded) -> str:
    """How far the run is."""
    method, data = run.config["method"]["name"], run.config["data"]["name"]
    what = f"Method {method} on {data}, {len(run.clients)} clients" if run.clients else f"Method {method} on {data}"
    if run.round >= run.rounds:
        return f"{what}: finished, {run.rounds} rounds."
    of = f"the numbers are of round {run.scored}" if run.scored else "no round was scored yet"
    return f"{what}: not finished. {run.round} of {run.rounds} rounds are done; {of}."


def whose(run: Recorded) -> str:
    return "the clients’ own models" if run.model == "personal" else "the one global model"


def accuracy(run: Recorded) -> str:
    """Mean over clients, spread, and all rows together with an interval."""
    s = run.summary(run.headline)
    spread = 0.0 if s.spread_over_clients is None else s.spread_over_clients
    if not run.of_classes:
        return (
            f"With {whose(run)}, the root mean squared error is {s.mean_over_clients:.3g} on average over clients "
            f"(standard deviation between clients {spread:.2g}); continuous ranked probability score "
            f"{_mean(run, 'crps')}, negative log predictive density {_mean(run, 'nll')} nats a row."
        )
    text = (
        f"With {whose(run)}, {percent(s.mean_over_clients)} of the test rows are right on average over clients "
        f"(standard deviation between clients {100 * spread:.1f} points)"
    )
    if run.rows:
        right = run.rows["right"]
        text += f"; of all {len(right)} rows together {percent(float(right.mean()))}, "
        text += between(*share_interval(float(right.sum()), len(right)))
    return f"{text}. Negative log predictive density {_mean(run, 'nll')} nats a row."


def _mean(run: Recorded, score: str) -> str:
    value = run.summary(score).mean_over_clients
    return "undefined" if value is None else f"{value:.3g}"


def calibration(run: Recorded) -> str:
    """Whether confidence can be believed, over all rows."""
    if not run.rows:
        return "How well it is calibrated beyond the table cannot be said: no predictions of single rows are kept."
    if not run.of_classes:
        inside = np.abs(2 * run.rows["pit"] - 1) <= 0.9
        low, high = share_interval(float(inside.sum()), len(inside))
        verdict = "as they should" if low <= 0.9 <= high else ("too few" if high < 0.9 else "too many")
        held = percent(float(inside.mean()))
        return f"Its 90% intervals hold {held} of the observations ({between(low, high)}): {verdict}."
    sure, right = run.rows["confidence"], run.rows["right"]
    gap = float(sure.mean() - right.mean())
    way = "over-confident" if gap > 0 else "under-confident"
    error = metrics.confidence_interval(sure, right, rng=np.random.default_rng(0), level=LEVEL)
    believed = "which chance alone can explain" if error.low == 0 else "more than chance can explain"
    p = run.pooled("ece")
    return (
        f"It is {percent(float(sure.mean()))} sure on average and {percent(float(right.mean()))} of the time right: "
        f"{way} by {100 * abs(gap):.1f} points. The expected calibration error over all rows is {_number(p)} "
        f"({LEVEL:.0%} interval {error.low:.3f} to {error.high:.3f}), {believed}."
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def failing(run: Recorded) -> list[str]:
    """Clients whose accuracy is below that of all rows, beyond chance: intervals corrected for their number."""
    if not run.rows or not run.of_classes:
        return []
    total, found = float(run.rows["right"].mean()), []
    for client in run.clients:
        right = run.rows_of(client)["right"]
        if len(right):
            high = share_interval(float(right.sum()), len(right), level=1 - (1 - LEVEL) / len(run.clients))[1]
            if high < total:
                found.append(client)
    return sorted(found, key=lambda c: run.last(run.model, "accuracy").get(c) or 0.0)


def failures(run: Recorded) -> str:
    """The worst client, and those that stand out."""
    s = run.summary(run.headline)
    if s.worst_client is None or s.worst is None:
        return "No client has a score."
    value = percent(s.worst) if run.of_classes else f"root mean squared error {s.worst:.3g}"
    n = len(run.rows_of(s.worst_client).get("y", ()))
    text = f"It is worst for {s.worst_client}: {value}" + (f" of {n} test rows." if n and run.of_classes else ".")
    if not run.of_classes or not run.rows:
        return text
    if bad := failing(run):
        more = f" and {len(bad) - 8} more" if len(bad) > 8 else ""
        return f"{text} It fails, beyond chance, for {len(bad)} of {len(run.clients)}: {', '.join(bad[:8])}{more}."
    return f"{text} No client is below the others beyond chance (tests corrected for {len(run.clients)} clients)."


def _best(runs: Sequence[Recorded]) -> list[str]:
    """Which run leads, and by how much over the second, client by client."""
    scored = [r for r in runs if r.scored is not None and r.summary(r.headline).mean_over_clients is not None]
    text = [state(r).replace("Method", f"{r.name}: method", 1) for r in runs if r.round < r.rounds]
    if not scored or len({r.headline for r in scored}) > 1:
        return [*text, "These runs have no score in common."]
    headline, up = scored[0].headline, scored[0].of_classes
    order = sorted(scored, key=lambda r: (r.summary(headline).mean_over_clients or 0.0) * (-1 if up else 1))
    show = percent if up else (lambda v: f"{v:.3g}")
    first = order[0]
    text.append(
        f"{first.name} leads with {whose(first)}: {headline} {show(first.summary(headline).mean_over_clients)} on "
        f"average over clients, worst client {show(first.summary(headline).worst)}."
    )
    if len(order) > 1:
        second = order[1]
        a, b = (r.last(r.model, headline) for r in (first, second))
        if a.keys() != b.keys():
            return [*text, f"{second.name} comes second; it has other clients, so no difference is given."]
        d = metrics.paired_difference(a, b)
        if d.interval is not None and d.mean is not None:
            clear = "a clear difference" if d.interval.low * d.interval.high > 0 else "no clear difference"
            unit, scale = (" points", 100) if up else ("", 1)
            text.append(
                f"It differs from {second.name}, the second, by {scale * d.mean:+.2g}{unit} (paired over clients, 95% "
                f"interval {scale * d.interval.low:.2g} to {scale * d.interval.high:.2g}): {clear}. This is the spread "
                "over clients of one run each; other seeds would move it."
            )
    return text


def side_by_side(runs: Sequence[Recorded]) -> Table:
    """One line a run and model: means over clients at its last evaluation. All predict classes, or all numbers."""
    of_classes = runs[0].of_classes
    scores = ("accuracy", "nll", "brier", "ece") if of_classes else ("rmse", "crps", "nll", "coverage_90")
    columns = ["run", "model", "method", "round", *(metrics.meaning(s).label for s in scores), "worst client"]
    lines = []
    for run in runs:
        for model in ("personal", "tempered", "global", "balanced", "matched"):
            if not run.last(model, scores[0]):
                continue
            found = {s: run.summary(s, model) for s in scores}
            first = found[scores[0]]
            worst = Cell.number(first.worst, share=of_classes, more=f"({first.worst_client})")
            cells = [Cell.number(found[s].mean_over_clients, share=s == "accuracy") for s in scores]
            at = Cell(f"{run.scored} of {run.rounds}", run.scored)
            method = str(run.config["method"]["name"])
            lines.append([Cell(run.name, run.name), Cell(model, model), Cell(method, method), at, *cells, worst])
    caption = "Means over clients, on their test rows"
    if any(r.last(m, scores[0]) for r in runs for m in ("balanced", "matched")):
        caption += "; balanced and matched: the clients’ own models on test rows that all clients share"
    return Table(caption, columns, lines)
