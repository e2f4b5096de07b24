"""The nonparametric maximum-likelihood estimate of the prior, with a certificate of how good it is.

maximise l(G) = sum_k c_k log f_k(G), f_k(G) = integral phi_k dG, over all distributions G. Alternate:

1. weights at the present atoms, exactly (`weights.py`);
2. ascend D(theta; G) from the atoms and from the local maxima of D over the observations (`search.py`), through
   V_k(theta); every point with D > 0 becomes a candidate, and so does the centre of each cluster of atoms;

until the largest D found is at most `tolerance`. Atoms are never moved, only outbid, so the log-likelihood never falls.

Reference: Kiefer, Wolfowitz, 1956; Wang, 2007; Soloff, Guntuboyina, Sen, 2025 (fixed covariances);
Chang, Auddy, Paul (covariances that depend on the parameter).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pyrofl.empirical_bayes.blocks import threads
from pyrofl.empirical_bayes.kernels import Array, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.pool import make_pool
from pyrofl.empirical_bayes.sites import as_kernel, site_mass
from pyrofl.empirical_bayes.support import Support

GIB = 2**30
MANY = 10_000  # sites that give a first guess when there are many more


class Progress(NamedTuple):
    """What `progress` is called with after every step."""

    step: int
    log_likelihood: float  # nats a site
    gap: float  # nats a site
    atoms: int
    seconds: float


def npmle(
    estimates: ArrayLike | Kernel,
    covariance: ArrayLike | None = None,
    *,
    counts: ArrayLike | None = None,
    atoms: ArrayLike | None = None,
    grid_only: bool = False,
    tolerance: float = 1e-4,
    max_steps: int = 60,
    max_seconds: float = float("inf"),
    memory: float = 2.0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Mixture:
    """The prior that makes the estimates of all sites most likely.

    `estimates` (K,) or (K, d) with variances (K,), (K, d) or covariances (K, d, d), or a `Kernel` of a family, whose
    covariances move with the parameter. `counts` says how often each site counts. `atoms` (M, d) is a first guess of
    the support (default: the observations); with `grid_only` the support stays inside it and the certificate, too,
    speaks of these atoms only. `tolerance` is in nats a site, `memory` in GiB for the
    likelihood matrices. No step starts that would end after `max_seconds` if it took as long as the last.

    A problem stopped early (`max_steps`, `max_seconds`, memory) says so in `status` and is still a usable prior.
    """
    begin = time.perf_counter()
    kernel = as_kernel(estimates, covariance)
    mass = site_mass(counts, kernel.sites)
    if grid_only and atoms is None:
        raise ValueError("grid_only needs `atoms`, the grid")
    with threads(workers) as blocks:
        points = None if atoms is None else _points(atoms, kernel.dimension)
        pool = make_pool(kernel, points, int(0.35 * memory * GIB / 8), blocks)
        guess = None
        if points is None and kernel.sites >= 5 * MANY:
            some = np.arange(0, kernel.sites, kernel.sites // MANY)
            guess = npmle(kernel.take(some), counts=mass[some], tolerance=1e-3, memory=memory, workers=workers)
        state = Support(kernel, mass, pool, int(0.6 * memory * GIB / 16), blocks, guess)
        status, before = "", 0.0
        for step in range(max_steps + 1):
            if grid_only:
                state.polish()
                gap, search = state.gap_atoms, f"the {len(pool.points)} given atoms"
            else:
                peaks, gap, search = state.look(tolerance)
                if (gap <= tolerance or step == max_steps) and state.polish():  # certify the very prior handed back
                    peaks, gap, search = state.look(tolerance)
            seconds = time.perf_counter() - begin
            if progress is not None:
                progress(Progress(step, state.log_likelihood, gap, len(state.weights), seconds))
            if gap <= tolerance:
                status = f"converged: gap {gap:.1e} <= {tolerance:.1e} nats a site"
            elif step == max_steps:
                status = f"stopped after {max_steps} steps with gap {gap:.1e} nats a site"
            elif 2 * seconds - before > max_seconds:  # the next step would end too late
                status = f"stopped after {seconds:.0f} s with gap {gap:.1e} nats a site"
                if state.polish():
                    search += "; the weights were polished afterwards"
            elif grid_only or not state.improve(peaks, gap, tolerance):
                status = f"stopped: no candidate raised the likelihood any more, gap {gap:.1e} nats a site"
            if status:
                break
            before = seconds
    order = np.argsort(-state.weights, kind="stable")
    return Mixture(
        state.atoms[order],
        state.weights[order],
        log_likelihood=state.log_likelihood,
        gap_atoms=state.gap_atoms,
        gap=max(gap, state.gap_atoms),
        search=search,
        status=status,
        steps=step,
        seconds=time.perf_counter() - begin,
        notes=state.notes + _notes(kernel),
        kernel=kernel,
    )


def _points(atoms: ArrayLike, dimension: int) -> Array:
    points = np.asarray(atoms, dtype=float)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.shape[1] != dimension or not np.isfinite(points).all():
        raise ValueError(f"atoms must be finite with shape (M, {dimension}), got {points.shape}")
    return points


def _notes(kernel: Kernel) -> tuple[str, ...]:
    if kernel.sites <= 3:
        return (f"{kernel.sites} site(s): the prior is barely identified, so the intervals are not to be trusted",)
    return ()
