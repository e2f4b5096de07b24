"""What each site's posterior says: mean, covariance, quantiles, credible intervals, draws.

Site k's posterior under the prior sum_j w_j N(a_j, C_j) is the mixture of N(m_kj, S_kj) with weights
r_kj proportional to w_j N(z_k; a_j, C_j + V_k); for a discrete prior C_j = 0, m_kj = a_j, S_kj = 0 and
r_kj is proportional to w_j phi_k(a_j) with V_k taken *at the atom*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr
from torch import Tensor

from pyrofl.empirical_bayes.kernels import LOG_2PI, Array, Kernel
from pyrofl.random import generator

if TYPE_CHECKING:
    from pyrofl.empirical_bayes.mixture import Mixture

ENTRIES = 1 << 18  # responsibilities held at once


class Components(NamedTuple):
    rows: slice
    log_marginal: Array  # (k,) log f_k in nats
    responsibility: Array  # (k, M)
    mean: Array  # (M, d) of a discrete prior, else (k, M, d)
    spread: Array | None  # None for a discrete prior, else (k, M, d, d)


class Posterior:
    """The posteriors of K sites under one prior; nothing of size K x M is kept.

    With a `link` the posterior is that of link(theta), coordinate by coordinate.
    """

    def __init__(self, prior: Mixture, kernel: Kernel, link: Callable[[Array], Array] | None = None):
        if kernel.dimension != prior.dimension:
            raise ValueError(f"estimates have {kernel.dimension} coordinates, the prior has {prior.dimension}")
        if link is not None and prior.spread is not None:
            raise ValueError("a link needs a discrete prior: make it one with `discretised`")
        self.prior, self.kernel, self.link = prior, kernel, link

    def components(self) -> Iterator[Components]:
        """The mixture of every site, some rows at a time."""
        prior, kernel = self.prior, self.kernel
        step = max(1, ENTRIES // (len(prior.weights) * (1 if prior.spread is None else prior.dimension**2)))
        plugin = None if prior.spread is None else kernel.plugin()
        points = prior.atoms if self.link is None else self.link(prior.atoms)
        with np.errstate(divide="ignore"):
            log_weight = np.log(prior.weights)
        for start in range(0, kernel.sites, step):
            rows = slice(start, min(start + step, kernel.sites))
            if plugin is None:
                log, mean, spread = kernel.evaluate(prior.atoms, rows)[0], points, None
            else:
                log, mean, spread = conjugate(kernel.z[rows], plugin[rows], prior)
            log = log + log_weight
            marginal = logsumexp(log, axis=1)
            lost = ~np.isfinite(marginal)
            if lost.any():
                site = start + int(np.flatnonzero(lost)[0])
                raise ValueError(
                    f"site {site} has no likelihood under the prior: its estimate or variance is not finite"
                )
            yield Components(rows, marginal, np.exp(log - marginal[:, None]), mean, spread)

    @cached_property
    def log_marginal(self) -> Array:
        """log f_k(z_k) in nats, (K,)."""
        return np.concatenate([part.log_marginal for part in self.components()])

    @cached_property
    def mean(self) -> Array:
        """E[theta_k | z_k], (K, d): the empirical-Bayes estimate."""
        out = np.empty_like(self.kernel.z)
        for part in self.components():
            own = part.mean if part.mean.ndim == 3 else part.mean[None]
            out[part.rows] = np.einsum(
                "kj,kjd->kd", part.responsibility, np.broadcast_to(own, (len(part.responsibility), *own.shape[1:]))
            )
        return np.where(self.kernel.exact[:, None], self.kernel.z, out)

    @cached_property
    def covariance(self) -> Array:
        """Cov[theta_k | z_k], (K, d, d)."""
        d = self.kernel.dimension
        out = np.empty((self.kernel.sites, d, d))
        for part in self.components():
            r, centre = part.responsibility, self.mean[part.rows]
            if part.mean.ndim == 2:
                second = (r @ (part.mean[:, :, None] * part.mean[:, None, :]).reshape(-1, d * d)).reshape(-1, d, d)
                out[part.rows] = second - centre[:, :, None] * centre[:, None, :]
            else:
                gap = part.mean - centre[:, None]
                out[part.rows] = np.einsum("kj,kja,kjb->kab", r, gap, gap)
            if part.spread is not None:
                out[part.rows] += np.einsum("kj,kjab->kab", r, part.spread)
        return np.where(self.kernel.exact[:, None, None], 0.0, out)

    @property
    def standard_deviation(self) -> Array:
        """Posterior standard deviation of every coordinate, (K, d)."""
        return np.sqrt(np.maximum(np.diagonal(self.covariance, axis1=1, axis2=2), 0.0))

    def quantile(self, level: float) -> Array:
        """The smallest value with posterior probability at least `level` below it, per coordinate, (K, d)."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        out = np.empty_like(self.kernel.z)
        for part in self.components():
            for i in range(out.shape[1]):
                out[part.rows, i] = _quantile(part, i, level)
        return np.where(self.kernel.exact[:, None], self.kernel.z, out)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Equal-tailed credible interval per coordinate: lower and upper ends, each (K, d)."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        return self.quantile((1.0 - level) / 2), self.quantile((1.0 + level) / 2)

    def draws(self, key: Tensor, count: int) -> Array:
        """Joint posterior draws of every site, (S, K, d)."""
        rng, d = generator(key), self.kernel.dimension
        out = np.empty((count, self.kernel.sites, d))
        for part in self.components():
            cumulative = np.cumsum(part.responsibility, axis=1)
            uniform = rng.random((count, len(cumulative))) * cumulative[:, -1]
            pick = np.stack(
                [np.minimum((cumulative < u[:, None]).sum(axis=1), cumulative.shape[1] - 1) for u in uniform]
            )
            rows = np.arange(len(cumulative))
            out[:, part.rows] = part.mean[pick] if part.mean.ndim == 2 else part.mean[rows, pick]
            if part.spread is not None:
                root = np.linalg.cholesky(part.spread + 1e-300 * np.eye(d))
                out[:, part.rows] += np.einsum(
                    "skab,skb->ska", root[rows, pick], rng.standard_normal((count, len(rows), d))
                )
        return np.where(self.kernel.exact[:, None], self.kernel.z, out)

    def dataset(self, key: Tensor, count: int, *, sites: Sequence[str] | None = None) -> Any:
        """Draws as an `xarray.Dataset` with dims (chain, draw, site, coordinate), which ArviZ takes as it is."""
        import xarray

        names = list(sites) if sites is not None else list(range(self.kernel.sites))
        coordinates = {"site": names, "coordinate": list(range(self.kernel.dimension))}
        theta = (("chain", "draw", "site", "coordinate"), self.draws(key, count)[None])
        return xarray.Dataset({"theta": theta}, coords=coordinates)


