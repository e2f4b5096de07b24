"""A study: several arms on the same clients, with the same budget, the same number of tuned values and the same seeds.

    python -m experiments.study FILE.toml --out DIR [--scale smoke|cpu|full] [--jobs 2] [--only ARM ...]

FILE holds a run in `[base]` and, for each arm, the tables that differ. `tune` names one key of the arm and its
candidates: each is trained for all rounds on the first 80% of every client's training rows and scored on the rest, at a
seed of its own, and the lowest held-out negative log-likelihood is taken. Test rows choose nothing. `from` names an arm
whose run is trained first, with the value chosen for it: this arm starts from its model.

    title = "..."
    against = "fedavg"                  # intervals are of differences from this arm
    seeds = [1, 2, 3]
    base = { rounds = 10, data = {...}, model = {...}, method = { epochs = 2, size = 32 } }
    arms.fedavg = { method = { name = "fedavg" }, tune = { "method.optimizer" = ["sgd:0.1", "sgd:0.03"] } }
    arms.heads = { from = "fedavg", rounds = 1, method = { name = "vaneb_ft" } }
    scales.smoke = { seeds = [1], set = ["rounds=1"], only = ["fedavg"] }

A table of a paper has rows or columns of its own, such as data sets and noise levels. Each is a cell, in which every
arm runs, compared with `against` of the same cell:

    cells.noisy = { panel = "CIFAR-10", at = "0.1", data = { noise = { ... } }, paper = { fedavg = 39.91 } }

`panel` and `at` say where the figure has it, `paper` what the paper prints, in percent; `tuned_in` names the cell whose
candidate is taken instead of choosing again, and `only` the arms that run in it.

Every run is a run directory in DIR: what is there is not run again, and a run that was stopped goes on. The time that
is left is estimated before anything starts, from one round of every arm. DIR gets FILE.csv, FILE.md and FILE.png.

At the scale smoke nothing is chosen: every arm takes its first candidate. It shows that everything runs, and no more.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import multiprocessing
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyrofl import Client, Config, Federation, assemble
from pyrofl.compare import Finished
from pyrofl.config import ConfigError, Evaluation, config_of, override
from pyrofl.evaluate import COMMON
from pyrofl.names import nearest
from pyrofl.run import Round, rows_of
from pyrofl.scoring import evaluated
from pyrofl.store import RunDirectory

Table = dict[str, Any]
HOLDOUT = 0.2  # of every client's training rows, for choosing
TUNE_SEED = 0  # in no table
LATER = "scores-later.csv"  # in a run's directory: scores that were asked for when it was finished
FIRST = "first"  # the run, inside another's directory, from which that one starts
TOTALS = {"bytes": "bytes", "seconds": "seconds"}
console = Console()


@dataclass(frozen=True)
class Cell:
    """A setting in which arms are compared: its place in the figure, and what the paper found there, in percent."""

    name: str = ""
    panel: str = ""
    at: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    tuned_in: str = ""
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arm:
    """A contestant in a cell: its run, and the candidates of the one key that is tuned for it."""

    kind: str
    table: Table
    key: str | None = None
    candidates: tuple[Any, ...] = ()
    cell: Cell = Cell()
    tuned_as: Arm | None = None  # whose choice is taken
    first: Arm | None = None  # from whose model it starts

    @property
    def name(self) -> str:
        return f"{self.cell.name}/{self.kind}" if self.cell.name else self.kind

    def untuned(self) -> Arm:
        """The arm with the first of its candidates alone."""
        first, tuned_as = (None if a is None else a.untuned() for a in (self.first, self.tuned_as))
        return replace(self, candidates=self.candidates[:1], first=first, tuned_as=tuned_as)

    def config(self, seed: int, value: Any = None) -> Config:
        """The run at a seed, with `value` for what is tuned."""
        table = copy.deepcopy(self.table)
        if self.key is not None and value is not None:
            at = table
            *path, last = self.key.split(".")
            for key in path:
                at = at.setdefault(key, {})
            at[last] = value
        return config_of({**table, "seed": seed}, f"arm {self.name}")


@dataclass(frozen=True)
class Study:
    """Arms on one base run, in one cell or several."""

    title: str
    base: Table
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    against: str
    score: str = ""  # that orders the arms; default: the first that there is

    @classmethod
    def read(cls, path: Path, scale: str = "cpu", less: Sequence[str] = ()) -> Study:
        """The study of a file at a scale; `less` are further `key=value` settings of every cell's base run."""
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        scales = table.get("scales", {})
        if scale != "cpu" and scale not in scales:
            raise ConfigError(f"{path}: there is no scale {scale!r}; it has {', '.join(['cpu', *scales])}")
        chosen = scales.get(scale, {})
        settings = (*chosen.get("set", ()), *less)
        arms: dict[str, Arm] = {}
        for cell, tables in _cells(path, table):
            base = merged(table["base"], tables)
            for text in settings:
                override(base, text)
            kinds = cell.only or tuple(table["arms"])
            here = {kind: _arm(path, kind, table["arms"][kind], base, cell) for kind in kinds}
            if cell.tuned_in:
                here = {k: replace(arm, tuned_as=arms.get(f"{cell.tuned_in}/{k}")) for k, arm in here.items()}
            for kind, arm in here.items():
                if (first := table["arms"][kind].get("from")) is not None:
                    arm = replace(arm, first=_first(path, arm, first, here, table["arms"]))
                arms[arm.name] = arm
        base = copy.deepcopy(table["base"])
        for text in settings:
            override(base, text)
        seeds = tuple(chosen.get("seeds", table.get("seeds", (1, 2, 3))))
        against = table.get("against", next(iter(table["arms"])))
        if against not in table["arms"]:
            raise ConfigError(f"{path}: against = {against!r} is no arm{nearest(against, table['arms'])}")
        study = cls(table["title"], base, tuple(arms.values()), seeds, against, table.get("score", ""))
        return study.only(chosen.get("only", ()))

    def untuned(self) -> Study:
        """The study in which nothing is chosen: every arm, and what it starts from, takes its first candidate."""
        return replace(self, arms=tuple(arm.untuned() for arm in self.arms))

    def only(self, names: Sequence[str]) -> Study:
        """The study of some arms: CELL/ARM, or all of an ARM's or of a CELL's."""
        known = {n for a in self.arms for n in (a.name, a.kind, a.cell.name) if n}
        for name in names:
            if name not in known:
                raise ConfigError(f"there is no arm {name!r}{nearest(name, known)}")
        wanted = [a for a in self.arms if {a.name, a.kind, a.cell.name} & set(names)]
        needed = {a.first.name for a in wanted if a.first is not None}
        kept = tuple(a for a in self.arms if a in wanted or a.name in needed)
        return replace(self, arms=kept) if names else self


