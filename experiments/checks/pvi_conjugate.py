"""How far are federated posteriors from the exact one, where that has a formula?

    python -m experiments.checks.pvi_conjugate [--rounds 8] [--out experiments/checks/results]    (seconds)

Linear regression with known noise and a Gaussian prior on four clients of 6 to 48 rows. In each client's rows the
columns are orthogonal, so that every posterior is a product of Normals, and nothing is lost by that family. The rows of
the clients were made with different weights. Printed and written for every round and method: the largest error of a
mean in posterior standard deviations, the largest relative error of a standard deviation, and KL(q || exact) in nats.

Local posteriors are exact here, so that the errors are those of what the server makes of them; but FedEP finds its
modes by gradient descent, as in any run. Stochastic gradients of few steps would add their own error to all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Client, Data, Federation
from pyrofl.engines import Sequential
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.meanfield import POOLING, Posterior, divergence, moments, natural
from pyrofl.method import Reply
from pyrofl.methods import PVI, BayFL, FedAvg, FedEP
from pyrofl.optim import SGD
from pyrofl.priors import Gaussian
from pyrofl.program import Program
from pyrofl.run import Evaluation, Participation, Run
from pyrofl.tree import Tree

ROWS, NOISE, PRIOR = (6, 12, 24, 48), 0.8, 2.0
WEIGHT, BIAS = "net.0.weight", "net.0.bias"


def federation() -> Federation:
    """Rows whose three columns have mean 0 and mean square 1, and are orthogonal."""
    clients = []
    for i, n in enumerate(ROWS):
        draw = np.random.default_rng([3, i])
        basis, _ = np.linalg.qr(np.column_stack([np.ones(n), draw.normal(size=(n, 3))]))
        x = basis[:, 1:] * n**0.5
        w = np.array([0.5, -1.0, 2.0]) + draw.normal(size=3)
        data = Data.of(torch.from_numpy(x), torch.from_numpy(x @ w + 0.7 + i + NOISE * draw.normal(size=n)))
        clients.append(Client(f"client{i}", data, data))
    return Federation(tuple(clients), "gaussian")


def exact(clients: tuple[Client, ...]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the three weights, then the bias, given all rows."""
    x = torch.cat([c.train.x for c in clients])
    X, y = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1), torch.cat([c.train.y for c in clients])
    precision = X.T @ X / NOISE**2 + torch.eye(4, dtype=x.dtype) / PRIOR**2
    off = precision - torch.diag(precision.diagonal())
    assert off.abs().max() < 1e-9, "the columns are not orthogonal"
    return torch.linalg.solve(precision, X.T @ y / NOISE**2), precision.diagonal().rsqrt()


def tilted(prior: Posterior, data: Data) -> Posterior:
    """prior(w) p(rows | w) in closed form, for rows whose columns are orthogonal."""
    X = {WEIGHT: data.x, BIAS: torch.ones(len(data.x), 1, dtype=data.x.dtype)}
    eta = natural(prior)
    for site, (loc, _) in prior.items():
        eta[f"{site}/h"] = eta[f"{site}/h"] + (X[site].T @ data.y).reshape(loc.shape) / NOISE**2
        eta[f"{site}/J"] = eta[f"{site}/J"] + X[site].square().sum(0).reshape(loc.shape) / NOISE**2
    return moments(eta)


@dataclass(frozen=True)
class ExactPVI(PVI):
    """PVI whose clients know their tilted posteriors."""

    def refine(self, theta: Tree, cavity: Posterior, data: Data, key: Tensor) -> tuple[Tree, Tree]:
        return {**theta, **self.program.guide_of(tilted(cavity, data))}, {}


@dataclass(frozen=True)
class ExactBayFL(BayFL):
    """BayFL whose clients know their posteriors under the common prior."""

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        prior = self.program.prior_posterior() or {}
        return Reply({**down, **self.program.guide_of(tilted(prior, data))}, own, {})


def methods(program: Program) -> dict[str, tuple[FedAvg, int]]:
    """Name -> (method, clients in a round)."""
    K = len(ROWS)
    pvi = ExactPVI(program, clients=K)
    ep = FedEP(program, SGD(0.4), epochs=40, size=max(ROWS), clients=K, damping=1.0)
    return {
        "pvi, damping 1/4": (pvi, K),
        "pvi, damping 1": (replace(pvi, damping=1.0), K),
        "pvi, one at a time": (replace(pvi, together=1), 1),
        "fedep": (ep, K),
        "fedsep": (replace(ep, stateless=True), K),
        **{f"bayfl, {rule}": (ExactBayFL(program, pooling=rule), K) for rule in POOLING},
    }


def errors(program: Program, theta: Tree, mean: Tensor, sd: Tensor) -> dict[str, float]:
    q = program.posterior(theta)
    loc, scale = (torch.cat([v.flatten() for v in pair]) for pair in zip(q[WEIGHT], q[BIAS]))
    return {
        "mean": float(((loc - mean).abs() / sd).max()),
        "scale": float((scale / sd - 1).abs().max()),
        "kl": float(divergence({"w": (loc, scale)}, {"w": (mean, sd)})),
    }


def check(rounds: int) -> pd.DataFrame:
    sites, rows = federation(), []
    mean, sd = exact(sites.clients)
    x, y, _ = sites.clients[0].train
    net = nn.Sequential(nn.Linear(3, 1)).double()
    program = Program(Bayesian(net, Gaussian(PRIOR), Noise(NOISE)), x, y)
    for name, (method, count) in methods(program).items():
        turns = rounds * len(ROWS) // count  # one client at a time: as many local fits
        run = Run(
            method,
            sites,
            engine=Sequential(),
            rounds=turns,
            seed=1,
            cohort=Participation(clients=count),
            evaluation=Evaluation(every=turns + 1, draws=1, final_draws=1),
        )
        for turn in range(1, turns + 1):
            number = (turn - 1) * count // len(ROWS) + 1
            run.step()
            if turn * count % len(ROWS) == 0:
                rows.append({"method": name, "round": number, **errors(program, run.server, mean, sd)})
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("experiments/checks/results"))
    options = parser.parse_args(arguments)
    table = check(options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "pvi_conjugate.csv", index=False, float_format="%.4g")
    last = table[table["round"].isin([1, 2, 4, options.rounds])]
    print(last.to_string(index=False, float_format=lambda v: f"{v:.3g}"))


if __name__ == "__main__":
    main()
