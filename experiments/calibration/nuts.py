"""What each pooling rule costs: federated posteriors of the hospitals' logistic model against NUTS on all rows.

    python -m experiments.calibration.nuts [--scale smoke] [--out DIR]

NUTS draws from the exact posterior of the pooled training rows, w ~ N(0, 1), which no hospital can compute. Every rule
trains by `hospitals.toml`: 40 rounds of 10 full-batch steps ("short"), or 3 rounds of 250 steps, so that each hospital
reaches its own optimum ("long"). The prior counts once: beta = 1/4 at each of four hospitals, but 1 for `product`,
which takes the other three out again. `pooled` is the same mean-field guide on all rows: the best that a rule can
hope for.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import arviz_stats
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from rich.console import Console
from rich.progress import track
from scipy import stats

from pyrofl import assemble
from pyrofl.config import config_of
from pyrofl.data import Federation
from pyrofl.metrics import nll
from pyrofl.plots import save
from pyrofl.plots.style import QUIET, figure, look, tidy
from pyrofl.run import Run

HERE = Path(__file__).parent
SITES = ("net.head.weight", "net.head.bias")
SHORT = {"rounds": 40, "method": {"epochs": 10, "schedule": "a/sqrt(k)"}}
LONG = {"rounds": 3, "method": {"epochs": 250, "schedule": "a/k"}}
AVERAGES = ("scale", "unconstrained", "variance", "mixture")
console = Console(soft_wrap=True)


class Arm(NamedTuple):
    """Changes of `hospitals.toml`: of its budget, and of its method and inference."""

    budget: Mapping[str, Any]
    method: Mapping[str, Any]
    beta: float


ARMS = {
    "pooled": Arm({"rounds": 1, "method": {"epochs": 2000}}, {"name": "pooled", "optimizer": "adam:3e-3"}, 1.0),
    **{f"{rule}, short": Arm(SHORT, {"name": "bayfl", "pooling": rule}, 0.25) for rule in AVERAGES},
    **{f"{rule}, long": Arm(LONG, {"name": "bayfl", "pooling": rule}, 0.25) for rule in AVERAGES},
    "product, long": Arm(LONG, {"name": "bayfl", "pooling": "product"}, 1.0),
}


def run_of(arm: Arm, *, smoke: bool) -> Run:
    """The arm's run, finished."""
    base = tomllib.loads((HERE / "hospitals.toml").read_text())
    method = {k: v for k, v in base["method"].items() if arm.method["name"] == "bayfl" or k in ("size", "optimizer")}
    method |= {**arm.budget["method"], **arm.method}
    if smoke:
        method["epochs"] = 2
    rounds = 2 if smoke else arm.budget["rounds"]
    table = {**base, "rounds": rounds, "method": method, "inference": {"beta": arm.beta}}
    run = assemble(config_of(table)).run()
    for _ in run:
        pass
    return run


