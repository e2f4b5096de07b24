"""Every schedule on one problem: gaps, gradients and bounds over the rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pyrofl.methods import BayFL, MetaBayFL
from pyrofl.optim import SGD
from pyrofl.program import Program

from .bounds import READINGS, Constants, li_iterated, theorem1, theorem2
from .problems import Problem
from .training import Diminishing, Path, train

STEPS, SIZE = 5, 5  # local steps T and rows of a batch
STARTS = {"theorem 2": 1.0, "theorem 2, late": 64.0}  # omega over L/mu; from 64 on, every rate is at most 1 / (4 L)


@dataclass(frozen=True)
class Scale:
    """Rounds K and seeds."""

    rounds: int
    seeds: int


SCALES = {"smoke": Scale(16, 2), "cpu": Scale(400, 8), "full": Scale(2000, 20)}


def methods(problem: Problem, program: Program) -> dict[str, Callable[[int], BayFL]]:
    """Schedule -> the method for a run of K rounds. `a` is 0.9 / L, below the 1 / L that Theorem 1 asks for."""
    a, mu, kappa = 0.9 / problem.smoothness, problem.convexity, problem.smoothness / problem.convexity
    rows = problem.x.shape[1]
    how = {"size": SIZE, "epochs": STEPS * SIZE / rows, "weighting": "uniform"}
    gamma = max(8 * kappa, STEPS)

    def slower(c: float, shift: float) -> Callable[[int], BayFL]:
        return lambda K: Diminishing(program, optimizer=SGD(c), shift=shift, **how)

    def plain(schedule: str) -> Callable[[int], BayFL]:
        return lambda K: BayFL(program, optimizer=SGD(a), schedule=schedule, rounds=K, **how)

    def chosen(K: int) -> BayFL:
        rates = tuple(SGD(a / 10**i) for i in range(3))
        trial = STEPS * SIZE / (0.8 * rows)
        return MetaBayFL(program, optimizers=rates, holdout=0.2, trial_epochs=trial, train_on="all", **how)

    return {
        **{s: plain(s) for s in ("a/sqrt(K)", "a/k", "a/sqrt(k)")},
        **{name: slower(16 / mu, start * kappa - 1) for name, start in STARTS.items()},
        "li": slower(2 / (mu * STEPS), gamma / STEPS - 1),
        "chosen": chosen,
    }


def horizons(rounds: int) -> list[int]:
    return [rounds // 2**i for i in (4, 3, 2, 1, 0)]


def constants(problem: Problem, path: Path) -> Constants:
    return Constants(
        L=problem.smoothness,
        mu=problem.convexity,
        gamma=problem.heterogeneity,
        noise=path.noise,
        slope=path.slope,
        steps=STEPS,
        distance=float(np.square(path.w[0] - problem.minimum).sum(-1).mean()),
        gap=float((problem.value(path.w[0]) - problem.value(problem.minimum)).mean()),
    )


def curves(problem: Problem, scale: Scale) -> pd.DataFrame:
    """One row a schedule, seed and round k: `gap` F(w_k) - F*, `square` E||grad F(z_k)||^2, `rate`, and the bounds.

    A rate that depends on K has a run for each of five K, and rows at their ends alone.
    """
    frames = []
    for name, method in methods(problem, problem.program()).items():
        ends = horizons(scale.rounds) if name == "a/sqrt(K)" else [scale.rounds]
        for K in ends:
            path = train(method(K), problem, rounds=K, seeds=scale.seeds)
            rows = _rows(problem, path, name)
            frames.append(rows[rows["k"] == K] if len(ends) > 1 else rows)
    return pd.concat(frames, ignore_index=True)


def _rows(problem: Problem, path: Path, name: str) -> pd.DataFrame:
    c, k = constants(problem, path), np.arange(path.rounds + 1)
    with np.errstate(all="ignore"):  # a run that diverges goes through inf
        gap = problem.value(path.w) - problem.value(problem.minimum)  # (K + 1, S)
        square = np.square(problem.gradient(path.w)).sum(-1)
        weighed = np.cumsum(path.rates * square[:-1], 0) / np.cumsum(path.rates, 0)
    bounds = _bounds(name, path, c)
    frames = []
    for s in range(gap.shape[1]):
        columns = {"schedule": name, "seed": s, "k": k, "gap": gap[:, s], "square": np.append(np.nan, weighed[:, s])}
        frames.append(pd.DataFrame({**columns, "rate": np.append(np.nan, path.rates[:, s]), **bounds}))
    return pd.concat(frames, ignore_index=True)


def _bounds(name: str, path: Path, c: Constants) -> dict[str, np.ndarray]:
    """Bounds after k = 0..K rounds, each only where it speaks of this schedule; the constants are those of the run."""
    k, rates = np.arange(path.rounds + 1), path.rates.mean(1)
    found = {"noise": np.full(len(k), c.noise.max()), "slope": np.full(len(k), c.slope)}
    if name in STARTS:
        shift = STARTS[name] * c.kappa
        found |= {reading: theorem2(k, c, reading, shift=shift) for reading in READINGS}
        found["frozen"] = theorem2(k, c, "(eta + 1)/eta^2", shift=shift, frozen=True)
    if name in ("theorem 2, late", "li"):
        found["li"] = li_iterated(rates, c)
    if name in ("a/sqrt(K)", "a/k", "a/sqrt(k)"):
        found["theorem1"] = np.array([np.nan, *(theorem1(rates[:j], c) for j in k[1:])])
    return found
