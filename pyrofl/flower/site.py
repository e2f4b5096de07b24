"""What a client does when a message comes: the method's hooks on its own rows, with its own state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import evaluate
from ..data import Data
from ..method import Reply
from ..methods.fedavg import FedAvg
from ..random import fold
from ..run import evaluation_key, personal_key
from ..tree import Tree
from .states import States

Scores = dict[str, dict[str, float | None]]  # "personal" or "global" -> score -> value


@dataclass(frozen=True)
class Site:
    """One client, on its own machine: rows and states stay here."""

    method: FedAvg
    client: int  # its id in the federation
    name: str
    train: Data
    test: Data
    states: States

    def update(self, down: Tree, key: Tensor, after: int | None) -> Reply:
        """The client's local update, from the own state with the receipt `after` (None: its first)."""
        reply = self.method.local(down, self.own(down, after), self.train, key)
        if after is not None:
            self.states.keep(after)
        if reply.own:
            self.states.put(int(key), reply.own)
        return reply

    def own(self, down: Tree, after: int | None) -> Tree:
        if after is None:
            return self.method.join(down)
        kept = self.states.get(after)
        if kept is None:
            raise LookupError(
                f"site {self.name} does not have the own state that the server last acknowledged: put its state folder "
                "back, or start a new run"
            )
        return kept

    def scores(
        self, down: Tree, common: Tree | None, root: Tensor, round: int, draws: int, after: int | None
    ) -> Scores:
        """Scores of the client's own and of the server's model on the client's test rows."""
        theta = self.method.personal(down, self.own(down, after), self.train, personal_key(root, round, self.client))
        models = {"personal": theta, **({} if common is None else {"global": common})}
        key, kind, out = evaluation_key(root, round), self.method.program.kind, {}
        for model, theta in models.items():
            arrays = evaluate.predict(self.method, theta, self.test, fold(key, model, self.client), draws=draws)
            if arrays:
                out[model] = evaluate.score(kind, {self.name: arrays})[self.name]
        return out


def as_key(value: int) -> Tensor:
    """A key that has travelled as an integer."""
    return torch.tensor(value, dtype=torch.int64)
