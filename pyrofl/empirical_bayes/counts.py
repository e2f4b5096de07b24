"""Kernels of counts, exact rather than Gaussian: events among trials, and events in an exposure. One coordinate.

Binomial: theta is the log odds, log phi = r theta - n log(1 + e^theta) + const.
Poisson:  theta is the log rate, log phi = y theta - e exp(theta) + const.
A count of zero is an ordinary observation here; no continuity correction enters the likelihood.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit, gammaln, logsumexp

from pyrofl.empirical_bayes.kernels import Array, Index, Kernel, Rows, Tangent
from pyrofl.empirical_bayes.multinomial import category_precision, probabilities


class Counts(Kernel):
    """`events` (K,) among `size` (K,), which are trials (`binomial`) or exposures."""

    normal = False

    def __init__(self, events: Array, size: Array, *, binomial: bool):
        self.events, self.size, self.binomial = events, size, binomial
        if binomial:
            self.z = np.log((events + 0.5) / (size - events + 0.5))[:, None]
            self.constant = gammaln(size + 1) - gammaln(events + 1) - gammaln(size - events + 1)
        else:
            self.z = np.log((events + 0.5) / size)[:, None]
            self.constant = events * np.log(size) - gammaln(events + 1)

    @property
    def rate(self) -> Callable[[Array], Array]:
        """From theta to the probability or the rate."""
        return expit if self.binomial else np.exp

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        point = theta[:, 0]
        rate = self.rate(point)
        cumulant, curvature = (np.logaddexp(0.0, point), rate * (1 - rate)) if self.binomial else (rate, rate)
        events, size = self.events[rows], self.size[rows]
        log = np.outer(events, point) - np.outer(size, cumulant) + self.constant[rows, None]

        def tangent(q: Array) -> Tangent:
            sizes = q.T @ size
            gradient = (q.T @ events - sizes * rate)[:, None]
            return Tangent(gradient, gradient, (sizes * curvature)[:, None, None])

        return log, tangent

    def plugin(self) -> Array:
        """Sampling variance of the half-corrected log odds or log rate."""
        variance = 1.0 / (self.events + 0.5)
        if self.binomial:
            variance = variance + 1.0 / (self.size - self.events + 0.5)
        return variance[:, None, None]

    def take(self, index: Index) -> Counts:
        return Counts(self.events[index], self.size[index], binomial=self.binomial)


class Categories(Kernel):
    """Counts (K, C) of C classes, exact: theta holds the log odds of classes 1.. against class 0, d = C - 1.

    log phi = sum_j c_j log p_j(theta) + const. The Gaussian working model of `families.Multinomial` sees the same
    counts as points of a lattice, which a density can overfit; this likelihood cannot.
    """

    normal = False

    def __init__(self, counts: Array):
        self.counts, self.size = counts, counts.sum(axis=1)
        log = np.log(counts + 0.5)
        self.z = log[:, 1:] - log[:, :1]
        self.constant = gammaln(self.size + 1) - gammaln(counts + 1).sum(axis=1)

    def evaluate(self, theta: Array, rows: Rows) -> tuple[Array, Callable[[Array], Tangent]]:
        counts, size = self.counts[rows, 1:], self.size[rows]
        log = counts @ theta.T - np.outer(size, logsumexp(np.pad(theta, ((0, 0), (1, 0))), axis=1))
        log += self.constant[rows, None]

        def tangent(q: Array) -> Tangent:
            p, sizes = probabilities(theta), q.T @ size
            gradient = q.T @ counts - sizes[:, None] * p
            return Tangent(gradient, gradient, sizes[:, None, None] * category_precision(theta)[0])

        return log, tangent

    def plugin(self) -> Array:
        return np.linalg.inv(category_precision(self.z)[0]) / self.size[:, None, None]

    def take(self, index: Index) -> Categories:
        return Categories(self.counts[index])
