"""What a person sees while a run works: tables before it, a bar and a line a round, the first failure in full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from .data import Federation
from .federation import holdings
from .run import Observer, Round, Run

_WIDE = 30  # classes beyond this are not shown one by one


class Reporter(Observer):
    """Rich's view of a run."""

    def __init__(self, console: Console):
        self.console = console
        self.bar: Progress | None = None
        self._before: Progress | None = None
        self._round: TaskID | None = None
        self._step: TaskID | None = None

    @contextmanager
    def rounds(self, done: int, total: int) -> Iterator[None]:
        """A bar of rounds and, below it, one of the clients of the current step."""
        self.bar = _bar(self.console)
        self._round = self.bar.add_task("rounds", total=total, completed=done)
        self._step = self.bar.add_task("clients", total=None)
        with self.bar:
            yield
        self.bar = None

    def progress(self, what: str, done: int, total: int) -> None:
        if self.bar is not None and self._step is not None:
            self.bar.update(self._step, description=what, completed=done, total=total)
            return
        if self._before is None:  # loading data, before there are rounds
            self._before = _bar(self.console)
            self._before.start()
            self._before.add_task(what, total=total)
        self._before.update(TaskID(0), description=what, completed=done, total=total)
        if done >= total:
            self._before.stop()
            self._before = None

    def note(self, text: str) -> None:
        self.console.print(Text(text, style="dim"))

    def round(self, now: Round, total: int) -> None:
        """The line of a round, and what went wrong in it."""
        if self.bar is not None and self._round is not None:
            self.bar.update(self._round, completed=now.number)
        self.console.print(Text(round_line(now, total)), highlight=False, soft_wrap=True)
        for name, why in now.flagged.items():
            self.console.print(Text(f"  flagged: client {name}: {why}", style="yellow"))
        for i, (name, why) in enumerate(now.left_out.items()):
            if i == 0:
                self.console.print(Text(f"  left out: client {name}: {why}", style="red"))
                if now.details:
                    self.console.print(Text(now.details, style="red"))
        if len(now.left_out) > 1:
            others = ", ".join(list(now.left_out)[1:6])
            self.console.print(Text(f"  and {len(now.left_out) - 1} more left out: {others}", style="red"))


def nothing_learned(run: Run) -> str | None:
    """What is to be said of a run of which no round was ever aggregated; None of any other."""
    if run.trained:
        return None
    where = f"{run.directory.path} holds the model as it began" if run.directory else "the model is as it began"
    return (
        f"nothing was learned: every round was skipped, and {where}. The line of each round says why the replies were "
        "left out"
    )


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def round_line(now: Round, total: int) -> str:
    """The loss and its parts, the scores with spread and worst client, bytes and seconds."""
    parts = [f"round {now.number:>{len(str(total))}}/{total}"]
    if (loss := now.mean("loss")) is not None:
        parts.append(f"loss {loss:.3f}{_split(now)}")
    for model, clients in now.scores.items():
        values = {c: s for c, v in clients.items() if not c.startswith("(") and (s := _headline(v)) is not None}
        if values:
            name = "accuracy" if "accuracy" in next(iter(clients.values())) else "rmse"
            mean = sum(values.values()) / len(values)
            spread = (sum((v - mean) ** 2 for v in values.values()) / max(len(values) - 1, 1)) ** 0.5
            worst = (min if name == "accuracy" else max)(values, key=values.__getitem__)
            parts.append(f"{model} {name} {mean:.3f} +- {spread:.3f}, worst {worst} {values[worst]:.3f}")
    parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in now.report.items()]
    parts.append(f"{size(now.bytes_down)} down, {size(now.bytes_up)} up, {now.seconds:.1f} s")
    return " | ".join(parts)


def _split(now: Round) -> str:
    """The loss's two parts: a point has no KL but a log density under the prior, 0 under a flat one and not shown."""
    nll, kl, prior = (now.mean(k) for k in ("nll", "kl", "neg_log_prior"))
    if nll is not None and kl is not None:
        return f" (nll {nll:.3f} + kl {kl:.3f})"
    return f" (nll {nll:.3f}, -log prior {prior:.3f})" if nll is not None and prior else ""


def _headline(scores: dict[str, float | None]) -> float | None:
    return scores.get("accuracy", scores.get("rmse"))


def size(count: float) -> str:
    """A number of bytes for reading."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def partition_table(federation: Federation, *, most: int = 40) -> RichTable:
    """Rows and class counts of each client, at most `most` clients."""
    table = RichTable(title=f"{len(federation)} clients", title_justify="left")
    table.add_column("client")
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    few = 0 < len(federation.classes) <= _WIDE
    for name in federation.classes if few else ():
        table.add_column(escape(name), justify="right")
    lines = holdings(federation)
    for line in lines[:most]:
        cells = [str(c) if c else "." for c in line.classes] if few else []
        table.add_row(escape(line.name), str(line.train), str(line.test), *cells)
    if len(lines) > most:
        table.add_row(f"... and {len(lines) - most} more")
    return table
