"""Simulation-based calibration of the federated pipeline: are its posteriors those of the model?

    python -m experiments.calibration.sbc [--scale smoke] [--out DIR]

w_j ~ N(0, TAU^2) for three weights; every client sees y = x w + noise with an orthogonal design, so that mean-field
Normals are exact. In each of L replicates w is drawn from the prior, data are drawn from w, the clients fit and the
server pools; the ranks of w_j among draws from the server's posterior are uniform if that is the model's posterior.

A scheme is a method and the number of its clients: add yours to SCHEMES.

Reference: Talts, Betancourt, Simpson, Vehtari, Gelman, "Validating Bayesian inference algorithms with simulation-based
calibration", 2018; Modrak et al., "Simulation-based calibration checking for Bayesian computation", 2023 (the
likelihood as a test quantity); Saeilynoja, Buerkner, Vehtari, 2022 (the bands).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from arviz_stats.ecdf_utils import ecdf_pit
from rich.console import Console
from scipy import stats
from torch import Tensor, nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.engines import Failure, Vectorised
from pyrofl.engines.base import Job
from pyrofl.guides import Normal
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.meanfield import pool
from pyrofl.method import Cohort
from pyrofl.methods import PVI, BayFL, FedAvg
from pyrofl.optim import SGD
from pyrofl.plots import save
from pyrofl.plots.style import PALETTE, QUIET, figure, tidy
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.random import fold, generator, normal, root
from pyrofl.tree import Tree, stack

TAU, SIGMA, FEATURES, ROWS = 0.5, 1.0, 3, 6
SITE = "net.0.weight"
STAGES = ((0.04, 500),)  # SGD's rate and full-batch steps of each round
console = Console(soft_wrap=True)


class PriorInEveryFactor(BayFL):
    """The wrong product: the clients' posteriors multiply, each with the prior in it, which then counts K times."""

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        q = self.program.posterior(ups)
        nothing = {s: (torch.zeros_like(m[0]), torch.full_like(v[0], torch.inf)) for s, (m, v) in q.items()}
        return {**server, **self.program.guide_of(pool(q, torch.ones(len(cohort.n)), "product", prior=nothing))}


@dataclass(frozen=True)
class Scheme:
    """A method, its number of clients, what its ranks should look like, and its rounds.

    Rates are small and steps many, so that a client's fit is within a tenth of a posterior sd of its optimum.
    """

    method: Callable[[Program], FedAvg]
    clients: int
    expected: str
    stages: Sequence[tuple[float, int]] = STAGES


SCHEMES = {
    "bayfl, one client": Scheme(BayFL, 1, "flat"),
    "bayfl, product": Scheme(lambda p: BayFL(p, pooling="product"), 4, "flat"),
    "pvi, two rounds": Scheme(lambda p: PVI(p, damping=1.0, clients=4), 4, "flat", STAGES * 2),
    "bayfl, mean of scales": Scheme(BayFL, 4, "under-confident"),
    "prior counted 4 times": Scheme(PriorInEveryFactor, 4, "over-confident"),
}


class Result(NamedTuple):
    """Ranks 0..S of the true values among S draws: of the weights, (L, D), and of the log-likelihood, (L,)."""

    weights: np.ndarray
    likelihood: np.ndarray
    draws: int


def program() -> Program:
    """y ~ N(x w, SIGMA^2), w ~ N(0, TAU^2)."""
    net = nn.Sequential(nn.Linear(FEATURES, 1, bias=False)).double()
    x = torch.ones(2, FEATURES, dtype=torch.float64)
    return Program(Bayesian(net, Gaussian(TAU), Noise(SIGMA)), x, x[:, 0], guide=partial(Normal, init_scale=0.3))


def simulate(replicates: int, clients: int, key: Tensor) -> tuple[Tensor, list[list[Data]]]:
    """(true weights (L, D), data of each replicate's clients); X'X = ROWS I for every client."""
    w = TAU * normal(fold(key, "weights"), (replicates, FEATURES), torch.float64)
    rng, all_data = generator(fold(key, "data")), []
    for true in w.numpy():
        datas = []
        for _ in range(clients):
            x = np.linalg.qr(rng.normal(size=(ROWS, FEATURES)))[0] * ROWS**0.5
            y = x @ true + SIGMA * rng.normal(size=ROWS)
            datas.append(Data.of(torch.from_numpy(x), torch.from_numpy(y)))
        all_data.append(datas)
    return w, all_data


def federate(
    method: FedAvg, all_data: list[list[Data]], key: Tensor, *, stages: Sequence[tuple[float, int]]
) -> list[Tree]:
    """The servers of L independent federations after one round a stage; all clients of all of them train at once."""
    servers = [method.init(fold(key, "init", l)) for l in range(len(all_data))]
    owns: dict[int, Tree] = {}
    for t, (rate, steps) in enumerate(stages):
        now = replace(method, optimizer=SGD(rate), epochs=float(steps), size=ROWS)
        jobs = []
        for l, datas in enumerate(all_data):
            for k, data in enumerate(datas):
                down, i = now.down(servers[l], k), l * len(datas) + k
                own = owns[i] if i in owns else now.join(down)
                jobs.append(Job(i, down, own, data, fold(key, "round", t, i)))
        replies = dict(Vectorised().map(now.local, jobs))
        for l, datas in enumerate(all_data):
            some = [replies[l * len(datas) + k] for k in range(len(datas))]
            for reply in some:
                if isinstance(reply, Failure):
                    raise RuntimeError(reply.details)
            owns |= {l * len(datas) + k: reply.own for k, reply in enumerate(some)}
            n = torch.stack([d.n for d in datas])
            cohort = Cohort(torch.arange(len(datas)), n, fold(key, "server", t, l), t + 1)
            servers[l] = now.aggregate(servers[l], stack([r.up for r in some]), cohort)
    return servers