def _cells(path: Path, table: Table) -> list[tuple[Cell, Table]]:
    """The cells of a file, each with the tables that it changes; a file without has one, of no name."""
    cells: list[tuple[Cell, Table]] = []
    for name, own in table.get("cells", {"": {}}).items():
        tables = dict(own)
        says = {k: tables.pop(k) for k in ("panel", "at", "paper", "tuned_in", "only") if k in tables}
        cell = Cell(name, **{**says, "only": tuple(says.get("only", ()))})
        for arm in (*cell.paper, *cell.only):
            if arm not in table["arms"]:
                raise ConfigError(f"{path}: cell {name!r}: there is no arm {arm!r}{nearest(arm, table['arms'])}")
        earlier = [c.name for c, _ in cells]
        if cell.tuned_in and cell.tuned_in not in earlier:
            raise ConfigError(f"{path}: cell {name!r} is tuned in {cell.tuned_in!r}, which is no cell before it")
        cells.append((cell, tables))
    return cells


def _arm(path: Path, kind: str, own: Table, base: Table, cell: Cell) -> Arm:
    tables = dict(own)
    tune = tables.pop("tune", {})
    tables.pop("from", None)
    if len(tune) > 1:
        raise ConfigError(f"{path}: arm {kind!r} tunes {len(tune)} keys; every arm tunes one, so that all have as much")
    ((key, values),) = tune.items() or ((None, ()),)
    return Arm(kind, merged(base, tables), key, tuple(values), cell)


def _first(path: Path, arm: Arm, kind: str, here: Mapping[str, Arm], tables: Table) -> Arm:
    """The arm of the same cell from whose model an arm starts."""
    if kind not in here:
        raise ConfigError(f"{path}: arm {arm.name!r} starts from one: there is no arm {kind!r}{nearest(kind, here)}")
    if "from" in tables[kind]:
        raise ConfigError(f"{path}: arm {arm.name!r} starts from {kind!r}: name an arm that starts anew")
    return here[kind]


