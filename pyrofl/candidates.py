"""Several optimizers, one of which is to be chosen: each tried on the same batches, and the chosen one run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .fit import NonFinite, over
from .optim import Optimizer, with_rate
from .random import is_mapped
from .tree import Tree, stack, where

Fit = Callable[[Optimizer], tuple[Tree, Tree]]  # (model, log) of training with an optimizer


class Candidates:
    """Optimizers in an order; those that differ only in their rate are one family and run together."""

    def __init__(self, optimizers: tuple[Optimizer, ...]):
        self.optimizers = optimizers
        self.rates = [float(o.lr) for o in optimizers]
        self.families: dict[Optimizer, list[int]] = {}
        for i, o in enumerate(optimizers):
            self.families.setdefault(with_rate(o, 1.0), []).append(i)

    def trials(self, fit: Fit, like: Tree, key: Tensor) -> Tree:
        """The models of all candidates, leaves (candidates, ...) as those of `like`; one that diverges is all NaN."""
        rows: dict[int, Tree] = {}
        for kind, members in self.families.items():

            def trial(lr: Tensor, kind: Optimizer = kind) -> Tree:
                try:
                    return fit(with_rate(kind, lr))[0]
                except NonFinite:
                    return {k: torch.full_like(v, torch.nan) for k, v in like.items()}

            out = over(trial, [self.rates[i] for i in members], key)
            rows |= {i: {k: v[j] for k, v in out.items()} for j, i in enumerate(members)}
        return stack([rows[i] for i in range(len(rows))])

    def run(self, fit: Fit, best: Tensor) -> tuple[Tree, Tree]:
        """What `fit` gives with candidate `best` (), and its rate in the log.

        Where families differ inside `vmap`, each of them runs and one is kept.
        """
        rate = torch.tensor(self.rates, dtype=torch.float64, device=best.device)[best]
        out: tuple[Tree, Tree] | None = None
        for kind, members in self.families.items():
            chosen = (best == torch.tensor(members, device=best.device)).any()
            if not is_mapped(best) and not chosen:
                continue
            new = fit(with_rate(kind, rate))
            out = new if out is None else (where(chosen, new[0], out[0]), where(chosen, new[1], out[1]))
        assert out is not None
        return out[0], {**out[1], "rate": rate}
