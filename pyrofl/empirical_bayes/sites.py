"""What a user hands in, checked once: estimates and their covariances become a `Kernel`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pyrofl.empirical_bayes.kernels import Array, Fixed, FixedFull, Kernel


def as_kernel(estimates: ArrayLike | Kernel, covariance: ArrayLike | None = None) -> Kernel:
    """A kernel from estimates (K,) or (K, d) and variances (K,), (K, d) or covariances (K, d, d).

    Variances, not standard errors. Zero means exact and infinity means no information, on a diagonal only. A `Kernel`
    made by a family passes through.
    """
    if isinstance(estimates, Kernel):
        if covariance is not None:
            raise ValueError("a kernel of a family brings its own covariance: leave the second argument out")
        return estimates
    if covariance is None:
        raise ValueError("estimates need their variances (K,), (K, d) or covariances (K, d, d) as second argument")
    z = np.asarray(estimates, dtype=float)
    z = z[:, None] if z.ndim == 1 else z
    V = np.asarray(covariance, dtype=float)
    V = V[:, None] if V.ndim == 1 else V
    if z.ndim != 2 or z.size == 0:
        raise ValueError(f"estimates must be (K,) or (K, d) with K >= 1 and d >= 1, got shape {z.shape}")
    if V.shape not in (z.shape, (*z.shape, z.shape[1])):
        wanted = f"{z.shape} or {(*z.shape, z.shape[1])}"
        raise ValueError(f"the covariance of estimates {z.shape} must have shape {wanted}, got {V.shape}")
    _refuse(~np.isfinite(z).all(axis=1), "estimate is not finite")
    if V.ndim == 2:
        _refuse(~(V >= 0).all(axis=1), "variance is negative or not a number")
        some = (V == 0).any(axis=1) & ~(V == 0).all(axis=1)
        _refuse(some, "variance is zero in some coordinates only; give all or none of them")
        if np.isinf(V).all():
            raise ValueError("every variance is infinite: nothing was observed")
        return Fixed(z, V)
    _refuse(~np.isfinite(V).all(axis=(1, 2)), "covariance is not finite")
    _refuse(
        ~np.isclose(V, np.swapaxes(V, 1, 2), rtol=1e-8, atol=1e-12 * np.abs(V).max()).all(axis=(1, 2)),
        "covariance is not symmetric",
    )
    _refuse(np.linalg.eigvalsh(V)[:, 0] <= 0, "covariance is not positive definite")
    return FixedFull(z, V)


def site_mass(counts: ArrayLike | None, sites: int) -> Array:
    """(K,) shares that sum to one, from how often each site counts (None: equally)."""
    if counts is None:
        return np.full(sites, 1.0 / sites)
    c = np.asarray(counts, dtype=float)
    if c.shape != (sites,):
        raise ValueError(f"counts must have shape ({sites},), one a site, got {c.shape}")
    _refuse(~(np.isfinite(c) & (c > 0)), "count is not positive and finite")
    mass: Array = c / c.sum()
    return mass


def _refuse(bad: ArrayLike, reason: str) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        more = f" (and {len(where) - 1} more)" if len(where) > 1 else ""
        raise ValueError(f"site {where[0]}{more}: {reason}")