def merged(base: Table, more: Mapping[str, Any]) -> Table:
    """`base` with the values of `more` in place of its own, table by table; a new `name` or `kind` replaces its
    whole table, except for the budget of a method."""
    out = copy.deepcopy(base)
    for key, value in more.items():
        old = out.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            same = all(value.get(k, old.get(k)) == old.get(k) for k in ("name", "kind"))
            keep = old if key == "method" or same else {}
            out[key] = merged(keep, value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def held_out(federation: Federation) -> Federation:
    """The federation with test rows replaced by rows held out of training."""
    parts = [c.train.split(HOLDOUT) for c in federation.clients]
    clients = tuple(Client(c.name, train, held) for c, (train, held) in zip(federation.clients, parts))
    return replace(federation, clients=clients, common=None)


# ---------------------------------------------------------------------- jobs, each in a process of its own


@dataclass(frozen=True)
class Job:
    """A run, and the one from whose model it starts, if any."""

    config: Config
    first: Config | None = None

    @property
    def identity(self) -> str:
        """What decides its numbers."""
        return " ".join(f"{c.identity()} {c.rounds}" for c in (self.config, self.first) if c is not None)

    def starting(self, first: Path) -> Config:
        """Its configuration, with the directory of the first run."""
        return self.config if self.first is None else replace(self.config, start=str(first))


def held_out_nll(config: Config) -> float:
    """Mean over clients of the held-out negative log-likelihood after the last round, in nats per row."""
    last = Evaluation(**config.evaluate)
    asked = {"every": config.rounds, "draws": last.draws, "final_draws": last.final_draws}
    assembled = assemble(replace(config, evaluate=asked))
    run = replace(assembled, federation=held_out(assembled.federation)).run()
    scores = [now.scores for now in run][-1]
    of_clients = scores.get("personal") or scores["global"]
    values = [s["nll"] for name, s in of_clients.items() if not name.startswith("(") and s["nll"] is not None]
    return sum(values) / len(values) if values else float("inf")


def tuning_score(job: Job, file: Path) -> float:
    """`held_out_nll`, kept in a file; a first run holds out the same rows."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        if job.first is not None:
            to_the_end(job.first, Path(place), hold_out=True)
        nll = held_out_nll(job.starting(Path(place)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"nll": nll}))
    return nll


def trained(job: Job, folder: Path) -> Path:
    """The run directory of a job, trained to its last round; it holds that of the first run."""
    torch.set_num_threads(1)
    if job.first is not None:
        to_the_end(job.first, folder / FIRST)
    return to_the_end(job.starting(folder / FIRST), folder)


def to_the_end(config: Config, folder: Path, *, hold_out: bool = False) -> Path:
    """Train, or go on training, in a run directory."""
    directory, assembled = RunDirectory(folder), assemble(config)
    if hold_out:
        assembled = replace(assembled, federation=held_out(assembled.federation))
    if not directory.config.exists():
        directory.create(assembled.config.toml())
    for _ in assembled.run(directory):
        pass
    return folder


def scored(job: Job, folder: Path) -> Path:
    """A finished run with the scores on shared rows that are asked for by now: they decide nothing, and it is not
    trained again."""
    torch.set_num_threads(1)
    run = assemble(job.starting(folder / FIRST)).run(RunDirectory(folder), read_only=True)
    now = Round(run.round, scores=evaluated(run).scores)
    later = pd.DataFrame([r for r in rows_of(now) if r.split == "test"])
    later.to_csv(folder / LATER, index=False)
    return folder


def metrics_of(folder: Path) -> pd.DataFrame:
    """The metrics of a run directory, with what was scored later."""
    frames = [pd.read_csv(f) for f in (RunDirectory(folder).metrics, folder / LATER) if f.exists()]
    return pd.concat(frames).drop_duplicates(["round", "client", "split", "metric"])


def unscored(job: Job, folder: Path) -> bool:
    """Whether a run lacks a score on shared rows that is asked for."""
    have = {m.partition("/")[0] for m in metrics_of(folder)["metric"]}
    return not set(Evaluation(**job.config.evaluate).shared) <= have


def finished(folder: Path, rounds: int) -> bool:
    """Whether a run directory holds all its rounds."""
    metrics = RunDirectory(folder).metrics
    return metrics.exists() and bool((pd.read_csv(metrics, usecols=["round"])["round"] >= rounds).any())


def round_seconds(config: Config) -> float:
    """Seconds of one round without evaluation."""
    torch.set_num_threads(1)
    run = assemble(replace(config, rounds=2, evaluate={**config.evaluate, "every": 10**6})).run()
    began = time.perf_counter()
    run.step()
    return time.perf_counter() - began


# ---------------------------------------------------------------------- the study


class Runner:
    """Runs what is missing of a study, `jobs` at a time; with 0, one after the other in this process."""

    def __init__(self, study: Study, out: Path, jobs: int):
        self.study, self.out, self.jobs = study, out, jobs
        self.failed: dict[str, str] = {}

    def place(self, kind: str, job: Job) -> Path:
        """Where a run is kept: the name holds what decides its numbers, so that a changed arm is run anew."""
        digest = hashlib.sha256(job.identity.encode()).hexdigest()[:10]
        return self.out / kind / f"{job.config.method['name']}-{digest}-s{job.config.seed}"

    def job(self, arm: Arm, seed: int, value: Any) -> Job:
        """An arm's run at a seed; the first one is trained at the same seed, with the value chosen for it."""
        if arm.first is None:
            return Job(arm.config(seed, value))
        return Job(arm.config(seed, value), arm.first.config(seed, self.chosen(arm.first)))

    def tuned_file(self, job: Job) -> Path:
        """The held-out score of a candidate."""
        return self.place("tune", job).with_suffix(".json")

    def tuning(self) -> dict[tuple[str, int], Job]:
        """The runs that choose, by (arm, candidate)."""
        arms = {a.name: a for a in (arm.tuned_as or arm for arm in self.study.arms) if len(a.candidates) > 1}
        return {(a.name, i): self.job(a, TUNE_SEED, v) for a in arms.values() for i, v in enumerate(a.candidates)}

    def left(self) -> list[tuple[Arm, int]]:
        """(arm, number of runs to do) of every arm that is not finished; what two arms share is counted once."""
        waiting: list[tuple[Arm, int]] = []
        seen: set[Path] = set()
        files = {key: self.tuned_file(job) for key, job in self.tuning().items()}
        for arm in self.study.arms:
            source = (arm.tuned_as or arm).name
            to_choose = {f for (name, _), f in files.items() if name == source and not f.exists()}
            value = next(iter(arm.candidates), None) if to_choose else self.chosen(arm)
            jobs = [self.job(arm, seed, value) for seed in self.study.seeds]
            runs = {self.place("runs", job): job.config.rounds for job in jobs}
            missing = to_choose | {p for p, rounds in runs.items() if to_choose or not finished(p, rounds)}
            if missing - seen:
                waiting.append((arm, len(missing - seen)))
            seen |= missing
        return waiting

    def chosen(self, arm: Arm) -> Any:
        """The candidate with the lowest held-out score."""
        if arm.tuned_as is not None:
            return self.chosen(arm.tuned_as)
        if len(arm.candidates) <= 1:
            return next(iter(arm.candidates), None)
        scores = []
        for i, value in enumerate(arm.candidates):
            file = self.tuned_file(self.job(arm, TUNE_SEED, value))
            scores.append((float(json.loads(file.read_text())["nll"]) if file.exists() else float("inf"), i))
        return arm.candidates[min(scores)[1]]

    def estimate(self) -> float:
        """Seconds that are left, from one round of every unfinished arm, in the first cell where it is not."""
        waiting = self.left()
        first = {arm.kind: arm for arm, _ in reversed(waiting)}
        cost: dict[str, float] = {}
        with self._bar() as bar:
            task = bar.add_task("one round of each arm", total=len(first))
            for arm in first.values():
                job = self.job(arm, TUNE_SEED, next(iter(arm.candidates), None))
                try:
                    configs = [c for c in (job.config, job.first) if c is not None]
                    cost[arm.kind] = sum(round_seconds(c) * c.rounds for c in configs)
                except (ValueError, ArithmeticError) as error:
                    self.failed[arm.name] = f"{type(error).__name__}: {error}"
                bar.advance(task)
        return sum(cost.get(arm.kind, 0.0) * count for arm, count in waiting) / max(self.jobs, 1)

    def run(self) -> None:
        """Tune, then train every seed."""
        for later in (False, True):  # what an arm starts from is chosen before its own value
            arms = {a.name for a in self.study.arms if (a.first is not None) is later}
            jobs = {self.tuned_file(job): (name, job) for (name, _), job in self.tuning().items() if name in arms}
            self._all({file: (name, tuning_score, job) for file, (name, job) in jobs.items() if not file.exists()})
        work: dict[Path, tuple[str, Callable[[Job, Path], Any], Job]] = {}
        for seed in self.study.seeds:
            for arm in self.study.arms:
                job = self.job(arm, seed, self.chosen(arm))
                folder = self.place("runs", job)
                if not finished(folder, job.config.rounds):
                    work[folder] = (arm.name, trained, job)
                elif unscored(job, folder):
                    work[folder] = (arm.name, scored, job)
        self._all(work)

    def _all(self, work: Mapping[Path, tuple[str, Callable[[Job, Path], Any], Job]]) -> None:
        if not work:
            return
        if self.jobs == 0:
            self._here(work)
            return
        spawn = multiprocessing.get_context("spawn")
        with self._bar() as bar, ProcessPoolExecutor(self.jobs, mp_context=spawn) as pool:
            task = bar.add_task("runs", total=len(work))
            running = {pool.submit(do, job, place): arm for place, (arm, do, job) in work.items()}
            for future in as_completed(running):
                if (error := future.exception()) is not None:
                    self.failed[running[future]] = f"{type(error).__name__}: {error}"
                bar.update(task, advance=1, description=f"runs ({running[future]})")

    def _here(self, work: Mapping[Path, tuple[str, Callable[[Job, Path], Any], Job]]) -> None:
        with self._bar() as bar:
            task = bar.add_task("runs", total=len(work))
            for place, (arm, do, job) in work.items():
                try:
                    do(job, place)
                except Exception as error:  # of any kind, as from a process: the other arms go on
                    self.failed[arm] = f"{type(error).__name__}: {error}"
                bar.update(task, advance=1, description=f"runs ({arm})")

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        return Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal)

    def results(self) -> pd.DataFrame:
        """One row an arm and seed that is finished."""
        rows = []
        for arm in self.study.arms:
            value = self.chosen(arm)
            for seed in self.study.seeds:
                job = self.job(arm, seed, value)
                folder = self.place("runs", job)
                if finished(folder, job.config.rounds):
                    says = {"cell": arm.cell.name} if arm.cell.name else {}
                    rows.append({**says, "arm": arm.kind, "seed": seed, "chosen": str(value), **scores_of(folder)})
        return pd.DataFrame(rows)


