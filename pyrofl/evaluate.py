"""Posterior predictive draws of each client's model on held-out rows, and their scores.

Test rows are read here and nowhere else, and nothing here is read by training: they choose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from . import metrics
from .data import Data
from .likelihoods import distribution
from .random import fold, generator
from .tree import Tree

if TYPE_CHECKING:
    from .methods.fedavg import FedAvg

Arrays = dict[str, Any]  # y (B,), log_likelihood (S, B), and p (S, B, K), p (S, B) or draws (S, B)
CLASSES = ("categorical", "bernoulli")  # kinds of likelihood whose outcomes are classes
COMMON = "(common)"  # the client name of test rows that all clients share


def outputs(
    method: FedAvg,
    theta: Tree,
    data: Data,
    key: Tensor,
    *,
    draws: int,
    together: bool = False,
    rows: int = 1000,
) -> Tensor | None:
    """Predictive parameters (S, B, K) of S = `draws` posterior draws, float64; None without rows.

    Rows go through in chunks of `rows`; `together` runs all draws of a chunk by `vmap`, which suits small dense
    networks.
    """
    parts = list(_chunks(method, theta, data, key, draws=draws, together=together, rows=rows))
    return torch.cat(parts, 1).double() if parts else None


def predict(
    method: FedAvg, theta: Tree, data: Data, key: Tensor, *, draws: int, together: bool = False, temperature: float = 1
) -> Arrays:
    """S = `draws` posterior predictive draws for the rows of `data`, as the arguments of `metrics.scores`.

    The log-probabilities or logits of classes are divided by `temperature`.
    """
    out = outputs(method, theta, data, key, draws=draws, together=together)  # (S, B, K)
    if out is None:
        return {}
    y, kind = data.y[: data.rows], method.program.kind
    fn = distribution(kind, out / temperature if kind in CLASSES else out)
    arrays: Arrays = {"y": y.cpu().numpy(), "log_likelihood": fn.log_prob(y.to(out)).cpu().numpy()}
    if kind in CLASSES:
        return {**arrays, "p": fn.probs.cpu().numpy()}
    rng = generator(fold(key, "observations"))
    if kind == "gaussian":
        return {**arrays, "draws": rng.normal(fn.loc.cpu().numpy(), fn.scale.cpu().numpy())}
    return {**arrays, "draws": rng.poisson(fn.rate.cpu().numpy()).astype(np.float64)}


def temperature(method: FedAvg, theta: Tree, valid: Data, key: Tensor, *, draws: int, together: bool = False) -> float:
    """The temperature of one model's classes that suits validation rows best; 1 without rows."""
    out = outputs(method, theta, valid, key, draws=draws, together=together)
    if out is None:
        return 1.0
    logits = out.cpu().numpy()
    if method.program.kind == "bernoulli":
        logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    return metrics.temperature(logits, valid.y[: valid.rows].cpu().numpy())


def _chunks(
    method: FedAvg, theta: Tree, data: Data, key: Tensor, *, draws: int, together: bool, rows: int
) -> Iterator[Tensor]:
    different = draws if method.stochastic else 1  # a point estimate predicts the same each time
    keys = torch.stack([fold(key, s) for s in range(different)])
    with torch.no_grad():
        for start in range(0, data.rows, rows):
            x = data.x[start : min(start + rows, data.rows)]
            one = lambda k, x=x: method.predict(theta, x, k)
            out = vmap(one)(keys) if together else torch.stack([one(k) for k in keys])
            yield out.expand(draws, *out.shape[1:])


def score(kind: str, clients: Mapping[str, Arrays]) -> dict[str, dict[str, float | None]]:
    """Client -> score -> value, with the scores of all rows together under "(pooled)"."""
    out = {name: metrics.scores(kind, **arrays) for name, arrays in clients.items() if arrays}
    if out:
        filled = {n: a for n, a in clients.items() if a}
        out["(pooled)"] = {k: v.value for k, v in metrics.pooled(kind, filled).items()}
    return out


def reliability(kind: str, clients: Mapping[str, Arrays], bins: int) -> metrics.Bins | None:
    """The reliability table over the rows of all clients, for classifications."""
    if kind not in CLASSES:
        return None
    filled = [a for a in clients.values() if a]
    if not filled:
        return None
    p = np.concatenate(
        [metrics.predictive(metrics.two_classes(a["p"]) if kind == "bernoulli" else a["p"]) for a in filled]
    )
    return metrics.reliability(p, np.concatenate([a["y"] for a in filled]), bins=bins)


def by_row(kind: str, clients: Mapping[str, Arrays], key: Tensor) -> dict[str, np.ndarray]:
    """`metrics.by_row` of all clients' rows, one after the other, with `client`, the client's place in `clients`."""
    parts = [
        {**kept, "client": np.full(len(kept["y"]), place)}
        for place, (name, arrays) in enumerate(clients.items())
        if arrays and (kept := metrics.by_row(kind, rng=generator(fold(key, name)), **arrays))
    ]
    return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]} if parts else {}
