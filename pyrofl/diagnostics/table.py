"""One line a client: the checks of a run's posterior, for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from ..arviz import adapter
from .contraction import Moments, contraction
from .elbo import elbo_trend
from .khat import khat

ALL = "(all)"  # one posterior for all clients


def table(
    made: xr.DataTree, *, losses: Mapping[str, Sequence[float]] | None = None, prior: Moments | None = None
) -> pd.DataFrame:
    """Rows are clients (and "(all)" for a shared posterior), columns are checks; empty where a check does not apply.

    `made` is `Run.to_arviz()` on training rows, `losses` the clients' -ELBO / n of each round, `prior` the moments of
    the prior (see `arviz.runs.prior_moments`). `elpd` is the leave-one-out log predictive density, summed over rows,
    with its standard error; `high k` counts rows whose own k-hat is too large for it.
    """
    likelihood = made["log_likelihood"].to_dataset()["y"]
    of_row = likelihood["client"].values
    clients = list(dict.fromkeys(str(name) for name in of_row))
    own = made.attrs.get("model") == "personal"
    lines: dict[str, dict[str, object]] = {name: {} for name in ([] if own else [ALL]) + clients}
    for name in clients:
        lines[name]["rows"] = int((of_row == name).sum())
    if not own:
        lines[ALL]["rows"] = likelihood.sizes["obs"]
    if "sample_stats" in made:
        result, stats = adapter.loo(made), made["sample_stats"].to_dataset()
        for name, line in lines.items():
            mine = np.full(len(of_row), True) if name == ALL else of_row == name
            elpd, k = (getattr(result, v).values[mine] for v in ("elpd_i", "pareto_k"))
            line["elpd"], line["se"] = float(elpd.sum()), float(np.sqrt(len(elpd) * elpd.var()))
            line["high k"] = int((k > result.good_k).sum())
            if own or name == ALL:
                log_p, log_q = (stats[v].sel(client=name) if own else stats[v] for v in ("log_p", "log_q"))
                found = khat(log_p, log_q)
                line["k-hat"], line["guide"] = found.value, found.verdict
    if prior is not None and "posterior" in made:
        draws = made["posterior"].to_dataset()
        for name in lines if own else [ALL]:
            mine_only = draws.sel(client=name) if own else draws
            known = {str(n): v for n, v in mine_only.data_vars.items() if n in prior}
            over = ("chain", "draw")
            moments = {n: (v.mean(over).values, v.std(over).values) for n, v in known.items()}
            if moments:
                lines[name]["contraction"] = contraction(moments, prior).median
    for name, line in lines.items():
        if losses and name in losses:
            line["ELBO"] = elbo_trend(losses[name]).verdict
    columns = ["rows", "k-hat", "guide", "elpd", "se", "high k", "contraction", "ELBO"]
    frame = pd.DataFrame.from_dict(lines, orient="index")
    return frame.reindex(columns=[c for c in columns if c in frame])