def ranks(
    method: FedAvg, servers: list[Tree], w: Tensor, all_data: list[list[Data]], key: Tensor, *, draws: int
) -> Result:
    """Ranks of what is true among `draws` posterior draws."""
    of_weights, of_likelihood = [], []
    for l, (server, true, datas) in enumerate(zip(servers, w.numpy(), all_data)):
        loc, scale = method.program.posterior(method.common(server) or server)[SITE]
        drawn = (loc + scale * normal(fold(key, "draws", l), (draws, 1, FEATURES), torch.float64)).numpy()[
            :, 0
        ]  # (S, D)
        x, y = (torch.cat([getattr(d, f) for d in datas]).numpy() for f in ("x", "y"))
        loglik = lambda v, x=x, y=y: stats.norm(v @ x.T, SIGMA).logpdf(y).sum(-1)
        of_weights.append((drawn < true).sum(0))
        of_likelihood.append((loglik(drawn) < loglik(true)).sum())
    return Result(np.array(of_weights), np.array(of_likelihood), draws)


def check(scheme: Scheme, *, replicates: int, draws: int, seed: int = 1) -> Result:
    """The ranks of one scheme."""
    method, key = scheme.method(program()), root(seed)
    w, all_data = simulate(replicates, scheme.clients, fold(key, "simulate"))
    servers = federate(method, all_data, fold(key, "federate"), stages=scheme.stages)
    return ranks(method, servers, w, all_data, fold(key, "ranks"), draws=draws)


def chi_square(found: np.ndarray, draws: int, *, bins: int = 20) -> tuple[float, float]:
    """(statistic, p-value) of the hypothesis that ranks 0..S are uniform, over equal bins."""
    if (draws + 1) % bins:
        raise ValueError(f"{draws + 1} ranks do not fall into {bins} equal bins")
    counts = np.bincount(found.ravel() * bins // (draws + 1), minlength=bins)
    test = stats.chisquare(counts)
    return float(test.statistic), float(test.pvalue)


def summary(results: dict[str, Result], *, bins: int) -> pd.DataFrame:
    """One row a scheme and test quantity; `variance_ratio` of the ranks: 1 is uniform, above it over-confident."""
    rows = []
    for name, result in results.items():
        for quantity in ("weights", "likelihood"):
            found = getattr(result, quantity)
            statistic, p = chi_square(found, result.draws, bins=bins)
            spread = float(np.var((found + 0.5) / (result.draws + 1)) * 12)
            rows.append(
                {
                    "scheme": name,
                    "expected": SCHEMES[name].expected,
                    "quantity": quantity,
                    "ranks": found.size,
                    "chi_square": statistic,
                    "df": bins - 1,
                    "p": p,
                    "variance_ratio": spread,
                }
            )
    return pd.DataFrame(rows)


def draw(results: dict[str, Result], path: Path, *, bins: int, level: float = 0.95) -> Path:
    """For each scheme the histogram of the weights' ranks, and the ECDF less the uniform one; both with bands."""
    drawn = figure(3.1 * len(results), 5.2)
    for i, (name, result) in enumerate(results.items()):
        found = result.weights.ravel()
        upper = tidy(drawn.add_subplot(2, len(results), i + 1))
        counts = np.bincount(found * bins // (result.draws + 1), minlength=bins)
        low, high = stats.binom(found.size, 1 / bins).interval(1 - (1 - level) / bins)  # Bonferroni over the bins
        upper.axhspan(low, high, color=PALETTE[0], alpha=0.15, linewidth=0)
        upper.bar((np.arange(bins) + 0.5) / bins, counts, 0.9 / bins, color=PALETTE[0])
        upper.set(title=name, xlim=(0, 1), xlabel="rank of the true weight / draws", ylabel="replicates x weights")
        lower = tidy(drawn.add_subplot(2, len(results), len(results) + i + 1))
        rng = np.random.default_rng(0)
        smooth = (found + rng.random(found.size)) / (result.draws + 1)
        at, ecdf, low, high = ecdf_pit(smooth, level, 500, rng=rng)
        lower.fill_between(at, low - at, high - at, color=PALETTE[0], alpha=0.15, linewidth=0)
        lower.plot(at, ecdf - at, color=PALETTE[1], linewidth=1.2)
        lower.axhline(0, color=QUIET, linewidth=0.6)
        lower.set(xlim=(0, 1), xlabel="rank of the true weight / draws", ylabel="ECDF - uniform")
    drawn.suptitle(f"Shaded: simultaneous {level:.0%} bands if the posterior is right", fontsize=9)
    return save(drawn, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("smoke", "cpu"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    replicates, draws, bins = (60, 19, 10) if options.scale == "smoke" else (400, 199, 20)
    results = {}
    for name, scheme in SCHEMES.items():
        with console.status(name):
            results[name] = check(scheme, replicates=replicates, draws=draws)
    table = summary(results, bins=bins)
    table.to_csv(options.out / "sbc.csv", index=False, float_format="%.4g")
    draw(results, options.out / "sbc.png", bins=bins)
    console.print(table.to_string(index=False, float_format=lambda v: f"{v:.3g}"))
    console.print(f"wrote sbc.csv and sbc.png to {options.out}")


if __name__ == "__main__":
    main()
