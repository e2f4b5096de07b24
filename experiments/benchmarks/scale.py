"""Memory over many rounds, ten thousand clients, and how the cost of a round grows.

python -m experiments.benchmarks.scale [--json] [--plot FILE.png]
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import track

from models.mlp import MLP
from pyrofl import Bayesian, Client, Data, Federation, Program, Run
from pyrofl.engines import Vectorised
from pyrofl.evaluate import predict
from pyrofl.methods import Alone, BayFL
from pyrofl.optim import Adam
from pyrofl.plots import save
from pyrofl.priors import PRIORS
from pyrofl.random import root
from pyrofl.run import Participation
from pyrofl.store import RunDirectory

from .common import Figures, console, finish, options

FEATURES, CLASSES = 32, 10


def resident() -> float:
    """Resident memory of this process in GiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def federation(clients: int, rows: int) -> Federation:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(clients, rows, FEATURES, generator=source)
    y = torch.randint(0, CLASSES, (clients, rows), generator=source)
    people = tuple(Client(f"client{i}", Data.of(x[i], y[i]), Data.of(x[i, :1], y[i, :1])) for i in range(clients))
    return Federation(people, "categorical", tuple(map(str, range(CLASSES))))


def program(hidden: int = 16) -> Program:
    net = MLP(shape=(FEATURES,), outputs=CLASSES, hidden=hidden)
    return Program(Bayesian(net, PRIORS["gaussian"]()), torch.randn(2, FEATURES), torch.tensor([0, 1]))


def run_of(people: Federation, method: BayFL | Alone, *, cohort: int | None = None, folder: Path | None = None) -> Run:
    directory = None
    if folder is not None:
        directory = RunDirectory(folder)
        directory.create("")
    drawn = Participation(clients=cohort)
    return Run(method, people, engine=Vectorised(), rounds=10**6, cohort=drawn, directory=directory, evaluation=None)


def seconds(run: Run, rounds: int) -> float:
    """Median seconds of a round, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        run.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def memory(figures: Figures, rounds: int, *, quiet: bool) -> None:
    """Growth of resident memory from round 20 to the last."""
    with tempfile.TemporaryDirectory() as folder:
        method = Alone(program(), optimizer=Adam(1e-3), epochs=1, size=16)
        run = run_of(federation(10, 32), method, folder=Path(folder) / "run")
        start = 0.0
        for _ in track(range(rounds), description=f"{rounds} rounds", disable=quiet, transient=True, console=console):
            now = run.step()
            if now.number == 20:
                start = resident()
        figures.add("rounds500.rss_growth", resident() / start - 1, bar=0.02)


def many_clients(figures: Figures, rounds: int) -> None:
    """10,000 clients with a state of their own on disk, 50 a round, against 100 clients with 50 a round."""
    took = {}
    for clients in (100, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            method = Alone(program(), optimizer=Adam(1e-3), epochs=1, size=16)
            run = run_of(federation(clients, 32), method, cohort=50, folder=Path(folder) / "run")
            took[clients] = seconds(run, rounds)
            if clients == 10_000:
                figures.add("clients10000.rss_gib", resident(), bar=2)
    figures.add("clients10000.over_clients100", took[10_000] / took[100], bar=1.3)


def growth(figures: Figures, plot: Path | None) -> None:
    """Seconds against clients, rows, weights and draws; the slope of the log-log line."""
    method = lambda hidden=16: BayFL(program(hidden), optimizer=Adam(1e-3), epochs=1, size=32)
    data, theta = Data.of(torch.randn(200, FEATURES), torch.zeros(200).long()), program(64).init(root(0))
    drawn = method(64)

    def predicting(draws: int) -> float:
        began = time.perf_counter()
        predict(drawn, theta, data, root(1), draws=draws, together=True)
        return time.perf_counter() - began

    sizes: dict[str, tuple[list[int], Callable[[int], float]]] = {
        "clients": ([40, 80, 160, 320, 640], lambda n: seconds(run_of(federation(n, 32), method()), 3)),
        "rows": ([1024, 2048, 4096, 8192, 16384], lambda n: seconds(run_of(federation(4, n), method()), 3)),
        "weights": ([256, 512, 1024, 2048, 4096], lambda h: seconds(run_of(federation(8, 32), method(h)), 3)),
        "draws": ([200, 400, 800, 1600, 3200], lambda s: min(predicting(s) for _ in range(3))),
    }
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for what, (counts, cost) in sizes.items():
        took = [cost(n) for n in counts]
        slope = float(np.polyfit(np.log(counts), np.log(took), 1)[0])
        figures.add(f"slope.{what}", slope)
        for n, t in zip(counts, took):
            figures.add(f"{what}.{n}.seconds", t)
        axes.loglog(counts, took, marker="o", label=f"{what}: slope {slope:.2f}")
    axes.set_xlabel("number of clients, rows a client, hidden units, or draws")
    axes.set_ylabel("seconds (a round, or one prediction)")
    axes.legend()
    if plot is not None:
        save(figure, plot)


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--plot", type=Path, help="write the growth figure here")
    parser.add_argument("--rounds", type=int, default=500, help="rounds of the memory test")
    parser.add_argument("--only", choices=("memory", "clients", "growth"), help="one part")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    figures = Figures()
    if asked.only in (None, "memory"):
        memory(figures, asked.rounds, quiet=asked.json)
    if asked.only in (None, "clients"):
        many_clients(figures, asked.turns)
    if asked.only in (None, "growth"):
        growth(figures, asked.plot)
    finish(figures, "scale", as_json=asked.json)


if __name__ == "__main__":
    main()
