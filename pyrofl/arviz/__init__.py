"""Posterior draws for ArviZ: one `xarray.DataTree`, from a run or from any SVI fit in Pyro.

Groups: `posterior` (chosen sites), `posterior_predictive` (`y`, and `p` for classes), `log_likelihood`,
`observed_data`, `sample_stats` (`log_p`, `log_q`, where the guide is a density), and `constant_data` (sites without
spread). Dimensions are chain, draw, obs and class; `obs` carries the coordinates `client` and `row`.
"""

from .adapter import load, loo, save
from .pyro_svi import from_pyro_svi
from .runs import from_run

__all__ = ["from_pyro_svi", "from_run", "load", "loo", "save"]
