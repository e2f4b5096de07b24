"""Every experiment of the repository at a scale, one after the other; what is finished is not run again.

    python -m experiments.run_all --scale smoke|cpu|full --out DIR [--jobs 2] [--only NAME ...]

smoke shows in minutes that everything runs, cpu is what the committed results were made at, full is larger; an
experiment without a full scale runs at cpu. Studies run `jobs` runs at a time; at smoke everything is in this process.

Each experiment has its folder DIR/NAME, with what a script printed in log.txt, and DIR/index.md shows all results. The
runs of studies are in DIR/studies, since studies share some. One that fails stops no other. One whose
data are missing is named and left out, which is no failure: at smoke that can be those on the hospitals and on
Office-Caltech-10; the others take data that are always there.
Exit status 1: something failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console
from rich.table import Table

import pyrofl
from pyrofl import assemble
from pyrofl.config import ConfigError
from pyrofl.names import nearest
from pyrofl.store import write as write_file

from .study import Runner, count, folder_for
from .study_file import Study
from .study_report import write

HERE = Path(__file__).parent
SCALES = ("smoke", "cpu", "full")
STUDIES = ("checks", "state_of_the_art", "meta_bayfl/tables", "vaneb")  # folders of study files
SHARED = "studies"  # in DIR: the runs of all studies
MARKER = "finished.json"  # in a script's folder: the scale and the version that made its results, and their names
State = Literal["done", "was done", "no data", "failed"]
console = Console(soft_wrap=True)


class Failed(Exception):
    """Some of an experiment failed; the message says which part, and why."""


class Experiment(Protocol):
    """What can be run in a folder of its own."""

    @property
    def name(self) -> str: ...

    def run(self, scale: str, out: Path, jobs: int) -> bool:
        """Run what is missing, and say whether anything was."""

    def seconds(self, scale: str, out: Path, jobs: int) -> float | None:
        """About how long that takes, where it can be told."""


@dataclass(frozen=True)
class StudyFile:
    """A study, by its file."""

    path: Path

    @property
    def name(self) -> str:
        return ".".join(self.path.relative_to(HERE).with_suffix("").parts)

    def run(self, scale: str, out: Path, jobs: int) -> bool:
        runner, at = self._runner(scale, out, jobs)
        _load_data(runner.study)
        missing = bool(runner.left()) or not (out / f"{self.path.stem}.md").exists()
        runner.run()
        command = f"python -m experiments.study {self.path.relative_to(HERE.parent).as_posix()} --scale {at} --out DIR"
        write(runner.study, runner.results(), out, self.path.stem, command=command)
        if runner.failed:
            raise Failed("; ".join(f"{arm}: {reason}" for arm, reason in runner.failed.items()))
        return missing

    def seconds(self, scale: str, out: Path, jobs: int) -> float | None:
        runner, _ = self._runner(scale, out, jobs)
        _load_data(runner.study)
        return runner.estimate()

    def _runner(self, scale: str, out: Path, jobs: int) -> tuple[Runner, str]:
        """What runs the study whose results go to `out`, and its scale."""
        scales = tomllib.loads(self.path.read_text(encoding="utf-8")).get("scales", {})
        at = "cpu" if scale == "full" and scale not in scales else scale
        study = Study.read(self.path, at)
        place, jobs = out.parent / SHARED, 0 if at == "smoke" else jobs
        return Runner(study.untuned() if at == "smoke" else study, place, jobs), at


def _load_data(study: Study) -> None:
    """Load each data set of a study once, so that a missing one is told before hundreds of runs fail."""
    by_name = {str(arm.table["data"]["name"]): arm for arm in reversed(study.arms)}
    for arm in by_name.values():
        try:
            assemble(arm.config(study.seeds[0], next(iter(arm.candidates), None)))
        except ConfigError as error:
            if lacks_data(error):
                raise  # anything else is that arm's own failure, told by its run


@dataclass(frozen=True)
class Script:
    """Modules with a `main`, one after the other, in the same folder; `options` by scale are the first one's."""

    modules: tuple[str, ...]
    options: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        return self.modules[0].removeprefix("experiments.").removesuffix(".__main__")

    def run(self, scale: str, out: Path, jobs: int) -> bool:
        marker, made = out / MARKER, {"scale": scale, "version": pyrofl.__version__}
        if marker.exists():
            before = json.loads(marker.read_text(encoding="utf-8"))
            if all(before.get(k) == v for k, v in made.items()) and all((out / f).exists() for f in before["results"]):
                return False
            marker.unlink()
        out.mkdir(parents=True, exist_ok=True)
        with (out / "log.txt").open("w", encoding="utf-8") as log, redirect_stdout(log):
            for i, module in enumerate(self.modules):
                more = () if i else self.options[scale]
                importlib.import_module(module).main(["--out", str(out), *more])
        files = [f.name for f in results(out, ".md", ".csv", ".png")]
        write_file(marker, json.dumps({**made, "results": files}).encode())
        return True

    def seconds(self, scale: str, out: Path, jobs: int) -> float | None:
        return None


def _scaled(module: str, *, full: str = "cpu") -> Script:
    """A script with an option --scale."""
    scales = {"smoke": "smoke", "cpu": "cpu", "full": full}
    return Script((f"experiments.{module}",), {scale: ("--scale", own) for scale, own in scales.items()})


