"""Does knowing how the variance moves with the parameter pay? The simulation of Chang, Auddy and Paul, re-run.

    python -m experiments.vaneb.simulations --out DIR                             (about an hour on two busy cores)
    python -m experiments.vaneb.simulations --anew --settings boundary --out DIR  (the rows of one setting again)
    python -m experiments.vaneb.simulations --anew --only counts --out DIR        (only the methods for counts)
    python -m experiments.vaneb.simulations --anew --only intervals --out DIR     (only the rows of credible intervals)
    python -m experiments.vaneb.simulations --scale smoke --out DIR               (seconds)

Goes on where it was stopped: data sets that DIR has are left alone, or with --anew replaced, one by one.

Prior: an equal mixture of five space curves, s uniform on [0, 2 pi), centre added:

    trefoil knot    ((2 + cos 3s) cos 2s, (2 + cos 3s) sin 2s, sin 3s) / 2.5     centre (-1.8, -1.8,  0.0)
    helix           (cos 2s, sin 2s, s/pi - 1)                                   centre ( 1.8, -0.9,  0.9)
    tilted ellipse  (cos s, 0.6 sin s, 0.5 cos s)                                centre ( 0.0,  1.8, -1.8)
    figure-eight    (cos s, sin s cos s, 0.3 sin s)                              centre (-0.9,  0.9,  1.8)
    Viviani         (cos^2 s - 1/2, cos s sin s, sin s)                          centre ( 0.9, -1.8, -0.9)

The curves, the centres, the noise levels and n_k are ours: the paper's text does not print them. See SETTINGS.
The oracle knows the true prior (20,000 points of it) and uses the same working likelihood as everyone else: the normal
one of the estimates. `vaneb_exact` takes the likelihood of the counts themselves, and so does the oracle of its row;
`vaneb_cross` and `exact_cross` judge each site by the prior of four fifths of the others.

Error is squared error summed over coordinates; `chance_error`, for classes, that of the posterior mean of their
probabilities, summed over all of them: the logit of a class that no site of a kind ever saw has no end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pyrofl.empirical_bayes.adamix import adamix
from pyrofl.empirical_bayes.crossfit import cross_fitted
from pyrofl.empirical_bayes.exchange import alternating
from pyrofl.empirical_bayes.families import Multinomial, Poisson, QuadraticVariance
from pyrofl.empirical_bayes.gaussian import gaussian_prior
from pyrofl.empirical_bayes.kernels import Fixed, FixedFull, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.multinomial import probabilities
from pyrofl.empirical_bayes.npmle import npmle
from pyrofl.empirical_bayes.posterior import Posterior
from pyrofl.empirical_bayes.smoothing import smoothed
from pyrofl.random import fold, generator, root
from pyrofl.store import write

CENTRES = 0.9 * np.array([[-2, -2, 0], [2, -1, 1], [0, 2, -2], [-1, 1, 2], [1, -2, -1]])
REPEATS = {50: 10, 100: 10, 200: 8, 400: 4, 800: 3, 1600: 2, 3200: 2}
STRONG = {800: 4, 1600: 5, 3200: 4}  # the setting with a claim to check gets more
SIDE = {"large": 800, "boundary": 800, "poisson_rows": 1600}  # settings beside the paper's stop at this many sites
COVERAGE = (400, 1600)  # sizes at which the credible intervals are checked, in the first two repeats
DEAR = {"poisson_rows": 400}  # a smaller upper end of that where the check takes minutes
INTERVALS = ("smoothed", "smoothed_exact")
COUNTS = ("vaneb_cross", "vaneb_exact", "exact_cross", "smoothed_exact")  # methods for settings of counts alone
PARTS = {"counts": COUNTS, "intervals": INTERVALS}  # methods that can be run by themselves
LIMIT = {"poisson": 800, "poisson_rows": 0}  # the same for the methods in COUNTS
THICKNESS = 0.1  # the van Trees bound is that of the prior plus N(0, THICKNESS^2 I): a curve itself has no density


@dataclass(frozen=True)
class Setting:
    text: str
    family: QuadraticVariance | Multinomial | Poisson
    smallest: int  # rows of a site: uniform on smallest..largest
    largest: int
    scale: float = 1.0  # theta = scale * curve + shift
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)


SETTINGS = {
    "mild": Setting("variance 0.3 + 0.2 theta^2", QuadraticVariance(0.3, 0.0, 0.2), 5, 39),
    "strong": Setting("variance 0.05 + 0.8 theta^2", QuadraticVariance(0.05, 0.0, 0.8), 3, 11),
    "large": Setting("variance 0.05 + 0.8 theta^2, many rows", QuadraticVariance(0.05, 0.0, 0.8), 40, 160),
    "multinomial": Setting("four classes, three free logits", Multinomial(4), 10, 40),
    "boundary": Setting("four classes, rare ones, few rows", Multinomial(4), 5, 15, shift=(-1.0, -1.0, -1.0)),
    "poisson": Setting("Poisson regression, three coefficients", Poisson(), 5, 39, 0.5, (1.0, 0.0, 0.0)),
    "poisson_rows": Setting("the same with more rows", Poisson(), 20, 60, 0.5, (1.0, 0.0, 0.0)),
}


def curves(rng: np.random.Generator, count: int) -> np.ndarray:
    """Points of the five-curve prior, (count, 3)."""
    s, which = rng.uniform(0, 2 * np.pi, count), rng.integers(0, 5, count)
    c, t = np.cos, np.sin
    shapes = np.array(
        [
            [(2 + c(3 * s)) * c(2 * s) / 2.5, (2 + c(3 * s)) * t(2 * s) / 2.5, t(3 * s) / 2.5],
            [c(2 * s), t(2 * s), s / np.pi - 1],
            [c(s), 0.6 * t(s), 0.5 * c(s)],
            [c(s), t(s) * c(s), 0.3 * t(s)],
            [c(s) ** 2 - 0.5, c(s) * t(s), t(s)],
        ]
    )  # (5, 3, count)
    return shapes[which, :, np.arange(count)] + CENTRES[which]


class Sample(NamedTuple):
    theta: np.ndarray  # (K, 3), true
    n: np.ndarray  # (K,) rows of each site, rising
    kernel: Kernel  # of the estimates, normal
    exact: Kernel | None  # of the counts, where there are any


def simulate(setting: Setting, sites: int, rng: np.random.Generator) -> Sample:
    """One data set of a setting."""
    theta = setting.scale * curves(rng, sites) + np.array(setting.shift)
    n = np.sort(rng.integers(setting.smallest, setting.largest + 1, sites))
    family = setting.family
    if isinstance(family, QuadraticVariance):
        z = theta + rng.standard_normal(theta.shape) * np.sqrt(family.variance(theta) / n[:, None])
        return Sample(theta, n, family.kernel(z, n), None)
    if isinstance(family, Multinomial):
        odds = np.exp(np.column_stack([np.zeros(sites), theta]))
        counts = rng.multinomial(n, odds / odds.sum(axis=1, keepdims=True))
        return Sample(theta, n, family.kernel(family.from_counts(counts), n), family.likelihood(counts))
    rows = rng.uniform(-1, 1, (sites, setting.largest, 3))
    rows[:, :, 0] = 1.0
    rows[np.arange(setting.largest) >= n[:, None]] = 0.0
    y = rng.poisson(np.exp((rows * theta[:, None]).sum(axis=2))) * (rows[:, :, 0] > 0)
    exact = family.likelihood(rows, y)
    return Sample(theta, n, family.kernel(exact.z, rows), exact)


def plugged(kernel: Kernel) -> Kernel:
    """The same estimates with their covariances fixed at the estimates."""
    V = kernel.plugin()
    diagonal = np.diagonal(V, axis1=1, axis2=2)
    flat = np.abs(V - diagonal[:, :, None] * np.eye(3)).max() == 0
    return Fixed(kernel.z, diagonal.copy()) if flat else FixedFull(kernel.z, V)


def npeb(kernel: Kernel) -> Mixture:
    """The recipe of Soloff, Guntuboyina and Sen's package: weights on the observations, then ten moves of the atoms."""
    return alternating(kernel, max_steps=10)


