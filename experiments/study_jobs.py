"""The runs of a study, each of which can be done in a process of its own."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch

from pyrofl import Client, Config, Federation, assemble
from pyrofl.compare import Finished
from pyrofl.config import Evaluation
from pyrofl.evaluate import COMMON
from pyrofl.run import Round, rows_of
from pyrofl.scoring import evaluated
from pyrofl.store import RunDirectory, write

HOLDOUT = 0.2  # of every client's training rows, for choosing
LATER = "scores-later.csv"  # in a run's directory: scores that were asked for when it was finished
FIRST = "first"  # the run, inside another's directory, from which that one starts


def held_out(federation: Federation) -> Federation:
    """The federation with test rows replaced by rows held out of training."""
    parts = [c.train.split(HOLDOUT) for c in federation.clients]
    clients = tuple(Client(c.name, train, held) for c, (train, held) in zip(federation.clients, parts))
    return replace(federation, clients=clients, common=None)


@dataclass(frozen=True)
class Job:
    """A run, and the one from whose model it starts, if any."""

    config: Config
    first: Config | None = None

    @property
    def identity(self) -> str:
        """What decides its numbers."""
        return " ".join(f"{c.identity()} {c.rounds}" for c in (self.config, self.first) if c is not None)

    @property
    def digest(self) -> str:
        """Of its identity, for the names of files."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:10]

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
    write(file, json.dumps({"nll": nll}).encode())
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
    folder.mkdir(parents=True, exist_ok=True)
    with directory.at_work():
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
