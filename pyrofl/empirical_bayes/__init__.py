"""Empirical Bayes: many sites, an estimate and its uncertainty from each, and nothing else shared.

`npmle` estimates any prior, with a certificate; `gaussian_prior` and `adamix` a Gaussian and a mixture of them. All
return a `Mixture`, whose `posterior` gives means, intervals and draws. `families` says how covariances move with the
parameter, `exchange` runs the estimate over messages, `shrink_sites` works on a table.
"""

from pyrofl.empirical_bayes.adamix import adamix
from pyrofl.empirical_bayes.crossfit import cross_fitted
from pyrofl.empirical_bayes.exchange import alternating, exchange
from pyrofl.empirical_bayes.families import GaussianRegression, Logistic, Multinomial, Poisson, QuadraticVariance
from pyrofl.empirical_bayes.fedmap import log_weights, upper_level
from pyrofl.empirical_bayes.gaussian import gaussian_prior
from pyrofl.empirical_bayes.line import npmle_lines
from pyrofl.empirical_bayes.mixture import Mixture
from pyrofl.empirical_bayes.npmle import npmle
from pyrofl.empirical_bayes.posterior import Posterior
from pyrofl.empirical_bayes.shrinkage import shrink_sites, sites_of
from pyrofl.empirical_bayes.smoothing import smoothed
from pyrofl.empirical_bayes.table import read_table

__all__ = [
    "GaussianRegression",
    "Logistic",
    "Mixture",
    "Multinomial",
    "Poisson",
    "Posterior",
    "QuadraticVariance",
    "adamix",
    "alternating",
    "cross_fitted",
    "exchange",
    "gaussian_prior",
    "log_weights",
    "npmle",
    "npmle_lines",
    "read_table",
    "shrink_sites",
    "sites_of",
    "smoothed",
    "upper_level",
]