def methods(kernel: Kernel) -> dict[str, Mixture]:
    fixed = plugged(kernel)
    return {
        "gaussian": gaussian_prior(kernel),
        "adamix": adamix(kernel, restarts=1, max_steps=60, tolerance=1e-6),
        "npeb": npeb(fixed),
        "fixed": npmle(fixed, tolerance=1e-3),
        "alternating": alternating(kernel, max_steps=10),
        "vaneb": npmle(kernel, tolerance=1e-3),
    }


def van_trees(setting: Setting, prior: np.ndarray, n: np.ndarray) -> float:
    """d^2 / (trace J0 + mean trace I) of the thickened prior, for the quadratic variances; not a number elsewhere."""
    if not isinstance(setting.family, QuadraticVariance):
        return float("nan")
    v = setting.family.variance(prior)
    bend = ((setting.family.v1 + 2 * setting.family.v2 * prior) / v) ** 2 / 2
    information = [(k / v + bend).sum(axis=1).mean() for k in n]
    return float(np.mean([9.0 / (3.0 / THICKNESS**2 + i) for i in information]))


class Scorer:
    """Rows of one data set under one likelihood, each beside the oracle with that likelihood."""

    def __init__(self, same: dict[str, object], theta: np.ndarray, kernel: Kernel, truth: Mixture, chances: bool):
        self.theta, self.kernel, self.chances = theta, kernel, chances
        self.same = {**same, "oracle": self.error(truth.posterior(kernel).mean)}
        if chances:
            self.same["chance_oracle"] = self.chance_error(Posterior(truth, kernel, probabilities).mean)

    def error(self, estimate: np.ndarray) -> float:
        return float(((estimate - self.theta) ** 2).sum(axis=1).mean())

    def chance_error(self, p: np.ndarray) -> float:
        """Of the probabilities of all classes, from those of all but the first."""
        miss = p - probabilities(self.theta)
        return float(((miss**2).sum(axis=1) + miss.sum(axis=1) ** 2).mean())

    def estimate(self, method: str, z: np.ndarray) -> dict[str, object]:
        row = {**self.same, "method": method, "error": self.error(z)}
        return row | {"chance_error": self.chance_error(probabilities(z))} if self.chances else row

    def prior(self, method: str, fit: Mixture) -> dict[str, object]:
        # a prior fitted with fixed covariances is used with fixed covariances
        row = {**self.same, "method": method, "error": self.error(fit.sites.mean), "gap": fit.gap}
        row["seconds"] = fit.seconds
        if self.chances and fit.spread is None:
            assert fit.kernel is not None
            row["chance_error"] = self.chance_error(Posterior(fit, fit.kernel, probabilities).mean)
        return row

    def held_out(self, method: str) -> dict[str, object]:
        begin = time.perf_counter()
        row = {**self.same, "method": method, "error": self.error(cross_fitted(self.kernel).mean)}
        return row | {"seconds": time.perf_counter() - begin}

    def intervals(self, method: str, fit: Mixture) -> dict[str, object]:
        """The prior widened, and the share of its 95% intervals that hold the truth."""
        begin = time.perf_counter()
        wide = smoothed(fit).posterior(self.kernel)
        low, high = wide.interval()
        inside = float(((low <= self.theta) & (self.theta <= high)).mean())
        row = {**self.same, "method": method, "error": self.error(wide.mean), "coverage": inside}
        return row | {"seconds": time.perf_counter() - begin}


