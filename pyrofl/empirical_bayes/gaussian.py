"""Gaussian empirical Bayes: theta_k ~ N(mu, T), z_k | theta_k ~ N(theta_k, V_k), mu and T by marginal likelihood.

E[theta_k | z_k] = mu + T (T + V_k)^-1 (z_k - mu). Covariances that move with the parameter are taken at the estimate.
Sites with a variance of zero or infinity do not shape the prior: one exact site would make the likelihood unbounded.

Reference: Efron, Morris, 1973; Morris, 1983, "Parametric empirical Bayes inference".
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from pyrofl.empirical_bayes.kernels import LOG_2PI, Array, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.sites import as_kernel, site_mass


def gaussian_prior(
    estimates: ArrayLike | Kernel, covariance: ArrayLike | None = None, *, counts: ArrayLike | None = None
) -> Mixture:
    """The Gaussian prior N(mu, T) of highest marginal likelihood, T any covariance matrix (zero allowed)."""
    begin = time.perf_counter()
    kernel = as_kernel(estimates, covariance)
    mass = site_mass(counts, kernel.sites)
    V = kernel.plugin()
    known = np.isfinite(V).all(axis=(1, 2)) & ~kernel.exact
    if not known.any():
        known = ~kernel.exact | np.isfinite(V).all(axis=(1, 2))
    V, mass = V[known], mass[known] / mass[known].sum()
    z, d = kernel.z[known], kernel.dimension
    centre = mass @ z
    spread = np.einsum("k,ka,kb->ab", mass, z - centre, z - centre)
    unit = np.sqrt(np.maximum(np.diag(spread), 1e-300)) if (np.diag(spread) > 0).all() else np.ones(d)
    Z, W = (z - centre) / unit, V / (unit[:, None] * unit)
    lower = np.tril_indices(d)

    def objective(a: Array) -> tuple[float, Array]:
        """Negative log-likelihood in nats a site and its gradient; T = A A', mu profiled out."""
        A = np.zeros((d, d))
        A[lower] = a
        inverse, logdet, mu = _profile(Z, W, A @ A.T, mass)
        residual = np.einsum("kab,kb->ka", inverse, Z - mu)
        value = 0.5 * mass @ (logdet + ((Z - mu) * residual).sum(axis=1) + d * LOG_2PI)
        slope = np.einsum("k,kab->ab", mass, inverse) - np.einsum("k,ka,kb->ab", mass, residual, residual)
        return float(value), (slope @ A)[lower]

    moment = np.linalg.eigvalsh(np.cov(Z.T, aweights=mass, ddof=0).reshape(d, d) - np.einsum("k,kab->ab", mass, W))
    starts = [np.eye(d)[lower] * np.sqrt(t) for t in (max(float(moment.mean()), 0.01), 1.0, 1e-4)]
    best = min(
        (minimize(objective, a, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10}) for a in starts),
        key=lambda r: r.fun,
    )
    A = np.zeros((d, d))
    A[lower] = best.x
    if not (W == 0).all(axis=(1, 2)).any() and objective(np.zeros(len(lower[0])))[0] <= best.fun + 1e-12:
        A[:] = 0.0  # no spread beyond the sampling error
    T = A @ A.T
    mu = _profile(Z, W, T, mass)[2]
    log_likelihood = -objective(A[lower])[0] - float(np.log(unit).sum())
    status = "maximum likelihood" + (", no spread between sites beyond their errors" if not T.any() else "")
    return Mixture(
        (mu * unit + centre)[None],
        np.ones(1),
        (T * unit[:, None] * unit)[None],
        log_likelihood=log_likelihood,
        status=status,
        steps=int(best.nit),
        seconds=time.perf_counter() - begin,
        notes=_few(kernel.sites),
        kernel=kernel,
    )


def _profile(z: Array, V: Array, T: Array, mass: Array) -> tuple[Array, Array, Array]:
    """(T + V_k)^-1, log det (T + V_k), and the best mu = (sum P_k)^-1 sum P_k z_k."""
    total = T + V + 1e-14 * np.eye(z.shape[1])
    inverse: Array = np.asarray(np.linalg.inv(total))
    weighted = mass[:, None, None] * inverse
    mu = np.linalg.solve(weighted.sum(axis=0), np.einsum("kab,kb->a", weighted, z))
    return inverse, np.linalg.slogdet(total)[1], mu


def _few(sites: int) -> tuple[str, ...]:
    if sites <= 3:
        return (f"{sites} site(s): the prior is barely identified, so the intervals are not to be trusted",)
    return ()
