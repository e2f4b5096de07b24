"""One round on ten clients of digits: the vectorised engine against the sequential one, and against plain PyTorch.

python -m experiments.benchmarks.round [--json]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from models.mlp import MLP
from pyrofl import Federation, assemble
from pyrofl.config import config_of
from pyrofl.data import Data
from pyrofl.store import RunDirectory

from .common import Contestant, Figures, finish, interleave, options, ratio

EPOCHS, SIZE, CLIENTS, RATE = 5, 32, 10, 1e-2
BASE = {
    "seed": 1,
    "rounds": 1000,
    "data": {"name": "digits", "clients": CLIENTS, "split": {"kind": "iid"}},
    "model": {"name": "models.mlp:MLP", "hidden": 64},
    "evaluate": {"every": 1000},
}
META = {"name": "meta_bayfl", "epochs": EPOCHS, "size": SIZE, "optimizers": ["adam:1e-2", "adam:1e-3", "adam:1e-4"]}
BAYFL = {"name": "bayfl", "epochs": EPOCHS, "size": SIZE, "optimizer": f"adam:{RATE}"}


def round_of(method: dict[str, object], engine: str) -> Contestant:
    """`local` of all clients by one engine, and the server's step."""
    run = assemble(config_of({**BASE, "method": method, "engine": engine})).run()

    def once() -> int:
        run.step()
        return 1

    return once


def plain_fedavg(federation: Federation) -> Contestant:
    """FedAvg as a loop over clients in plain PyTorch: same network, rows, epochs, batches and optimizer."""
    net = MLP(shape=federation.shape, outputs=federation.outputs, hidden=64)
    loss = nn.CrossEntropyLoss()
    clients: list[Data] = [c.train for c in federation.clients]

    def train(data: Data) -> None:
        optimizer = torch.optim.Adam(net.parameters(), RATE)
        for _ in range(EPOCHS):
            for rows in torch.randperm(data.rows).split(SIZE):
                optimizer.zero_grad()
                loss(net(data.x[rows]), data.y[rows]).backward()
                optimizer.step()

    def once() -> int:
        start = {k: v.clone() for k, v in net.state_dict().items()}
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        rows = sum(c.rows for c in clients)
        for data in clients:
            net.load_state_dict(start)
            train(data)
            for k, v in net.state_dict().items():
                total[k] += v * (data.rows / rows)
        net.load_state_dict(total)
        return 1

    return once


def outside_local(turns: int) -> list[float]:
    """Share of a saved round's time that is not `local`: down, gate, aggregate, logging, saving."""
    with tempfile.TemporaryDirectory() as folder:
        assembled = assemble(config_of({**BASE, "method": META, "engine": "vectorised"}))
        directory = RunDirectory(Path(folder) / "run")
        directory.create(assembled.config.toml())
        run = assembled.run(directory)
        run.step()
        shares = []
        for _ in range(turns):
            began = time.perf_counter()
            now = run.step()
            whole = time.perf_counter() - began
            shares.append((whole - now.local_seconds) / whole)
        return shares


def main() -> None:
    asked = options(__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(asked.threads)
    figures = Figures()
    contestants = {
        "meta.vectorised": round_of(META, "vectorised"),
        "meta.sequential": round_of(META, "sequential"),
        "bayfl.vectorised": round_of(BAYFL, "vectorised"),
        "bayfl.sequential": round_of(BAYFL, "sequential"),
        "plain_fedavg": plain_fedavg(assemble(config_of({**BASE, "method": BAYFL})).federation),
    }
    seconds = interleave(contestants, turns=asked.turns, what="rounds", quiet=asked.json)
    over = lambda a, b: ratio(seconds, a, b)
    figures.add("vectorised.over_sequential", over("meta.vectorised", "meta.sequential"), bar=0.25)
    figures.add("vectorised.over_plain_fedavg", over("bayfl.vectorised", "plain_fedavg"), bar=0.4)
    figures.add("bayfl.vectorised.over_sequential", over("bayfl.vectorised", "bayfl.sequential"))
    figures.add("outside_local.share", outside_local(asked.turns), bar=0.05)
    for name, v in seconds.items():
        figures.add(f"{name}.seconds", v)
    finish(figures, f"one round of {CLIENTS} clients, digits, MLP", as_json=asked.json)


if __name__ == "__main__":
    main()