def conjugate(z: Array, variance: Array, prior: Mixture) -> tuple[Array, Array, Array]:
    """log N(z_k; a_j, C_j + V_k) (k, M), and mean and covariance of each component after seeing z_k.

    An infinite variance leaves the component as it was, a zero one gives the estimate.
    """
    spread = prior.spread
    assert spread is not None
    d = z.shape[1]
    infinite = ~np.isfinite(np.diagonal(variance, axis1=1, axis2=2))  # (k, d)
    known = ~infinite[:, None, :]
    gain_mask = (known[:, :, :, None] & known[:, :, None, :]).astype(float)
    V = np.where(infinite[:, :, None] | infinite[:, None, :], 0.0, variance)
    total = (spread[None] + V[:, None]) * gain_mask  # (k, M, d, d), blank rows where nothing is known
    total = total + np.eye(d) * (~known)[:, :, :, None] + 1e-300 * np.eye(d)
    gain = np.linalg.solve(total, np.swapaxes(spread[None] * known[:, :, None, :], 2, 3))
    gain = np.swapaxes(gain, 2, 3)  # C_j (C_j + V_k)^-1 on the known coordinates
    residual = np.where(known, z[:, None] - prior.atoms[None], 0.0)
    mean = prior.atoms[None] + np.einsum("kjab,kjb->kja", gain, residual)
    left = spread[None] - gain @ (spread[None] * known[:, :, :, None])
    solved = np.linalg.solve(total, residual[..., None])[..., 0]
    log = -0.5 * ((residual * solved).sum(axis=2) + np.linalg.slogdet(total)[1] + known.sum(axis=2) * LOG_2PI)
    return log, mean, (left + np.swapaxes(left, 2, 3)) / 2


def _quantile(part: Components, i: int, level: float) -> Array:
    r = part.responsibility
    if part.spread is None:
        order = np.argsort(part.mean[:, i], kind="stable")
        reached = np.cumsum(r[:, order], axis=1) >= level - 1e-12
        chosen: Array = part.mean[order[reached.argmax(axis=1)], i]
        return chosen
    centre, width = part.mean[:, :, i], np.sqrt(np.maximum(part.spread[:, :, i, i], 0.0))
    low, high = (centre - 40 * width).min(axis=1), (centre + 40 * width).max(axis=1)
    safe = np.maximum(width, 1e-300)
    for _ in range(100):
        middle = (low + high) / 2
        below = (r * ndtr((middle[:, None] - centre) / safe)).sum(axis=1) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
