"""Which engine runs and why, how it groups clients, and what it does with a hook that cannot be mapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.compare import close
from torch import Tensor, nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.engines import Failure, Job, Sequential, Vectorised, choose
from pyrofl.guides import Delta
from pyrofl.method import Reply
from pyrofl.methods import FedAvg
from pyrofl.optim import SGD
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Observer, Run
from pyrofl.tree import Tree

CPU = torch.device("cpu")


def program_of(net: nn.Module, *shape: int) -> Program:
    return Program(Bayesian(net, Gaussian()), torch.zeros(2, *shape), torch.tensor([0, 1]), guide=Delta)


def test_auto_takes_the_engine_that_suits_network_and_device() -> None:
    dense = build.program()
    wide = program_of(nn.Sequential(nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 2)), 400)
    convolutional = program_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), 1, 4, 4)
    for program, device, name, why in (
        (dense, CPU, "vectorised", "a small dense network"),
        (wide, CPU, "sequential", "241,802 parameters"),
        (convolutional, CPU, "sequential", "convolutions"),
        (convolutional, torch.device("cuda"), "vectorised", "together on cuda"),
    ):
        engine, reason = choose("auto", program, device)
        assert engine.name == name and why in reason
    for name in ("sequential", "vectorised"):
        engine, reason = choose(name, convolutional, CPU)
        assert engine.name == name and reason == "as configured"
    with pytest.raises(ValueError, match=r"unknown engine 'vectorized'; did you mean \"vectorised\"\?"):
        choose("vectorized", dense, CPU)


def jobs_of(*rows: int) -> list[Job]:
    method = FedAvg(build.program(), SGD(0.1), size=4)
    start = method.init(root(1))
    return [Job(i, start, {}, build.rows(n, seed=i), fold(root(2), i)) for i, n in enumerate(rows)]


def test_groups_hold_clients_of_similar_size() -> None:
    sizes = [[j.data.rows for j in g] for g in Vectorised(ragged=1.5)._groups(jobs_of(30, 1, 9, 10, 15, 16, 31))]
    assert sizes == [[1], [9, 10], [15, 16], [30, 31]]
    sizes = [[j.data.rows for j in g] for g in Vectorised(chunk=2, ragged=100.0)._groups(jobs_of(3, 1, 2, 4, 5))]
    assert sizes == [[1, 2], [3, 4], [5]]
    with pytest.raises(ValueError, match="chunk must be at least 1 client, got 0"):
        Vectorised(chunk=0)


class Branching(FedAvg):
    """FedAvg with a Python branch on a value, which `vmap` cannot follow."""

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        reply = super().local(down, own, data, key)
        return reply if float(reply.info["loss"]) > 0 else reply._replace(own={})


def test_a_hook_that_cannot_be_mapped_runs_sequentially_and_the_run_says_so_once() -> None:
    notes: list[str] = []

    class Said(Observer):
        def note(self, text: str) -> None:
            notes.append(text)

    method, engine = Branching(build.program(), SGD(0.1), size=4), Vectorised()
    runs = [
        Run(method, build.federation((6, 5)), engine=e, rounds=2, seed=1, observer=Said())
        for e in (engine, Sequential())
    ]
    for run in runs:
        list(run)
    assert engine.fallback is not None
    assert notes == [f"vectorised engine: running sequentially, because {engine.fallback}"]
    close(runs[0].server, runs[1].server, tolerance=1e-12)


def test_a_failure_of_one_client_is_not_taken_for_a_hook_that_cannot_be_mapped() -> None:
    def local(down: Tree, own: Tree, data: Data, key: Tensor) -> Any:
        if data.x.shape[0] > 5:
            raise LookupError("too many")
        return Reply({"sum": data.x.sum()}, own, {})

    engine = Vectorised(ragged=100.0)
    out = dict(engine.map(local, jobs_of(3, 6, 4)))
    assert isinstance(out[1], Failure) and out[1].reason == "LookupError: too many"
    assert isinstance(out[0], Reply) and isinstance(out[2], Reply)
    assert engine.fallback is None
