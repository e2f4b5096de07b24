"""Several optimizers, one of which is to be chosen: each run on the same batches, scored, and the chosen one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from .data import Data
from .fit import NonFinite, over
from .optim import Optimizer, with_rate
from .program import Program
from .random import fold, is_mapped
from .tree import Tree, stack, unstack, where

Fit = Callable[[Optimizer, Tree], tuple[Tree, Tree]]  # (model, log) of training with an optimizer, from a model
Score = Literal["nll", "elbo"]


class Candidates:
    """Optimizers in an order; those that differ only in their rate are one family and run together."""

    def __init__(self, optimizers: tuple[Optimizer, ...]):
        if not optimizers:
            raise ValueError("method.optimizers is empty: name at least one candidate, such as 'adam:1e-3'")
        self.optimizers = optimizers
        self.rates = [float(o.lr) for o in optimizers]
        self.families: dict[Optimizer, list[int]] = {}
        for i, o in enumerate(optimizers):
            self.families.setdefault(with_rate(o, 1.0), []).append(i)

    def trials(self, fit: Fit, starts: Tree, key: Tensor) -> Tree:
        """The models of all candidates, each from its own start, leaves (candidates, ...) as those of `starts`.

        One that diverges is all NaN.
        """
        rows: dict[int, Tree] = {}
        rates = torch.tensor(self.rates, dtype=torch.float64, device=key.device)
        for kind, members in self.families.items():

            def trial(i: Tensor, kind: Optimizer = kind) -> Tree:
                start = pick(starts, i.long())
                try:
                    return fit(with_rate(kind, rates[i.long()]), start)[0]
                except NonFinite:
                    return {k: torch.full_like(v, torch.nan) for k, v in start.items()}

            out = over(trial, [float(i) for i in members], key)
            rows |= {i: unstack(out, j) for j, i in enumerate(members)}
        return stack([rows[i] for i in range(len(rows))])

    def run(self, fit: Fit, start: Tree, best: Tensor) -> tuple[Tree, Tree]:
        """What `fit` gives with candidate `best` (), and its rate in the log.

        Where families differ inside `vmap`, each of them runs and one is kept.
        """
        rate = torch.tensor(self.rates, dtype=torch.float64, device=best.device)[best]
        out: tuple[Tree, Tree] | None = None
        for kind, members in self.families.items():
            chosen = (best == torch.tensor(members, device=best.device)).any()
            if not is_mapped(best) and not chosen:
                continue
            new = fit(with_rate(kind, rate), start)
            out = new if out is None else (where(chosen, new[0], out[0]), where(chosen, new[1], out[1]))
        assert out is not None
        return out[0], {**out[1], "rate": rate}


def pick(models: Tree, index: Tensor) -> Tree:
    """Model `index` () of several, leaves (candidates, ...) -> (...)."""
    return {k: v.index_select(0, index.reshape(1)).squeeze(0) for k, v in models.items()}


def losses(
    program: Program, models: Tree, held: Data, n: Tensor, key: Tensor, *, draws: int, score: Score = "nll"
) -> Tensor:
    """Loss of each of several models (leaves (candidates, ...)) on held-out rows, (candidates,), in nats a row.

    The mean over `draws` draws, the same for all: the negative log-likelihood, or with "elbo" also KL / n. A model that
    is not finite has an infinite loss.
    """
    batch = held.take(torch.arange(len(held.x), device=key.device), torch.ones_like(held.y, dtype=torch.bool))
    batch = batch._replace(n=n.to(batch.n.dtype))

    def loss(theta: Tree) -> Tensor:
        parts = [program.parts(theta, batch, fold(key, s)) for s in range(draws)]
        return torch.stack([whole if score == "elbo" else part["nll"] for whole, part in parts]).mean()

    if is_mapped(key):
        found = vmap(loss)(models)
    else:
        with torch.no_grad():
            found = torch.stack([loss(unstack(models, i)) for i in range(len(next(iter(models.values()))))])
    return torch.where(torch.isnan(found), torch.inf, found)
