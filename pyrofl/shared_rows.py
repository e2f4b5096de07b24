"""Every client's own model on test rows that all clients share, one client at a time.

`balanced`: each class weighs the same, which shows what a model forgot of classes that its client lacks. `matched`:
rows weigh p_k(y) / p(y), so that the labels are mixed as in client k's training rows: the client's own task, on
more rows than it has itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from . import evaluate, metrics
from .data import Client, Data, Federation
from .methods.fedavg import FedAvg
from .random import fold
from .tree import Tree

Scores = dict[str, dict[str, float | None]]


def shared_rows(federation: Federation) -> Data:
    """The data set's own test rows, or else all clients' test rows together, before any client's transform."""
    if federation.common is not None:
        return federation.common
    tests = [c.test if c.transform is None else c.transform.undo(c.test) for c in federation.clients]
    return Data.of(*(torch.cat([getattr(t, part)[: t.rows] for t in tests]) for part in ("x", "y")))


class SharedRows:
    """Scores of the personal models that it is shown; nothing else is kept of a client.

    Each client's model sees the rows through the client's own transform: scaled or turned as its own rows are.

    Reference: Chang, Auddy, Paul, "balanced" and "client-matched" evaluation.
    """

    def __init__(
        self, method: FedAvg, federation: Federation, wanted: Sequence[str], *, key: Tensor, draws: int, together: bool
    ):
        self.method, self.clients, self.key, self.draws, self.together = (
            method,
            federation.clients,
            key,
            draws,
            together,
        )
        self.rows = Data(*(v.to(key.device) for v in shared_rows(federation)))
        self.classes = len(federation.classes)
        self.scores: dict[str, Scores] = {name: {} for name in wanted}

    def see(self, client: int, theta: Tree) -> None:
        """Score a client's own model."""
        who = self.clients[client]
        rows = self.rows if who.transform is None else who.transform.apply(self.rows)
        arrays = evaluate.predict(
            self.method,
            theta,
            rows,
            fold(self.key, client),
            draws=self.draws,
            together=self.together,
            client=who.name,
        )
        if not arrays:
            return
        for name, clients in self.scores.items():
            weights = metrics.balanced_weights(arrays["y"]) if name == "balanced" else self._matched(who, arrays["y"])
            clients[who.name] = metrics.scores(self.method.program.kind, weights=weights, **arrays)

    def _matched(self, client: Client, y: np.ndarray) -> np.ndarray:
        """Weights of the shared rows for a client; all 0, which leaves its scores undefined, if they cannot match."""
        own = np.bincount(client.train.y[: client.train.rows].long().cpu().numpy(), minlength=self.classes)
        test = np.bincount(y.astype(np.int64), minlength=self.classes)
        if not own.any() or ((own > 0) & (test == 0)).any():
            return np.zeros(len(y))
        return metrics.matched_weights(y, own)
