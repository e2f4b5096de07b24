"""Posterior predictive draws of each client's model on held-out rows, and their scores.

Test rows are read here and nowhere else, and nothing here is read by training: they choose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Piece(NamedTuple):
    """Predictive parameters of some draws and rows; `out` is float64, whatever the run's precision."""

    draws: slice
    rows: slice
    out: Tensor  # (s, b, K)


def predict(
    method: FedAvg,
    theta: Tree,
    data: Data,
    key: Tensor,
    *,
    draws: int,
    together: bool = False,
    rows: int = 1000,
    observations: bool = False,
    temperature: float = 1.0,
    client: str = "",
) -> Arrays:
    """S = `draws` posterior predictive draws for the rows of `data`, as the arguments of `metrics.scores`.

    Draws and rows are streamed (see `stream`): what is kept is one number for each draw, row and class, probabilities
    in the run's own precision. With `observations` classifications have `draws` (S, B) of the class code as well. The
    log-probabilities or logits of classes are divided by `temperature`. `client` is named where the model diverged.
    """
    if not data.rows:
        return {}
    y, kind = data.y[: data.rows], method.program.kind
    classes, shape = kind in CLASSES, (draws, data.rows)
    arrays: Arrays = {"y": y.cpu().numpy(), "log_likelihood": np.empty(shape)}
    if observations or not classes:
        arrays["draws"] = np.empty(shape, np.int32 if classes else np.float64)
    for piece in stream(method, theta, data, key, draws=draws, together=together, rows=rows):
        _refuse_diverged(piece, client)
        out = piece.out / temperature if classes else piece.out
        at, fn = (piece.draws, piece.rows), distribution(kind, out)
        arrays["log_likelihood"][at] = fn.log_prob(y[piece.rows].to(out)).cpu().numpy()
        if classes:
            p = fn.probs.cpu().numpy()
            if "p" not in arrays:
                real = data.x.dtype if data.x.is_floating_point() else torch.get_default_dtype()
                arrays["p"] = np.empty((*shape, *p.shape[2:]), str(real).removeprefix("torch."))
            arrays["p"][at] = p
        if "draws" in arrays:
            for s in range(piece.draws.start, piece.draws.stop):
                place = s - piece.draws.start
                one = fn if len(out) == 1 else distribution(kind, out[place : place + 1])
                rng = generator(fold(key, "observations", s, piece.rows.start))
                arrays["draws"][s, piece.rows] = _observe(kind, one, rng)
    return arrays


def _refuse_diverged(piece: Piece, client: str) -> None:
    """Raise where predictive parameters are not finite, before a density of them is taken."""
    if not piece.out.isfinite().all():
        whose = f"client {client}: " if client else ""
        raise ValueError(
            f"{whose}what the model predicts is not finite: the model diverged: lower method.optimizer's rate"
        )


def _observe(kind: str, fn: Any, rng: np.random.Generator) -> np.ndarray:
    """One observation (b,) of each row from the predictive distribution of one draw."""
    if kind == "gaussian":
        return rng.normal(fn.loc[0].cpu().numpy(), fn.scale[0].cpu().numpy())
    if kind == "poisson":
        return rng.poisson(fn.rate[0].cpu().numpy())
    p = fn.probs[0].cpu().numpy()  # (b, K), or (b,) of class 1
    if kind == "bernoulli":
        return rng.random(len(p)) < p
    below = np.cumsum(p, -1)[:, :-1]  # the last class takes what rounding leaves
    return (rng.random((len(p), 1)) > below).sum(-1)


def temperature(
    method: FedAvg, theta: Tree, valid: Data, key: Tensor, *, draws: int, together: bool = False, client: str = ""
) -> float:
    """The temperature of one model's classes that suits validation rows best; 1 without rows."""
    if not valid.rows:
        return 1.0
    pieces = list(stream(method, theta, valid, key, draws=draws, together=together))
    logits = torch.empty(draws, valid.rows, *pieces[0].out.shape[2:], dtype=torch.float64)
    for piece in pieces:
        _refuse_diverged(piece, client)
        logits[piece.draws, piece.rows] = piece.out.cpu()
    if method.program.kind == "bernoulli":
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    return metrics.temperature(logits.numpy(), valid.y[: valid.rows].cpu().numpy())


_WEIGHTS_AT_ONCE = 1 << 22  # of all draws that run together


def stream(
    method: FedAvg, theta: Tree, data: Data, key: Tensor, *, draws: int, together: bool = False, rows: int = 1000
) -> Iterator[Piece]:
    """Draw s with key `fold(key, s)`, for chunks of `rows` rows: one set of weights is held at a time.

    `together` runs several draws by `vmap`, as many as have four million weights in all; this suits small dense
    networks. A point estimate predicts the same each time: it runs once, and its piece holds one draw for all.
    """
    size = sum(v.numel() for v in theta.values())
    block = max(_WEIGHTS_AT_ONCE // max(size, 1), 1) if together else 1
    with torch.no_grad():
        for start in range(0, data.rows, rows):
            part = slice(start, min(start + rows, data.rows))
            one = lambda k, x=data.x[part]: method.predict(theta, x, k)
            if not method.stochastic:
                yield Piece(slice(0, draws), part, one(fold(key, 0)).unsqueeze(0).double())
                continue
            for first in range(0, draws, block):
                some = slice(first, min(first + block, draws))
                keys = torch.stack([fold(key, s) for s in range(some.start, some.stop)])
                out = vmap(one)(keys) if together else one(keys[0]).unsqueeze(0)
                yield Piece(some, part, out.double())


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
