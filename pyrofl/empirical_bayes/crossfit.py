"""Cross-fitting: every site is judged by the prior of the others.

A maximum-likelihood prior may build an atom of its own for a site that fits no other: the site then agrees with its
prior and keeps an estimate that nothing supports. Under the prior of the other sites it is shrunk to what they allow.

Reference: Ignatiadis, Wager, 2019, "Covariate-powered empirical Bayes estimation" (cross-fitted priors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from pyrofl.empirical_bayes.kernels import Array, Index, Kernel
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.npmle import npmle
from pyrofl.empirical_bayes.sites import as_kernel
from pyrofl.random import fold, generator, root

Estimator = Callable[[Kernel], Mixture]
FoldProgress = Callable[[int, int], None]  # called with (parts whose prior is fitted, parts)


class CrossFitted(NamedTuple):
    mean: Array  # (K, d) posterior means
    log_marginal: Array  # (K,) log density of each site's report under the prior of the others, in nats


def cross_fitted(
    estimates: ArrayLike | Kernel,
    covariance: ArrayLike | None = None,
    *,
    folds: int = 5,
    key: Tensor | None = None,
    estimator: Estimator | None = None,
    progress: FoldProgress | None = None,
) -> CrossFitted:
    """Posterior means of the sites of each of `folds` parts under the prior estimated from the rest.

    Far-off sites are where it helps; a site like the others loses a little, as the prior has seen fewer sites.
    `estimator` fits the prior (default: `npmle` to 1e-3 nats a site). `progress` is called with (parts done, parts).
    """
    kernel = as_kernel(estimates, covariance)
    if not 2 <= folds <= kernel.sites:
        raise ValueError(f"folds must lie between 2 and the number of sites, {kernel.sites}, got {folds}")
    mean, log_marginal = np.empty_like(kernel.z), np.empty(kernel.sites)
    for prior, test in fold_priors(kernel, folds, fold(root(0) if key is None else key, "cross"), estimator, progress):
        posterior = prior.posterior(kernel.take(test))
        mean[test], log_marginal[test] = posterior.mean, posterior.log_marginal
    return CrossFitted(mean, log_marginal)


def fold_priors(
    kernel: Kernel, folds: int, key: Tensor, estimator: Estimator | None, progress: FoldProgress | None = None
) -> Iterator[tuple[Mixture, Index]]:
    """For each of `folds` random parts, the prior of the other sites and the sites of the part."""
    estimator = estimator or (lambda part: npmle(part, tolerance=1e-3))
    fold_of = generator(key).permutation(kernel.sites) % folds
    for f in range(folds):
        prior = estimator(kernel.take(np.flatnonzero(fold_of != f)))
        if progress is not None:
            progress(f + 1, folds)
        yield prior, np.flatnonzero(fold_of == f)