def has_counts(name: str, sites: int) -> bool:
    """Whether the methods in COUNTS run on data sets of this setting and size."""
    return not isinstance(SETTINGS[name].family, QuadraticVariance) and sites <= LIMIT.get(name, sites)


def has_intervals(name: str, sites: int, index: int) -> bool:
    """Whether credible intervals are checked on this data set."""
    return COVERAGE[0] <= sites <= DEAR.get(name, COVERAGE[1]) and index < 2


def repeat(name: str, sites: int, index: int, *, only: str = "") -> Iterator[dict[str, object]]:
    """One data set: a row a method, of all or of those in PARTS[only]."""
    setting = SETTINGS[name]
    rng = generator(fold(root(2024), name, sites, index))
    theta, n, kernel, exact = simulate(setting, sites, rng)
    prior = setting.scale * curves(rng, 20_000) + np.array(setting.shift)
    truth = Mixture(prior, np.full(len(prior), 1 / len(prior)))
    same: dict[str, object] = {"setting": name, "sites": sites, "repeat": index}
    same["van_trees"] = van_trees(setting, prior[:500], n)
    chances = isinstance(setting.family, Multinomial)
    covered = has_intervals(name, sites, index)
    normal = Scorer(same, theta, kernel, truth, chances)
    if only == "intervals" and covered:
        yield normal.intervals("smoothed", npmle(kernel, tolerance=1e-3))
    if not only:
        yield normal.estimate("raw", kernel.z)
        yield normal.estimate("fedavg", np.broadcast_to(np.average(kernel.z, axis=0, weights=n), theta.shape))
        fits = methods(kernel)
        yield from (normal.prior(method, fit) for method, fit in fits.items())
        if covered:
            yield normal.intervals("smoothed", fits["vaneb"])
    wide = covered and (chances or sites == COVERAGE[0])
    if exact is None or not has_counts(name, sites) or (only == "intervals" and not wide):
        return
    scorer, fit = Scorer(same, theta, exact, truth, chances), npmle(exact, tolerance=1e-3)
    if only != "intervals":
        yield normal.held_out("vaneb_cross")
        yield scorer.prior("vaneb_exact", fit)
        yield scorer.held_out("exact_cross")
    if wide:
        yield scorer.intervals("smoothed_exact", fit)


