"""Training by the library's own methods, many seeds at once, and what the theorems need to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyrofl.engines import Failure, Vectorised
from pyrofl.engines.base import Job
from pyrofl.method import Cohort, Reply
from pyrofl.methods import BayFL
from pyrofl.random import fold, root
from pyrofl.tree import Tree, stack

from .problems import Problem

SITE = "net.weight"


@dataclass(frozen=True)
class Diminishing(BayFL):
    """BayFL with the rate c / (k + shift) in round k = 1, 2, ...; c is the optimizer's rate."""

    shift: float = 0.0
    schedule: Literal["a", "a/sqrt(K)", "a/k", "a/sqrt(k)"] = field(default="a/k", init=False)

    def rate(self, k: Tensor) -> Tensor:
        return self.optimizer.lr / (k + self.shift)


class Path(NamedTuple):
    """The global models of S seeds over K rounds, and what was measured on the way."""

    w: np.ndarray  # (K + 1, S, d): the server's, from the start
    rates: np.ndarray  # (K, S): the clients' mean rate in each round
    noise: np.ndarray  # (N,): sigma_n^2, the largest variance of a stochastic gradient where the seeds have been
    slope: float  # B^2, the largest E||g||^2 of any client there

    @property
    def rounds(self) -> int:
        return len(self.rates)


def train(method: BayFL, problem: Problem, *, rounds: int, seeds: int) -> Path:
    """Run s is `Run(method, ..., seed=s)` to rounding: here the clients of all seeds are mapped together.

    A run that diverges beyond what numbers hold stays not finite from there on.
    """
    data, name = problem.data(), method.program.loc_name(SITE)
    keys = [root(s) for s in range(seeds)]
    servers: list[Tree] = [method.init(fold(k, "init")) for k in keys]
    owns: dict[int, Tree] = {}
    models, rates = [_weights(servers, name)], []
    noise, slope = _measure(problem, method.size, np.repeat(models[0][:, None], len(data), axis=1))
    for k in range(1, rounds + 1):
        replies = _round(method, servers, owns, data, keys, k)
        if replies is None:
            lost = rounds - len(rates)
            models += [np.full_like(models[0], np.nan)] * lost
            rates += [np.full(seeds, np.nan)] * lost
            break
        for s, some in enumerate(replies):
            cohort = Cohort(torch.arange(len(data)), torch.stack([d.n for d in data]), fold(keys[s], "server"), k)
            servers[s] = method.aggregate(servers[s], stack([r.up for r in some]), cohort)
        rates.append(np.array([np.mean([float(r.info.get("rate", method.optimizer.lr)) for r in s]) for s in replies]))
        models.append(_weights(servers, name))
        ends = np.array([[r.up[name].detach().numpy()[0] for r in some] for some in replies])  # (S, N, d)
        here = np.concatenate([ends, np.repeat(models[-1][:, None], len(data), axis=1)])
        spread, steep = _measure(problem, method.size, here)
        noise, slope = np.maximum(noise, spread), max(slope, steep)
    return Path(np.array(models), np.array(rates), noise, slope)


def _round(
    method: BayFL, servers: list[Tree], owns: dict[int, Tree], data: list, keys: list[Tensor], k: int
) -> list[list[Reply]] | None:
    """Every seed's replies, or None once a client's step was not finite."""
    jobs = []
    for s, (server, key) in enumerate(zip(servers, keys)):
        for n, rows in enumerate(data):
            down, i = method.down(server, n), s * len(data) + n
            owns.setdefault(i, method.join(down))
            jobs.append(Job(i, down, owns[i], rows, fold(key, "round", k, "client", n)))
    found = dict(Vectorised().map(method.local, jobs))
    if any(isinstance(r, Failure) for r in found.values()):
        return None
    owns.update({i: r.own for i, r in found.items()})
    return [[found[s * len(data) + n] for n in range(len(data))] for s in range(len(servers))]


def _weights(servers: list[Tree], name: str) -> np.ndarray:
    return np.array([s[name].detach().numpy()[0] for s in servers])  # (S, d)


def _measure(problem: Problem, size: int, w: np.ndarray) -> tuple[np.ndarray, float]:
    """(sigma_n^2 (N,), B^2) over points w (M, N, d)."""
    spread, square = problem.noise(w, size)
    return spread.max(0), float(square.max())