def scores_of(folder: Path) -> dict[str, Any]:
    """Means over clients of every score of the last round, the worst client; bytes and seconds, with a first run's."""
    run = Finished.read(folder)
    table = metrics_of(folder)
    table = table[table["split"] == "test"]
    last = table[(table["round"] == table["round"].max()) & ~table["client"].str.startswith("(")]
    means = last.groupby("metric")["value"].mean()
    out = {str(k): float(v) for k, v in means.items()}
    if (accuracy := last[last["metric"] == "personal/accuracy"]["value"]).size:
        out["personal/worst"] = float(accuracy.min())
    shared = table[(table["round"] == table["round"].max()) & (table["client"] == COMMON)]
    out |= {f"common/{m.partition('/')[2]}": float(v) for m, v in zip(shared["metric"], shared["value"])}
    both = [run, *([Finished.read(folder / FIRST)] if (folder / FIRST).exists() else [])]
    traffic = sum(r.total(way) for r in both for way in ("bytes_down", "bytes_up"))
    return {**out, "bytes": traffic, "seconds": sum(r.seconds for r in both)}


def main() -> None:
    from .study_report import write

    about, _, _ = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="run directories and results")
    parser.add_argument("--scale", default="cpu", help="cpu, or another scale of the file: smoke, full")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, 0: in this process")
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the base run")
    parser.add_argument("--results", type=Path, help="folder of results.*; default: --out")
    asked = parser.parse_args()
    study = Study.read(asked.file, asked.scale, asked.set).only(asked.only)
    if asked.scale == "smoke":
        study = study.untuned()
    runner = Runner(study, asked.out, asked.jobs)
    seconds = runner.estimate()
    console.print(f"{study.title}: {len(study.arms)} arms, about {seconds / 60:.1f} minutes with {asked.jobs} jobs")
    runner.run()
    command = f"python -m experiments.study {asked.file.as_posix()} --scale {asked.scale} --out DIR"
    write(study, runner.results(), asked.results or asked.out, asked.file.stem, command=command)
    for name, reason in runner.failed.items():
        console.print(f"[red]{name} failed:[/red] {reason}")
    if runner.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
