"""From a run to ArviZ: the server's posterior, or each client's own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from .. import evaluate
from ..data import Data
from ..engines import Vectorised
from ..methods.fedavg import FedAvg
from ..random import fold, generator
from ..suggest import choose
from ..tree import Tree, pack
from . import adapter
from .pyro_svi import split_constant

if TYPE_CHECKING:
    from ..run import Run

Model = Literal["global", "personal"]
Split = Literal["train", "test"]
_SMALL = 1000  # sites of at most so many weights are kept where no sites are named


class Posterior(NamedTuple):
    """One posterior of a run: of the server (for all clients), or of one client."""

    name: str  # "" of the server
    theta: Tree
    clients: list[int]  # whose rows it was fitted to
    key: Tensor


def from_run(
    run: Run,
    *,
    model: Model | None = None,
    split: Split = "train",
    draws: int = 1000,
    sites: Sequence[str] | None = None,
    client: str | None = None,
    rows: int | None = None,
    memory: int = 2 << 30,
) -> xr.DataTree:
    """The draws of a run's posterior, for the rows of its clients.

    `model = "global"` is the server's posterior (the default where there is one); with "personal" every client has its
    own, `posterior` and `sample_stats` have a dimension `client`, and `client = NAME` takes one of them. Clients that
    predict with the server's are then left out, and `attrs["clients_left_out"]` names them. The target of `log_p` is
    the declared prior, counted once, times the likelihood of the training rows that the posterior was fitted to: all
    clients' rows, or the client's own. `split = "test"` is held-out rows, for checks of calibration: without `log_p`
    and `log_q`, so that nothing is chosen by them.

    `sites` names those kept in `posterior`; the default is every site of at most 1000 weights. Where the whole would
    not fit into `memory` bytes, `rows` keeps a random subset of so many rows of each posterior (the server's: each
    client's share, of one row at least); the densities take all rows.
    """
    for value, known, what in (
        (model or "global", ("global", "personal"), "model"),
        (split, ("train", "test"), "split"),
    ):
        choose(value, known, what)
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    if rows is not None and rows < 1:
        raise ValueError(f"rows must be at least 1 of each posterior, got {rows}")
    posteriors, left_out = _posteriors(run, model, client)
    kept = _kept(run, sites)
    _check_size(run, posteriors, split, draws, rows, memory)
    collected = [_collect(run, q, split, draws, kept, rows) for q in posteriors]
    made = _tree(run, posteriors, collected, kept, split)
    if left_out:
        made.attrs["clients_left_out"] = ", ".join(left_out)
    return made


def _posteriors(run: Run, model: Model | None, client: str | None) -> tuple[list[Posterior], list[str]]:
    """The posteriors, and the clients that have none of their own."""
    common = run.method.common(run.server)
    if client is not None:
        choose(client, run.names, "client")
    if model is None:
        model = "personal" if common is None and not run.method.pools else "global"
    if model == "global":
        theta = run.personal(0) if run.method.pools else common
        if theta is None:
            raise ValueError("this method has no model of the server: use model = 'personal'")
        if client is not None:
            raise ValueError("the server's posterior is that of all clients' rows: client needs model = 'personal'")
        return [Posterior("", theta, list(range(len(run.names))), fold(run.key, "draws", run.round))], []
    if run.method.pools:
        raise ValueError("this method trains one model on all rows: use model = 'global'")
    found, left_out = [], []
    for i, name in enumerate(run.names):
        if client in (None, name):
            theta = run.personal(i)
            if common is not None and same(theta, common):
                left_out.append(name)
            else:
                found.append(Posterior(name, theta, [i], fold(run.key, "draws", run.round, i)))
    if not found:
        who = "every client" if client is None else f"client {client}"
        raise ValueError(f"{who} predicts with the server's own posterior: use model = 'global'")
    return found, left_out


class Collected(NamedTuple):
    """Arrays of one posterior; rows of its clients one after the other."""

    arrays: dict[str, np.ndarray]
    clients: np.ndarray  # (B,) names
    rows: np.ndarray  # (B,) place within the client's rows
    sites: dict[str, np.ndarray]  # (S, ...)
    log_p: np.ndarray | None  # (S,)
    log_q: np.ndarray | None


def _together(run: Run) -> bool:
    return isinstance(run.engine, Vectorised) and run.engine.fallback is None


def _collect(run: Run, q: Posterior, split: Split, draws: int, kept: Sequence[str], rows: int | None) -> Collected:
    together = _together(run)
    parts, names, places, loglik = [], [], [], np.zeros(draws)
    density = split == "train" and has_density(run.method)
    total = sum(_data(run, i, split).rows for i in q.clients)
    for i in q.clients:
        data = _data(run, i, split)
        chosen = np.arange(data.rows)
        if rows is not None and total > rows:
            share = max(round(rows * data.rows / total), 1)
            chosen = np.sort(generator(fold(q.key, "rows", i)).permutation(data.rows)[:share])
            if density:
                loglik += log_likelihood(run.method, q.theta, data, q.key, draws=draws, together=together)
        some = Data.of(data.x[chosen], data.y[chosen])
        options: dict[str, Any] = {"draws": draws, "together": together, "client": run.names[i]}
        arrays = evaluate.predict(run.method, q.theta, some, q.key, observations=True, **options)
        if not arrays:
            continue
        if len(chosen) == data.rows:
            loglik += arrays["log_likelihood"].sum(1)
        parts.append(arrays)
        names += [run.names[i]] * len(chosen)
        places.append(chosen)
    sites: dict[str, list[np.ndarray]] = {name: [] for name in kept}
    log_q, log_prior = np.empty(draws), np.empty(draws)
    for s in range(draws if kept or density else 0):
        draw = run.method.program.draw(q.theta, fold(q.key, s))
        log_q[s], log_prior[s] = float(draw.log_q), float(draw.log_prior)
        for name in kept:
            sites[name].append(draw.sites[name].cpu().numpy())
    axes = {"y": 0, "p": 1, "log_likelihood": 1, "draws": 1}
    joined = (
        {k: np.concatenate([a[k] for a in parts], axes[k]) if len(parts) > 1 else parts[0][k] for k in parts[0]}
        if parts
        else {}
    )
    return Collected(
        joined,
        np.array(names, dtype=str),
        np.concatenate(places) if places else np.empty(0, np.int64),
        {name: np.stack(v) for name, v in sites.items()},
        log_prior + loglik if density else None,
        log_q if density else None,
    )


def has_density(method: FedAvg) -> bool:
    """Whether the method predicts with draws from a guide that is a density, under proper priors."""
    plain = type(method).predict is FedAvg.predict
    return plain and not method.program.point_mass and not method.program.flat


def log_likelihood(method: FedAvg, theta: Tree, data: Data, key: Tensor, *, draws: int, together: bool) -> np.ndarray:
    """Sum over rows of log p(y | x, draw), (S,), in nats; nothing else is kept."""
    out = np.zeros(draws)
    for piece in evaluate.stream(method, theta, data, key, draws=draws, together=together):
        fn = evaluate.distribution(method.program.kind, piece.out)
        out[piece.draws] += fn.log_prob(data.y[piece.rows].to(piece.out)).sum(-1).cpu().numpy()
    return out


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees hold the same numbers by the same names."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def _data(run: Run, client: int, split: Split) -> Data:
    data = getattr(run.federation.clients[client], split)
    return Data(data.x[: data.rows].to(run.device), data.y[: data.rows].to(run.device), data.n.to(run.device))


def _kept(run: Run, sites: Sequence[str] | None) -> tuple[str, ...]:
    program = run.method.program
    for name in sites or ():
        choose(name, program.sites, "site")
    if sites is not None:
        return tuple(sites)
    return tuple(s for s, v in program.draw(program.theta0, run.key).sites.items() if v.numel() <= _SMALL)


def _check_size(run: Run, posteriors: list[Posterior], split: Split, draws: int, rows: int | None, memory: int) -> None:
    """Estimate the bytes of all draws first: a file that does not fit is refused before the work."""
    total = sum(_data(run, i, split).rows for q in posteriors for i in q.clients)
    width = run.federation.outputs if run.method.program.kind == "categorical" else 1
    each = 8 + 4 + 4 * width  # log-likelihood, observation and probabilities of one row in one draw
    need = draws * min(total, (rows or total) * len(posteriors)) * each
    if need > memory:
        fits = max(memory // (draws * each * len(posteriors)), 1)
        each_one = " of each posterior" if len(posteriors) > 1 else ""
        raise ValueError(
            f"{draws} draws of {total} rows would take {need / 2**30:.1f} GiB, and memory is {memory / 2**30:.1f} GiB: "
            f"take fewer draws, or a random subset of rows = {fits}{each_one} (LOO of a subset estimates that of all "
            "rows)"
        )


def _tree(
    run: Run, posteriors: list[Posterior], collected: list[Collected], kept: Sequence[str], split: Split
) -> xr.DataTree:
    program, own = run.method.program, bool(posteriors[0].name)
    filled = [c for c in collected if c.arrays]
    if not filled:
        raise ValueError(f"no client has {split} rows")
    axes = {"log_likelihood": 1, "draws": 1, "p": 1, "y": 0}
    arrays = {
        k: np.concatenate([c.arrays[k] for c in filled], axis) for k, axis in axes.items() if k in filled[0].arrays
    }
    lead = lambda v: np.asarray(v)[None]  # (chain, draw, ...)
    each = lambda vs: lead(np.stack(vs, 1) if own else vs[0])  # a dimension `client` after (chain, draw)
    moving, constant = split_constant({n: each([c.sites[n] for c in collected]) for n in kept})
    groups: dict[str, dict[str, Any]] = {
        "posterior": moving,
        "posterior_predictive": {"y": lead(arrays["draws"])},
        "log_likelihood": {"y": lead(arrays["log_likelihood"])},
        "observed_data": {"y": arrays["y"]},
        "constant_data": constant,
    }
    dims: dict[str, list[str]] = {"y": ["obs"]}
    if "p" in arrays:
        groups["posterior_predictive"]["p"] = lead(arrays["p"])
        dims["p"] = ["obs", "class"] if arrays["p"].ndim == 3 else ["obs"]
    if all(c.log_p is not None for c in collected):
        groups["sample_stats"] = {n: each([getattr(c, n) for c in collected]) for n in ("log_p", "log_q")}
    for name in kept:
        shape = collected[0].sites[name].shape[1:]
        dims[name] = [*(["client"] if own else []), *(f"{name}_dim_{j}" for j in range(len(shape)))]
    dims |= {n: ["client"] if own else [] for n in ("log_p", "log_q")}
    coords: dict[str, Any] = {"class": list(run.federation.classes)} if arrays.get("p", arrays["y"]).ndim == 3 else {}
    if own:
        coords["client"] = np.array([q.name for q in posteriors], dtype=str)
    labels = {
        "client": np.concatenate([c.clients for c in filled]),
        "row": np.concatenate([c.rows for c in filled]),
    }
    left = [s for s in program.sites if s not in kept]
    attrs = {
        "model": "personal" if own else "global",
        "split": split,
        "round": run.round,
        "likelihood": program.kind,
        "classes": ", ".join(run.federation.classes),
        "constant_sites": ", ".join(constant),
        "sites_left_out": ", ".join(left),
    }
    return adapter.tree(groups, dims=dims, coords=coords, rows=labels, attrs=attrs)


def prior_moments(run: Run, *, draws: int = 200) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """site -> (mean, standard deviation) of the declared prior on the site's support; None for an improper one.

    Formulas give them where a prior has any, averaged over `draws` of the latent sites that it depends on.
    The standard deviation is NaN where the prior has no finite variance, or depends on a site whose prior has none.
    """
    program = run.method.program
    if program.flat:
        return None
    exact = program.prior_posterior()
    if exact is not None:
        return {s: tuple(v.cpu().numpy() for v in pair) for s, pair in exact.items()}  # type: ignore[misc]
    keys = [fold(run.key, "prior", s) for s in range(draws)]
    each = (program.prior_moments(program.theta0, k) for k in keys)
    found = moments(pack(mean=mean, variance=variance) for mean, variance in each)
    out = {}
    for name in program.sites:
        (mean, spread), (variance, _) = found[f"mean/{name}"], found[f"variance/{name}"]
        sd = np.sqrt(variance + spread**2)
        out[name] = (mean, np.where(np.isfinite(sd), sd, np.nan))
    wild = {name for name, (_, sd) in out.items() if np.isnan(sd).any()}
    return out | {
        n: (out[n][0], np.full_like(out[n][1], np.nan))
        for n in _depend(run, wild, keys[0], fold(run.key, "prior", draws))
    }


def _depend(run: Run, sites: Collection[str], key: Tensor, other: Tensor) -> list[str]:
    """The sites whose prior depends on one of `sites`: those that move when these alone are drawn from another key."""
    if not sites:
        return []
    program = run.method.program
    here, there = (program.draw_prior(program.theta0, k).sites for k in (key, other))
    moved = program.trace_prior(program.theta0, key, {n: there[n] for n in sites}).nodes
    return [n for n in here if n not in sites and not torch.equal(moved[n]["value"], here[n])]


def moments(draws: Iterator[Tree]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation of each site over draws, one draw in memory at a time.

    Reference: Welford, "Note on a method for calculating corrected sums of squares and products", 1962.
    """
    mean: dict[str, Tensor] = {}
    square: dict[str, Tensor] = {}
    count = 0
    for count, sites in enumerate(draws, start=1):
        for name, value in sites.items():
            v = value.double()
            if count == 1:
                mean[name], square[name] = v.clone(), torch.zeros_like(v)
                continue
            gap = v - mean[name]
            mean[name] += gap / count
            square[name] += gap * (v - mean[name])
    return {n: (mean[n].cpu().numpy(), (square[n] / max(count - 1, 1)).sqrt().cpu().numpy()) for n in mean}


def predictive_moments(run: Run, theta: Tree, *, draws: int = 200) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """client -> (mean, standard deviation) over draws of what is predicted for each training row of the run.

    Predicted are probabilities, a location and scale, or a rate: (B, K).
    """
    kind, out = run.method.program.kind, {}
    for i, name in enumerate(run.names):
        data, key = _data(run, i, "train"), fold(run.key, "moments", i)
        first, second = 0.0, 0.0
        for s in range(draws if data.rows else 0):
            one = [p.out[0] for p in evaluate.stream(run.method, theta, data, fold(key, s), draws=1)]
            predicted = _natural(kind, torch.cat(one))  # (B, K)
            gap = predicted - first
            first = first + gap / (s + 1)
            second = second + gap * (predicted - first)
        if data.rows:
            out[name] = (np.asarray(first), np.sqrt(np.asarray(second) / max(draws - 1, 1)))
    return out


def _natural(kind: str, out: Tensor) -> Any:
    """Predictive parameters as probabilities, (location, scale) or rates, (B, K)."""
    if kind == "gaussian":
        return out.cpu().numpy()
    return (torch.sigmoid(out) if kind == "bernoulli" else out.exp()).cpu().numpy()
