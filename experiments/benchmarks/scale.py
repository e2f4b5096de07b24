"""Memory over many rounds, ten thousand clients, and how the cost of a round grows.

python -m experiments.benchmarks.scale [--json] [--plot FILE.png]
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import track

from models.mlp import MLP
from pyrofl import Bayesian, Client, Data, Federation, Program, Run
from pyrofl.config import Evaluation
from pyrofl.engines import Vectorised
from pyrofl.evaluate import predict
from pyrofl.methods import Alone, BayFL
from pyrofl.optim import Adam
from pyrofl.plots import save
from pyrofl.priors import PRIORS
from pyrofl.random import root
from pyrofl.run import Participation
from pyrofl.store import RunDirectory

from .common import Contestant, Figures, console, finish, interleave, options, ratio

FEATURES, CLASSES = 32, 10
RARE = Evaluation(every=10**6)  # the round is timed, not the evaluation


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
    return Run(method, people, engine=Vectorised(), rounds=10**6, cohort=drawn, directory=directory, evaluation=RARE)


def rounds_of(run: Run) -> Contestant:
    """One round a turn."""

    def turn() -> int:
        run.step()
        return 1

    return turn


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


def many_clients(figures: Figures, turns: int, *, quiet: bool) -> None:
    """10,000 clients with a state of their own on disk, 50 a round, against 100 clients with 50 a round."""
    with tempfile.TemporaryDirectory() as folder:
        contestants = {}
        for clients in (100, 10_000):
            method = Alone(program(), optimizer=Adam(1e-3), epochs=1, size=16)
            place = Path(folder) / str(clients)
            contestants[str(clients)] = rounds_of(run_of(federation(clients, 32), method, cohort=50, folder=place))
        took = interleave(contestants, turns=turns, what="10,000 clients", quiet=quiet)
        figures.add("clients10000.rss_gib", resident(), bar=2)
    figures.add("clients10000.over_clients100", ratio(took, "10000", "100"), bar=1.3)


def growth(figures: Figures, turns: int, plot: Path | None, *, quiet: bool) -> None:
    """Seconds against clients, rows, weights and draws; the slope of the log-log line."""
    method = lambda hidden=16: BayFL(program(hidden), optimizer=Adam(1e-3), epochs=1, size=32)
    data, theta = Data.of(torch.randn(200, FEATURES), torch.zeros(200).long()), program(64).init(root(0))
    drawn = method(64)

    def predicting(draws: int) -> Contestant:
        def turn() -> int:
            predict(drawn, theta, data, root(1), draws=draws, together=True)
            return 1

        return turn

    sizes: dict[str, tuple[list[int], Callable[[int], Contestant]]] = {
        "clients": ([40, 80, 160, 320, 640], lambda n: rounds_of(run_of(federation(n, 32), method()))),
        "rows": ([1024, 2048, 4096, 8192, 16384], lambda n: rounds_of(run_of(federation(4, n), method()))),
        "weights": ([256, 512, 1024, 2048, 4096], lambda h: rounds_of(run_of(federation(8, 32), method(h)))),
        "draws": ([200, 400, 800, 1600, 3200], predicting),
    }
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for what, (counts, contestant) in sizes.items():
        turned = interleave({str(n): contestant(n) for n in counts}, turns=turns, what=what, quiet=quiet)
        took = [statistics.median(turned[str(n)]) for n in counts]
        slope = float(np.polyfit(np.log(counts), np.log(took), 1)[0])
        figures.add(f"slope.{what}", slope)
        for n in counts:
            figures.add(f"{what}.{n}.seconds", turned[str(n)])
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
        many_clients(figures, asked.turns, quiet=asked.json)
    if asked.only in (None, "growth"):
        growth(figures, max(asked.turns // 3, 1), asked.plot, quiet=asked.json)
    finish(figures, "scale", as_json=asked.json)


if __name__ == "__main__":
    main()