COLUMNS = [
    *("setting", "sites", "repeat", "method", "error", "oracle", "chance_error", "chance_oracle"),
    *("van_trees", "gap", "seconds", "coverage"),
]


def rows_of(path: Path) -> pd.DataFrame:
    """The rows of an earlier run, as text, so that they stay digit for digit."""
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    return pd.read_csv(path, dtype=str, keep_default_na=False).reindex(columns=COLUMNS)


def data_sets(settings: Sequence[str], repeats: Mapping[int, int], *, smoke: bool) -> Iterator[tuple[str, int, int]]:
    """(setting, sites, repeat) of every data set, small ones first."""
    for sites in repeats:
        for name in settings:
            if sites <= SIDE.get(name, sites):
                more = STRONG if name == "strong" and not smoke else {}
                yield from ((name, sites, index) for index in range(more.get(sites, repeats[sites])))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", choices=("smoke", "cpu", "full"), default="cpu", help="smoke: two sizes, one repeat")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(REPEATS), choices=list(REPEATS))
    parser.add_argument("--only", choices=list(PARTS), default="", help="only the methods for counts, or for intervals")
    parser.add_argument("--anew", action="store_true", help="replace the rows that are there")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    smoke = options.scale == "smoke"
    repeats = {50: 1, 100: 1} if smoke else {k: v for k, v in REPEATS.items() if k in options.sizes}
    path = options.out / "simulations.csv"
    rows = rows_of(path)
    for name, sites, index in data_sets(options.settings, repeats, smoke=smoke):
        has = {"": True, "counts": has_counts(name, sites), "intervals": has_intervals(name, sites, index)}
        mine = (rows["setting"] == name) & (rows["sites"] == str(sites)) & (rows["repeat"] == str(index))
        if options.only:
            mine &= rows["method"].isin(PARTS[options.only])
        if not has[options.only] or (mine.any() and not options.anew):
            continue
        begin = time.perf_counter()
        made = pd.DataFrame(repeat(name, sites, index, only=options.only), columns=COLUMNS)
        text = rows[~mine].to_csv(index=False) + made.to_csv(index=False, header=False)
        write(path, text.encode())
        rows = rows_of(path)
        print(f"{name} K={sites} repeat {index}: {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
