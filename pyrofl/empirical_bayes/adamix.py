"""AdaMix in its closed form: a Gaussian-mixture prior sum_l p_l N(mu_l, C_l) by EM on the estimates.

The noise of every estimate is known, so each component is deconvolved from it. Covariances that move with the
parameter are taken at the estimate; sites without error do not shape the prior. EM never lowers the likelihood;
restarts guard against poor maxima.

Reference: Ozkara, Girgis, Data, Diggavi, 2023 (the model); Bovy, Hogg, Roweis, 2011, "Extreme deconvolution" (the EM).
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from torch import Tensor

from pyrofl.empirical_bayes.kernels import Array, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.posterior import conjugate
from pyrofl.empirical_bayes.sites import as_kernel, site_mass
from pyrofl.random import fold, generator, root


def adamix(
    estimates: ArrayLike | Kernel,
    covariance: ArrayLike | None = None,
    *,
    components: int = 5,
    counts: ArrayLike | None = None,
    key: Tensor | None = None,
    restarts: int = 3,
    max_steps: int = 500,
    tolerance: float = 1e-7,
    floor: float = 1e-4,
) -> Mixture:
    """The best of `restarts` EM fits with at most `components` Gaussians.

    Stops when a step gains less than `tolerance` nats a site. `floor` bounds the component variances from below, as a
    share of the variance of all estimates.
    """
    begin = time.perf_counter()
    kernel = as_kernel(estimates, covariance)
    if components < 1 or restarts < 1:
        raise ValueError(f"components and restarts must be at least 1, got {components} and {restarts}")
    mass = site_mass(counts, kernel.sites)
    key = root(0) if key is None else key
    used = ~kernel.exact if not kernel.exact.all() else np.ones(kernel.sites, dtype=bool)
    z, V, mass = kernel.z[used], kernel.plugin()[used], mass[used] / mass[used].sum()
    fits = [
        _em(z, V, mass, _start(z, mass, components, generator(fold(key, "adamix", r))), max_steps, tolerance, floor)
        for r in range(restarts)
    ]
    prior, log_likelihood, steps = max(fits, key=lambda fit: fit[1])
    order = np.argsort(-prior.weights, kind="stable")
    assert prior.spread is not None
    done = steps < max_steps
    return Mixture(
        prior.atoms[order],
        prior.weights[order],
        prior.spread[order],
        log_likelihood=log_likelihood,
        status=f"converged: the last step gained less than {tolerance:.0e} nats a site"
        if done
        else f"stopped after {max_steps} steps",
        search=f"best of {restarts} EM runs",
        steps=steps,
        seconds=time.perf_counter() - begin,
        kernel=kernel,
    )


def _start(z: Array, mass: Array, components: int, rng: np.random.Generator) -> Mixture:
    """k-means++ centres, each with the covariance of all estimates over the number of centres squared to the 2/d."""
    centres = [z[rng.choice(len(z), p=mass)]]
    for _ in range(min(components, len(np.unique(z, axis=0))) - 1):
        distance = np.min([((z - c) ** 2).sum(axis=1) for c in centres], axis=0) * mass
        centres.append(z[rng.choice(len(z), p=distance / distance.sum())])
    gap = z - mass @ z
    spread = np.einsum("k,ka,kb->ab", mass, gap, gap) / len(centres) ** (2.0 / z.shape[1])
    return Mixture(
        np.array(centres), np.full(len(centres), 1.0 / len(centres)), np.repeat(spread[None], len(centres), axis=0)
    )


def _em(
    z: Array, V: Array, mass: Array, prior: Mixture, max_steps: int, tolerance: float, floor: float
) -> tuple[Mixture, float, int]:
    gap = z - mass @ z
    least = floor * np.diag(np.maximum(mass @ gap**2, 1e-300))
    last = -np.inf
    for step in range(max_steps + 1):
        log, mean, spread = conjugate(z, V, prior)
        log = log + np.log(np.maximum(prior.weights, 1e-300))
        marginal = logsumexp(log, axis=1)
        value = float(mass @ marginal)
        if value - last < tolerance or step == max_steps:
            break
        last = value
        r = np.exp(log - marginal[:, None]) * mass[:, None]  # (K, L)
        total = r.sum(axis=0)
        alive = total > 1e-8
        r, mean, spread, total = r[:, alive], mean[:, alive], spread[:, alive], total[alive]
        centre = np.einsum("kl,kla->la", r, mean) / total[:, None]
        apart = mean - centre
        C = np.einsum("kl,klab->lab", r, spread) + np.einsum("kl,kla,klb->lab", r, apart, apart)
        prior = Mixture(centre, total / total.sum(), C / total[:, None, None] + least)
    return prior, value, step