def rows(federation: Federation, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All clients' rows together."""
    x, y = ([getattr(getattr(c, split), f) for c in federation.clients] for f in ("x", "y"))
    return torch.cat(x), torch.cat(y)


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    """The runs' model as one Pyro function: w, b ~ N(0, 1), y | x ~ Bernoulli(sigmoid(x w + b))."""
    w = pyro.sample(SITES[0], dist.Normal(x.new_zeros(1, x.shape[1]), 1.0).to_event(2))
    b = pyro.sample(SITES[1], dist.Normal(x.new_zeros(1), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=(x @ w.T + b)[:, 0]), obs=y)


def nuts(x: torch.Tensor, y: torch.Tensor, *, warmup: int, draws: int, seed: int) -> np.ndarray:
    """(chain, draw, D) of two chains; weights, then the bias."""
    chains = []
    for chain in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(seed + chain)
            kernel = NUTS(model, max_tree_depth=7)
            mcmc = MCMC(kernel, draws, warmup_steps=warmup, disable_progbar=True, disable_validation=True)
            mcmc.run(x, y)
        found = mcmc.get_samples()
        chains.append(torch.cat([found[s].reshape(draws, -1) for s in SITES], 1).numpy())
    return np.stack(chains)


def sampled(run: Run, *, draws: int, key: int) -> np.ndarray:
    """(S, D) draws of the server's posterior."""
    theta = run.personal(0) if run.method.pools else run.method.common(run.server)
    assert theta is not None
    q = run.method.program.posterior(theta)
    loc, scale = (torch.cat([q[s][i].reshape(-1) for s in SITES]).numpy() for i in (0, 1))
    return np.random.default_rng(key).normal(loc, scale, (draws, len(loc)))


def predicted(w: np.ndarray, x: torch.Tensor) -> np.ndarray:
    """P(disease) (S, B)."""
    return 1 / (1 + np.exp(-(w[:, :-1] @ x.numpy().T + w[:, -1:])))


def compare(
    w: np.ndarray, truth: np.ndarray, x: torch.Tensor, y: torch.Tensor, *, level: float = 0.9
) -> dict[str, float]:
    """One arm's draws (S, D) against the reference's.

    `distance` is the Wasserstein-2 distance of each weight's Normals, in reference sd, averaged; `sd_ratio` below 1 is
    over-confident; `coverage` is the share of the reference's draws inside the arm's central interval of `level`.
    """
    m, s, m0, s0 = w.mean(0), w.std(0), truth.mean(0), truth.std(0)
    half = stats.norm.ppf((1 + level) / 2)
    p, p0 = predicted(w, x), predicted(truth, x)
    log_likelihood = np.log(np.where(y.numpy() == 1, p, 1 - p))
    return {
        "mean_shift": float((np.abs(m - m0) / s0).mean()),
        "sd_ratio": float(np.median(s / s0)),
        "sd_ratio_low": float((s / s0).min()),
        "sd_ratio_high": float((s / s0).max()),
        "distance": float((np.hypot(m - m0, s - s0) / s0).mean()),
        "coverage_90": float((np.abs(truth - m) <= half * s).mean()),
        "probability_shift": float(np.abs(p.mean(0) - p0.mean(0)).mean()),
        "probability_sd_ratio": float(np.median(p.std(0) / p0.std(0))),
        "test_nll": float(nll(log_likelihood).value or np.nan),
    }


def draw(draws: Mapping[str, np.ndarray], names: Sequence[str], path: Path) -> Path:
    """Each weight's mean and central 90% interval under the reference and the rules."""
    drawn = figure(9.5, 4.4)
    axes = tidy(drawn.add_subplot())
    for j, (name, w) in enumerate(draws.items()):
        at = np.arange(w.shape[1]) + 0.8 * (j + 0.5) / len(draws) - 0.4
        style = {**look(j), "linestyle": "none", "label": name}
        low, high = np.quantile(w, [0.05, 0.95], axis=0)
        axes.vlines(at, low, high, color=style["color"], linewidth=1.4)
        axes.plot(at, w.mean(0), **style)
    axes.axhline(0, color=QUIET, linewidth=0.6)
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    axes.set_ylabel("log odds per standard deviation")
    drawn.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False, title="mean and central 90% interval")
    return save(drawn, path)


FEATURES = [
    "age",
    "sex",
    "cp=2",
    "cp=3",
    "cp=4",
    "pressure",
    "chol",
    "sugar",
    "ecg=1",
    "ecg=2",
    "rate",
    "angina",
    "oldpeak",
    "bias",
]
SHOWN = ("NUTS", "pooled", "scale, short", "scale, long", "mixture, long", "product, long")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("smoke", "cpu"), default="cpu")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    smoke = options.scale == "smoke"
    runs = {n: run_of(a, smoke=smoke) for n, a in track(ARMS.items(), "rules", console=console, transient=True)}
    first = runs["pooled"]
    x, y = rows(first.federation, "train")
    chains = nuts(x, y, warmup=20 if smoke else 150, draws=30 if smoke else 400, seed=1)
    rhat = float(np.max(arviz_stats.rhat(np.moveaxis(chains, -1, 0), chain_axis=1, draw_axis=2)))
    truth = chains.reshape(-1, chains.shape[-1])
    held = rows(first.federation, "test")
    draws = {"NUTS": truth} | {n: sampled(r, draws=200 if smoke else 4000, key=0) for n, r in runs.items()}
    table = pd.DataFrame({n: compare(w, truth, *held) for n, w in draws.items()}).T
    table.index.name = "posterior"
    table.to_csv(options.out / "nuts.csv", float_format="%.4g")
    draw({n: draws[n] for n in SHOWN}, FEATURES, options.out / "nuts.png")
    console.print(table.to_string(float_format=lambda v: f"{v:.3f}"))
    console.print(f"NUTS: two chains, largest R-hat {rhat:.3f}; wrote nuts.csv and nuts.png to {options.out}")


if __name__ == "__main__":
    main()
