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
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyrofl.config import ConfigError

from .study_file import TUNE_SEED, Arm, Study
from .study_jobs import Job, finished, round_seconds, scored, scores_of, trained, tuning_score, unscored

Todo = tuple[str, Callable[[Job, Path], Any], Job]  # an arm's name, what to do, and with which run
Work = Mapping[Path, Todo]  # by the place of what it makes
Ended = tuple[str, BaseException | None]  # an arm's name, and why it failed
console = Console()


class Runner:
    """Runs what is missing of a study, `jobs` at a time; with 0, one after the other in this process."""

    def __init__(self, study: Study, out: Path, jobs: int):
        self.study, self.out, self.jobs = study, out, jobs
        self.failed: dict[str, str] = {}

    def place(self, kind: str, job: Job) -> Path:
        """Where a run is kept: the name holds what decides its numbers, so that a changed arm is run anew."""
        return self.out / kind / f"{job.config.method['name']}-{job.digest}-s{job.config.seed}"

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
        work: dict[Path, Todo] = {}
        for seed in self.study.seeds:
            for arm in self.study.arms:
                job = self.job(arm, seed, self.chosen(arm))
                folder = self.place("runs", job)
                if not finished(folder, job.config.rounds):
                    work[folder] = (arm.name, trained, job)
                elif unscored(job, folder):
                    work[folder] = (arm.name, scored, job)
        self._all(work)

    def _all(self, work: Work) -> None:
        if not work:
            return
        with self._bar() as bar:
            task = bar.add_task("runs", total=len(work))
            for arm, error in self._here(work) if self.jobs == 0 else self._in_processes(work):
                if error is not None:
                    self.failed[arm] = f"{type(error).__name__}: {error}"
                bar.update(task, advance=1, description=f"runs ({arm})")

    def _here(self, work: Work) -> Iterator[Ended]:
        for place, (arm, do, job) in work.items():
            try:
                do(job, place)
            except Exception as error:  # of any kind, as from a process: the other arms go on
                yield arm, error
            else:
                yield arm, None

    def _in_processes(self, work: Work) -> Iterator[Ended]:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.jobs, mp_context=spawn, initializer=_end_with_parent) as pool:
            running = {pool.submit(do, job, place): arm for place, (arm, do, job) in work.items()}
            for future in as_completed(running):
                yield running[future], future.exception()

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


def _end_with_parent() -> None:
    """End this process when the study's own has ended, however it ended: what it was at is resumed by the next."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def folder_for(out: Path) -> Path:
    """`out`, made where it is not there; a ConfigError where that cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}: name a folder that can be written to") from None
    return out


def count(text: str) -> int:
    """A number of processes: 0, 1, 2 and so on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs: 0, 1, 2 and so on")
    return int(text)


def main() -> None:
    from .study_report import write

    about, _, _ = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="run directories and results")
    parser.add_argument("--scale", default="cpu", help="cpu, or another scale of the file: smoke, full")
    parser.add_argument("--jobs", type=count, default=2, help="runs at the same time, 0: in this process")
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the base run")
    parser.add_argument("--results", type=Path, help="folder of results.*; default: --out")
    asked = parser.parse_args()
    try:
        study = Study.read(asked.file, asked.scale, asked.set).only(asked.only)
        results = folder_for(asked.results or asked.out)
        folder_for(asked.out)
    except ConfigError as error:
        parser.error(str(error))
    if asked.scale == "smoke":
        study = study.untuned()
    runner = Runner(study, asked.out, asked.jobs)
    seconds = runner.estimate()
    console.print(f"{study.title}: {len(study.arms)} arms, about {seconds / 60:.1f} minutes with {asked.jobs} jobs")
    runner.run()
    command = f"python -m experiments.study {asked.file.as_posix()} --scale {asked.scale} --out DIR"
    write(study, runner.results(), results, asked.file.stem, command=command)
    for name, reason in runner.failed.items():
        console.print(f"[red]{name} failed:[/red] {reason}")
    if runner.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
