"""From any fit by Pyro's SVI, federated or not, to ArviZ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyro
import torch
import xarray as xr
from pyro import poutine
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from ..handlers import is_deterministic, latents, observations
from ..random import root
from . import adapter


def from_pyro_svi(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    draws: int = 1000,
    key: Tensor | int = 0,
    sites: Sequence[str] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    **kwargs: Any,
) -> xr.DataTree:
    """Draws from a fitted guide as a DataTree for ArviZ; `args` and `kwargs` are those of `svi.step`, all rows.

    `posterior` holds the latent sites and what `pyro.deterministic` records of them (or those in `sites`),
    `posterior_predictive`, `log_likelihood` and `observed_data` each observed site by its own name, `sample_stats`
    log p(z, x) and log q(z) of every draw, so that `arviz_stats.loo_approximate_posterior` corrects for the guide.
    `coords` and `dims` label axes as elsewhere in ArviZ; where there is one observed site and nothing else is said, its
    only axis is `obs`, and so is the axis of rows of what is recorded in its plate. Sites that every draw gives the
    same value are in `constant_data`. The generator of the process is left as it was.
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    seed = int(root(key) if isinstance(key, int) else key)
    out: dict[str, dict[str, list[Tensor]]] = {}

    def keep(group: str, name: str, value: Tensor) -> None:
        out.setdefault(group, {}).setdefault(name, []).append(value.detach().cpu())

    observed: dict[str, Tensor] = {}
    axes: dict[str, int] = {}
    start: dict[str, Tensor] = {}
    moved = draws == 1
    with torch.no_grad(), torch.random.fork_rng(devices=[]), pyro.validation_enabled(False):
        torch.random.manual_seed(seed)
        for s in range(draws):
            q = poutine.trace(guide).get_trace(*args, **kwargs)
            p = poutine.trace(poutine.replay(model, q)).get_trace(*args, **kwargs)
            if s == 0:
                _check(p, q, sites)
                observed = {n: p.nodes[n]["value"].detach().cpu() for n in _data_sites(p)}
                axes = _row_axes(p)
                start = {n: p.nodes[n]["value"] for n in latents(p)}
            moved = moved or any(not torch.equal(p.nodes[n]["value"], v) for n, v in start.items())
            p.compute_log_prob(), q.compute_log_prob()
            keep("sample_stats", "log_p", _total(p))
            keep("sample_stats", "log_q", _total(q))
            for name in _shown(p):
                if sites is None or name in sites:
                    keep("posterior", name, p.nodes[name]["value"])
            for name in observed:
                keep("log_likelihood", name, p.nodes[name]["unscaled_log_prob"])
            new = poutine.trace(_Unseen()(poutine.replay(model, q))).get_trace(*args, **kwargs)
            for name in observed:
                keep("posterior_predictive", name, new.nodes[name]["value"])
    stacked = {g: {n: torch.stack(v).unsqueeze(0).numpy() for n, v in group.items()} for g, group in out.items()}
    moving, constant = split_constant(stacked.get("posterior", {}))
    groups = {**stacked, "posterior": moving, "constant_data": constant}
    if not moved and start:
        del groups["sample_stats"]  # a point estimate has no density
    groups["observed_data"] = {n: v.numpy() for n, v in observed.items()}
    return adapter.tree(
        groups, dims=_named(observed, axes, dims or {}), coords=coords, attrs={"constant_sites": ", ".join(constant)}
    )


def _named(
    observed: Mapping[str, Tensor], axes: Mapping[str, int], dims: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """`dims` with the rows named where one site is observed; `axes` says which axis of a recorded site they are."""
    named = dict(dims)
    if len(observed) != 1:
        return named
    ((name, value),) = observed.items()
    if value.dim() == 1:
        named.setdefault(name, ["obs"])
        for site, axis in axes.items():
            named.setdefault(site, [*(f"{site}_dim_{j}" for j in range(axis)), *named[name]])
    return named


def split_constant(sites: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(sites that move, the value of those that do not) of draws (chain, draw, ...): of one draw none is constant."""
    moving, constant = {}, {}
    for name, v in sites.items():
        if v.shape[0] * v.shape[1] > 1 and (v == v[:1, :1]).all():
            constant[name] = v[0, 0]
        else:
            moving[name] = v
    return moving, constant


class _Unseen(UnconditionMessenger):
    """Draw the observed sites anew; what `pyro.deterministic` records, which Pyro counts among them, stays as it is."""

    def _pyro_sample(self, msg: Any) -> None:
        if not is_deterministic(msg):
            super()._pyro_sample(msg)


def _recorded(trace: Any) -> list[str]:
    """The sites of `pyro.deterministic`."""
    return [n for n, site in trace.nodes.items() if site["type"] == "sample" and is_deterministic(site)]


def _shown(trace: Any) -> list[str]:
    """The sites of `posterior`: the latent ones, and those of `pyro.deterministic`."""
    return [*latents(trace), *_recorded(trace)]


def _data_sites(trace: Any) -> list[str]:
    found = observations(trace)
    return [n for n in found if not trace.nodes[n]["infer"].get("is_auxiliary") and trace.nodes[n]["value"].numel()]


def _row_axes(trace: Any) -> dict[str, int]:
    """Recorded site -> its axis of rows, the first of their number, where it lies in the plate of an observed site."""
    rows = {frame for n in _data_sites(trace) for frame in trace.nodes[n]["cond_indep_stack"]}
    out = {}
    for name in _recorded(trace):
        site = trace.nodes[name]
        shared = [frame.size for frame in site["cond_indep_stack"] if frame in rows]
        if len(shared) == 1 and shared[0] in site["value"].shape:
            out[name] = site["value"].shape.index(shared[0])
    return out


def _total(trace: Any) -> Tensor:
    terms = [n["log_prob"].double().sum() for n in trace.nodes.values() if n["type"] == "sample" and "log_prob" in n]
    return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)


def _check(p: Any, q: Any, sites: Sequence[str] | None) -> None:
    """Refuse fits whose draws would not mean what ArviZ takes them for."""
    if not _data_sites(p):
        raise ValueError("the model observes nothing: give the arguments of svi.step, the observations among them")
    lacking = [n for n in latents(p) if n not in q.nodes]
    if lacking:
        raise ValueError(
            f"the guide has no site {lacking[0]!r}, so it would be drawn from its prior: sites that are enumerated or "
            "marginalised cannot be shown; leave them out of the model, or give them to the guide"
        )
    for name, site in p.nodes.items():
        if site["type"] != "sample" or not site_is_subsample(site):
            continue
        size, taken = site["fn"].size, len(site["value"])
        if taken != size:
            raise ValueError(
                f"plate {name!r} takes {taken} of {size} rows, others at each draw: pass all rows and no subsample size"
            )
    unknown = [n for n in sites or () if n not in _shown(p)]
    if unknown:
        raise ValueError(f"sites: there is no latent site {unknown[0]!r}; the latent sites are {', '.join(_shown(p))}")
