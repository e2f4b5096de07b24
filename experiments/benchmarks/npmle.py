"""Speed and certificates of the nonparametric estimate, beside npeb where it is installed.

    python -m experiments.benchmarks.npmle --json
    python -m experiments.benchmarks.npmle --parts k1000 batch10000

Parts: k1000 (against npeb 0.0.2 with cvxpy, same atoms and diagonal errors; skipped with a line when either is absent),
k3200 (five-curve problem, three families), batch10000 (one-dimensional problems of 100 sites), k1e5 (three
coordinates), k1e6 (one coordinate). The large parts run in a process of their own, whose peak memory is reported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import multiprocessing
import resource
import sys
import time

import numpy as np
import torch
from scipy import sparse

from experiments.vaneb.simulations import SETTINGS, curves, plugged, simulate
from pyrofl.empirical_bayes import npmle, npmle_lines
from pyrofl.empirical_bayes.weights import solve_weights

from .common import Figures, finish, options

PARTS = ("k1000", "k3200", "batch10000", "k1e5", "k1e6")
SPEED = ("mild", "strong", "multinomial", "poisson")


def k1000(turns: int) -> dict[str, list[float]]:
    """Ratios of seconds, ours over npeb's, turn by turn, and the difference of log-likelihoods in nats a site."""
    if importlib.util.find_spec("npeb") is None or importlib.util.find_spec("cvxpy") is None:
        sys.stderr.write("k1000: npeb and cvxpy are not installed, so the comparison is left out\n")
        return {}
    with contextlib.redirect_stdout(io.StringIO()):  # it greets about solvers it lacks
        their = importlib.import_module("npeb.GLMixture")
    kernel = plugged(simulate(SETTINGS["mild"], 1000, np.random.default_rng(1))[2])
    z, variance = kernel.z, np.diagonal(kernel.plugin(), axis1=1, axis2=2)
    log = np.column_stack([-0.5 * ((z - a) ** 2 / variance + np.log(2 * np.pi * variance)).sum(axis=1) for a in z])
    shift = log.max(axis=1)
    likelihood = np.exp(log - shift[:, None])
    out: dict[str, list[float]] = {
        "weights.over_npeb": [],
        "fit.over_npeb": [],
        "loglik_minus_npeb": [],
        "weights_loglik_minus_npeb": [],
    }
    for _ in range(turns):
        with contextlib.redirect_stdout(io.StringIO()):
            began = time.perf_counter()
            w = their.solve_weights_cvx(sparse.csr_matrix(likelihood))
            weights_theirs = time.perf_counter() - began
            began = time.perf_counter()
            mixture = their.GLMixture(prec_type="diagonal", homoscedastic=False)
            mixture.fit(z, 1.0 / variance, row_condition=True)
            fit_theirs = time.perf_counter() - began
            theirs = mixture.score(z, 1.0 / variance)
        began = time.perf_counter()
        solved = solve_weights(likelihood)
        weights_ours = time.perf_counter() - began
        began = time.perf_counter()
        fit = npmle(z, variance)
        fit_ours = time.perf_counter() - began
        out["weights.over_npeb"].append(weights_ours / weights_theirs)
        out["fit.over_npeb"].append(fit_ours / fit_theirs)
        out["loglik_minus_npeb"].append(fit.log_likelihood - theirs)
        w = np.maximum(w, 0) / np.maximum(w, 0).sum()
        out["weights_loglik_minus_npeb"].append(float(np.log(solved.marginal).mean() - np.log(likelihood @ w).mean()))
    return out


def k3200(name: str) -> dict[str, float]:
    kernel = simulate(SETTINGS[name], 3200, np.random.default_rng(1))[2]
    cpu = time.process_time()
    fit = npmle(kernel)
    spent = time.process_time() - cpu
    return {
        "gap": fit.gap,
        "gap_atoms": fit.gap_atoms,
        "seconds": fit.seconds,
        "cpu_seconds": spent,
        "atoms": len(fit.weights),
    }


def batch10000() -> dict[str, float]:
    rng = np.random.default_rng(0)
    shape = (10_000, 100)
    theta = np.where(rng.random(shape) < 0.6, rng.normal(0, 0.4, shape), rng.normal(2, 0.6, shape))
    error = rng.uniform(0.2, 1, shape)
    began, cpu = time.perf_counter(), time.process_time()
    lines = npmle_lines(theta + error * rng.normal(size=shape), error**2)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "gap": float(lines.gap.max()),
        "gap_atoms": float(lines.gap_atoms.max()),
    }


def k1e5() -> dict[str, float]:
    """Fixed diagonal errors on the five curves; stopped after eight minutes, whatever the gap."""
    rng = np.random.default_rng(0)
    theta, n = curves(rng, 100_000), rng.integers(5, 40, (100_000, 1))
    variance = (0.3 + 0.2 * theta**2) / n
    return _large(
        theta + np.sqrt(variance) * rng.normal(size=theta.shape),
        variance,
        memory=4.0,
        max_seconds=480.0,
        tolerance=1e-3,
    )


def k1e6() -> dict[str, float]:
    rng = np.random.default_rng(0)
    theta = np.where(rng.random(1_000_000) < 0.7, rng.normal(0, 0.5, 1_000_000), rng.normal(3, 1, 1_000_000))
    error = rng.uniform(0.2, 1.5, 1_000_000)
    return _large(theta + error * rng.normal(size=1_000_000), error**2)


def _large(z: np.ndarray, variance: np.ndarray, **limits: float) -> dict[str, float]:
    cpu = time.process_time()
    fit = npmle(z, variance, progress=lambda p: sys.stderr.write(f"{p}\n"), **limits)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "seconds": fit.seconds,
        "cpu_seconds": time.process_time() - cpu,
        "gap": fit.gap,
        "gap_atoms": fit.gap_atoms,
        "rss_gib": peak,
        "atoms": len(fit.weights),
    }


def alone(job: str) -> dict[str, float]:
    """Run a part in a fresh process, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply({"k1e5": k1e5, "k1e6": k1e6}[job])


BARS = {
    "k1000.weights.over_npeb": 0.1,
    "k1000.fit.over_npeb": 1.0,
    **{
        f"k3200.{name}.{figure}": bar
        for name in SPEED
        for figure, bar in (("gap", 1e-4), ("gap_atoms", 1e-8), ("seconds", 40.0))
    },
    "batch10000.seconds": 60.0,
    "k1e6.seconds": 60.0,
    "k1e6.rss_gib": 8.0,
    "k1e5.seconds": 600.0,
    "k1e5.rss_gib": 8.0,
}


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.set_defaults(turns=2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    figures = Figures()
    found: dict[str, list[float] | float] = {}
    if "k1000" in asked.parts:
        found |= {f"k1000.{k}": v for k, v in k1000(asked.turns).items()}
    if "k3200" in asked.parts:
        found |= {f"k3200.{name}.{k}": v for name in SPEED for k, v in k3200(name).items()}
    if "batch10000" in asked.parts:
        found |= {f"batch10000.{k}": v for k, v in batch10000().items()}
    for part in ("k1e5", "k1e6"):
        if part in asked.parts:
            found |= {f"{part}.{k}": v for k, v in alone(part).items()}
    for name, value in found.items():
        figures.add(name, value, bar=BARS.get(name))
    finish(figures, "nonparametric maximum likelihood", as_json=asked.json)


if __name__ == "__main__":
    main()
