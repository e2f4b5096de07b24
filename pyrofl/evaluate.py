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
COMMON = "(common)"  # the client name of test rows that all clients share


def predict(
    method: FedAvg,
    theta: Tree,
    data: Data,
    key: Tensor,
    *,
    draws: int,
    together: bool = False,
    rows: int = 1000,
) -> Arrays:
    """S = `draws` posterior predictive draws for the rows of `data`, as the arguments of `metrics.scores`.

    Rows go through in chunks of `rows`; `together` runs all draws of a chunk by `vmap`, which suits small dense
    networks.
    """
    parts = list(_chunks(method, theta, data, key, draws=draws, together=together, rows=rows))
    if not parts:
        return {}
    out = torch.cat(parts, 1).double()  # (S, B, K)
    y, kind = data.y[: data.rows], method.program.kind
    fn = distribution(kind, out)
    arrays: Arrays = {"y": y.cpu().numpy(), "log_likelihood": fn.log_prob(y.to(out)).cpu().numpy()}
    if kind in ("categorical", "bernoulli"):
        return {**arrays, "p": fn.probs.cpu().numpy()}
    rng = generator(fold(key, "observations"))
    if kind == "gaussian":
        return {**arrays, "draws": rng.normal(fn.loc.cpu().numpy(), fn.scale.cpu().numpy())}
    return {**arrays, "draws": rng.poisson(fn.rate.cpu().numpy()).astype(np.float64)}


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
    if kind not in ("categorical", "bernoulli"):
        return None
    filled = [a for a in clients.values() if a]
    if not filled:
        return None
    p = np.concatenate(
        [metrics.predictive(metrics.two_classes(a["p"]) if kind == "bernoulli" else a["p"]) for a in filled]
    )
    return metrics.reliability(p, np.concatenate([a["y"] for a in filled]), bins=bins)
