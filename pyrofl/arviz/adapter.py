"""The only file that imports ArviZ: what arviz-base and arviz-stats 0.8 and 1.x have in common."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import arviz_base
import arviz_stats
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats

from ..suggest import choose

Arrays = Mapping[str, Any]
FEWEST = 25  # draws: the tail is a fifth of them, and a fit to fewer than 5 says nothing


def tree(
    groups: Mapping[str, Arrays],
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    rows: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> xr.DataTree:
    """Arrays as a DataTree; those outside `observed_data` and `constant_data` begin with (chain, draw).

    `dims` names the other axes of a variable, `coords` labels dimensions, `rows` are labels (B,) along `obs`.
    """
    made = arviz_base.from_dict(
        {name: dict(group) for name, group in groups.items() if group},
        dims={k: list(v) for k, v in (dims or {}).items()},
        coords=dict(coords or {}),
        check_conventions=False,
    )
    for node in made.children.values():
        if "obs" in node.dims:
            labels = {k: ("obs", np.asarray(v)) for k, v in (rows or {}).items()}
            node.dataset = node.to_dataset().assign_coords(labels)
    made.attrs = {k: v for k, v in (attrs or {}).items() if v not in ("", None)}
    return made


def save(made: xr.DataTree, path: str | os.PathLike[str]) -> Path:
    """Write netCDF, which `xarray.open_datatree`, arviz 1 and (as InferenceData) arviz 0.23 read.

    The old file stands until the new one is whole.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        made.to_netcdf(temporary, engine="h5netcdf")
        with open(temporary, "rb") as f:
            os.fsync(f.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def load(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a file of `save` into memory."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file; `pyrofl evaluate RUN` writes RUN/draws.nc")
    if Path(path).is_dir():
        raise ValueError(f"{path} is a directory: name a file in it, such as {Path(path) / 'draws.nc'}")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as found:
            return found.load()
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as netCDF ({error}): `pyrofl evaluate RUN` writes RUN/draws.nc anew"
        ) from error


def psis(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """(smoothed log weights, Pareto k-hat) of log importance ratios (S,).

    Reference: Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto Smoothed Importance Sampling", 2024.
    """
    smoothed, k = array_stats.psislw(-np.asarray(log_ratios, dtype=np.float64))
    return np.asarray(smoothed), float(k)


def loo(made: xr.DataTree, *, observations: int | None = None, seed: int = 0, var_name: str | None = None) -> Any:
    """Leave-one-out log predictive density of the training rows, corrected for the guide: arviz's `ELPDData`.

    `var_name` is the observed variable, which need not be named where there is one only.
    Where each client has a posterior of its own, a row is weighted by the log densities of its client's. `observations`
    takes a random subset of so many rows (subsampled LOO, for one shared posterior). Pareto k-hats are in `.pareto_k`.

    Reference: Magnusson, Andersen, Jonasson, Vehtari, "Bayesian leave-one-out cross-validation for large data", 2019.
    """
    stats = made.get("sample_stats")
    if stats is None or "log_p" not in stats:
        raise ValueError(
            "there are no log_p and log_q: LOO needs training rows (split = 'train') and a guide that is a density, "
            "not a point"
        )
    var_name = _observed(made, var_name)
    log_likelihood = made["log_likelihood"].to_dataset()[var_name]
    refuse_few(log_likelihood.sizes["chain"] * log_likelihood.sizes["draw"])
    refuse_infinite(log_likelihood)
    log_p, log_q = (made["sample_stats"].to_dataset()[name] for name in ("log_p", "log_q"))
    if "client" in log_p.dims:
        if observations is not None:
            raise ValueError("subsampled LOO needs one shared posterior: take one client's draws (client = NAME)")
        log_p, log_q = (v.sel(client=log_likelihood["client"]).drop_vars("client") for v in (log_p, log_q))
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of k-hats, which the result holds
        if observations is None:
            return arviz_stats.loo_approximate_posterior(made, log_p, log_q, pointwise=True, var_name=var_name)
        return arviz_stats.loo_subsample(
            made, observations, pointwise=True, var_name=var_name, log_p=log_p, log_q=log_q, seed=seed
        )


def _observed(made: xr.DataTree, name: str | None) -> str:
    """The variable of `log_likelihood` that is meant: the one named, or the only one."""
    known = [str(v) for v in made["log_likelihood"].data_vars]
    if name is not None:
        choose(name, known, "var_name")
        return name
    if len(known) != 1:
        raise ValueError(f"there are several observed variables ({', '.join(known)}): name one by var_name")
    return known[0]


def refuse_few(draws: int) -> None:
    """Raise where so many draws say nothing on the tail of the importance ratios."""
    if draws < FEWEST:
        raise ValueError(f"at least {FEWEST} draws are needed for LOO, got {draws}: raise --draws (in Python: draws)")


def refuse_infinite(log_likelihood: xr.DataArray) -> None:
    """Raise where a log-likelihood is not finite, and name the row: one such row makes LOO undefined."""
    finite = xr.apply_ufunc(np.isfinite, log_likelihood).all(("chain", "draw"))
    bad = ~finite.values  # (obs,), or of more dimensions
    if bad.any():
        where = [describe_row(log_likelihood, at) for at in np.argwhere(bad)[:3].tolist()]
        more = f" and {int(bad.sum()) - 3} more" if int(bad.sum()) > 3 else ""
        raise ValueError(
            f"the log-likelihood is not finite at {'; '.join(where)}{more}: the model gives what was observed there "
            "probability 0; look at these rows, or give the model a likelihood with heavier tails"
        )


def describe_row(log_likelihood: xr.DataArray, index: Sequence[int]) -> str:
    """Which row it is, in words; `index` is its place in each dimension but chain and draw."""
    place = dict(zip((d for d in log_likelihood.dims if d not in ("chain", "draw")), index))
    at = log_likelihood.isel(place)
    named = [f"{k} {at[k].item()}" for k in ("client", "row") if k in at.coords]
    return ", ".join(named or [f"{d} {i}" for d, i in place.items()]) or "the only row"