SCRIPTS = (
    Script(("experiments.checks.pvi_conjugate",), {scale: () for scale in SCALES}),
    _scaled("convergence.__main__", full="full"),
    _scaled("calibration.sbc"),
    _scaled("calibration.nuts"),
    *(_scaled(f"fedmap.{name}") for name in ("synthetic", "hospitals", "domains")),
    Script(
        ("experiments.vaneb.simulations", "experiments.vaneb.report"), {scale: ("--scale", scale) for scale in SCALES}
    ),
)


def everything() -> list[Experiment]:
    """All experiments: the scripts, then the study files, which are those with a `base`."""
    files = sorted(path for folder in STUDIES for path in (HERE / folder).glob("*.toml"))
    return [*SCRIPTS, *(StudyFile(f) for f in files if "base" in tomllib.loads(f.read_text(encoding="utf-8")))]


@dataclass(frozen=True)
class Outcome:
    """How an experiment ended, and why."""

    name: str
    state: State
    seconds: float
    reason: str = ""


def attempt(experiment: Experiment, scale: str, out: Path, jobs: int) -> Outcome:
    """Run an experiment; whatever it raises is in the outcome."""
    state: State
    began, reason = time.perf_counter(), ""
    try:
        state = "done" if experiment.run(scale, out, jobs) else "was done"
    except (Exception, SystemExit) as error:  # of any kind: the other experiments go on
        missing = lacks_data(error)
        state, reason = ("no data", str(error)) if missing else ("failed", f"{type(error).__name__}: {error}")
    return Outcome(experiment.name, state, time.perf_counter() - began, reason)


def lacks_data(error: BaseException) -> bool:
    """Whether an error says that a data set is not there; it also says where to put it."""
    return isinstance(error, ConfigError) and isinstance(error.__cause__, FileNotFoundError)


def estimate(experiments: Sequence[Experiment], scale: str, out: Path, jobs: int) -> str:
    """About how long the experiments take, of those that can tell; runs that studies share are counted in each."""
    told: list[float] = []
    for experiment in experiments:
        try:
            seconds = experiment.seconds(scale, out / experiment.name, jobs)
        except Exception:  # it will be told by the run itself
            continue
        told += [] if seconds is None else [seconds]
    return f"at most about {sum(told) / 60:.0f} minutes for the {len(told)} that can be estimated"


def results(folder: Path, *suffixes: str) -> list[Path]:
    """The files of results in an experiment's folder."""
    return sorted(p for p in folder.glob("*") if p.suffix in suffixes)


def index(experiments: Sequence[Experiment], outcomes: Sequence[Outcome], scale: str, out: Path) -> str:
    """Every result that is in DIR, and what is not there, as Markdown."""
    parts = [f"# Experiments at the scale {scale}", f"pyrofl {pyrofl.__version__}"]
    lacking = [f"- {o.name}: {o.state}: {o.reason}" for o in outcomes if o.reason]
    parts += ["\n".join(lacking)] if lacking else []
    for experiment in experiments:
        files = results(out / experiment.name, ".md", ".csv", ".png")
        if not files:
            continue
        links = [f"[{f.name}]({experiment.name}/{f.name})" for f in files if f.suffix != ".png"]
        images = [f"![{f.stem}]({experiment.name}/{f.name})" for f in files if f.suffix == ".png"]
        parts += [f"## {experiment.name}", *([", ".join(links)] if links else []), *images]
    return "\n\n".join(parts) + "\n"


def shown(outcomes: Sequence[Outcome], out: Path) -> Table:
    """A row an experiment."""
    table = Table()
    for name in ("experiment", "state", "seconds", "results"):
        table.add_column(name, overflow="fold")
    for o in outcomes:
        first = next((f for s in (".md", ".csv") for f in results(out / o.name, s)), None)
        table.add_row(
            o.name, o.state, f"{o.seconds:.0f}", str(first.relative_to(out)) if first and not o.reason else ""
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for each experiment, and index.md")
    parser.add_argument("--jobs", type=count, default=2, help="runs of a study at the same time, one thread each")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these experiments")
    asked = parser.parse_args(arguments)
    experiments = everything()
    names = [e.name for e in experiments]
    for name in asked.only:
        if name not in names:
            parser.error(f"there is no experiment {name!r}{nearest(name, names)}")
    wanted = [e for e in experiments if e.name in (asked.only or names)]
    try:
        folder_for(asked.out)
    except ConfigError as error:
        parser.error(str(error))
    console.print(f"{len(wanted)} experiments at the scale {asked.scale}")
    if asked.scale != "smoke":
        console.print(estimate(wanted, asked.scale, asked.out, asked.jobs))
    outcomes: list[Outcome] = []
    for i, experiment in enumerate(wanted, 1):
        outcomes.append(attempt(experiment, asked.scale, asked.out / experiment.name, asked.jobs))
        last = outcomes[-1]
        console.print(f"{i}/{len(wanted)} {last.name}: {last.state}, {last.seconds:.0f} s", highlight=False)
        (asked.out / "index.md").write_text(index(experiments, outcomes, asked.scale, asked.out), encoding="utf-8")
    console.print(shown(outcomes, asked.out))
    for state, heading in (
        ("no data", "without data, and not run; docs/data.md says where data sets lie"),
        ("failed", "failed"),
    ):
        there = [o for o in outcomes if o.state == state]
        if there:
            console.print(f"{len(there)} {heading}:", style="red" if state == "failed" else "yellow")
        for o in there:
            console.print(f"  {o.name}: {o.reason}", markup=False, highlight=False)
    console.print(f"results: {asked.out / 'index.md'}", highlight=False)
    if any(o.state == "failed" for o in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
