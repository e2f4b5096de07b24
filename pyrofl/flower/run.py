"""A run whose clients are Flower nodes: rounds and files are the server's, rows and own states are theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ..config import ConfigError, Patience
from ..data import Data, Federation
from ..engines import Failure
from ..messages import Messages
from ..methods.fedavg import FedAvg
from ..run import RECEIPT, Round, Run
from ..scoring import score_common
from ..tree import Tree, without
from .exchange import Exchange
from .records import record
from .replies import receipt_of

_ROW_MEANS = ("accuracy", "nll", "brier")  # scores that can be pooled from the clients' scores and rows alone
_POOLED = "(pooled)"


class FlowerRun(Run):
    """`Run` on a grid of Flower nodes, with the same keys, gate, aggregation, files and resume.

    What the server keeps as a client's own state is the receipt of the state that the site keeps. Scores are computed
    at the sites; of those over all rows together only means over rows are known here.
    """

    engine: Exchange

    def __init__(
        self,
        method: FedAvg,
        federation: Federation,
        *,
        grid: Grid,
        config: str,
        patience: Patience,
        messages: Messages | None = None,
        **rest: Any,
    ):
        if method.pools:
            raise ValueError(
                f"{type(method).__name__} trains on all rows in one place, which clients that keep theirs cannot give "
                "it: use engine = 'sequential'"
            )
        evaluation = rest.get("evaluation")
        if evaluation is not None and (evaluation.shared or evaluation.temperature):
            raise ConfigError("evaluate.shared and evaluate.temperature need the clients' rows: use another engine")
        names = [c.name for c in federation.clients]
        messages = messages or Messages.plain(method)
        engine = Exchange(grid, config, names=names, messages=messages, patience=patience)
        super().__init__(method, federation, engine=engine, messages=messages, **rest)
        blank = federation.clients[0].train
        x, y = blank.x.new_zeros(1, *federation.shape), blank.y.new_zeros(1)
        self._nobody = Data(x, y, torch.tensor(0))
        self.train = [self._nobody for _ in names]
        self._met = False
        self._said: set[str] = set()

    # ------------------------------------------------------------------ rounds

    def step(self) -> Round:
        self._meet()
        return super().step()

    def _meet(self) -> None:
        """Take in the sites that have come; before the first round of this process wait for them."""
        end = time.monotonic() + self.engine.patience.wait
        enough = self.engine.patience.sites or len(self.names)
        while True:
            for node, why in self.engine.meet().items():
                self._say(f"node {node} is not taken in: {why}")
            if self._met or len(self.engine.members) >= enough or time.monotonic() >= end:
                break
            time.sleep(0.2)
        self._met = True
        rows = {i: m.rows for i, m in self.engine.members.items()}
        self.train = [self._nobody._replace(n=torch.tensor(rows.get(i, 0))) for i in range(len(self.names))]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.observer.note(text)

    def _absent(self, client: int) -> str | None:
        return super()._absent(client) if client in self.engine.members else "it is not connected"

    def own(self, client: int, down: Tree) -> Tree:
        return self._kept(client) or {}

    def _kept(self, client: int) -> Tree | None:
        kept = self.states.get(client)
        if kept and kept.keys() != {RECEIPT}:
            raise ConfigError(
                "this run's clients have states that another engine keeps in the run's directory: go on with that one"
            )
        return kept

    def _aggregate(self, now: Round, replies: Any, key: torch.Tensor) -> Tree:
        least = self.engine.patience.least
        if 0 < len(replies) < least:
            self.observer.note(
                f"round {now.number} was skipped: {len(replies)} sites replied, flower.least asks for {least}"
            )
            for name in now.clients:
                now.left_out[name] = "too few others replied"
            now.clients, now.skipped = [], True
            replies.clear()
            return self.server
        return super()._aggregate(now, replies, key)

    # ------------------------------------------------------------------ evaluation

    def personal(self, client: int) -> Tree:
        raise ValueError(
            f"what client {self.client_name(client)} predicts with stays at its site; its scores are in the rounds"
        )

    def personal_models(self) -> Iterator[tuple[int, Tree]]:
        raise ValueError("what the clients predict with stays at their sites; their scores are in the rounds")

    def predictions(self, *, draws: int, visitors: Sequence[Any] = ()) -> dict[str, dict[str, Any]]:
        raise ValueError("test rows stay at the sites, and predictions with them; their scores are in the rounds")

    def _evaluate(self, now: Round) -> None:
        draws = self.evaluation.final_draws if self.done else self.evaluation.draws
        contents = {i: self._request(i, draws) for i, m in sorted(self.engine.members.items()) if m.tests}
        found: dict[int, dict[str, float | None]] = {}
        self.observer.progress("evaluating", 0, len(contents))
        for done, (i, scores) in enumerate(self.engine.scores(contents), 1):
            self.observer.progress("evaluating", done, len(contents))
            if isinstance(scores, Failure):
                self.observer.note(f"client {self.names[i]} could not be evaluated: {scores.reason}")
            else:
                found[i] = scores
        for model in ("personal", "global"):
            of_model = {
                i: {k.removeprefix(f"{model}/"): v for k, v in found[i].items() if k.startswith(f"{model}/")}
                for i in sorted(found)
            }
            of_model = {i: scores for i, scores in of_model.items() if scores}
            if of_model:
                now.scores[model] = {self.names[i]: scores for i, scores in of_model.items()}
                if self.messages.privacy is None:  # under privacy the numbers of rows are not known
                    now.scores[model][_POOLED] = self._pooled(of_model)
        score_common(self, now.scores, draws)

    def _request(self, client: int, draws: int) -> RecordDict:
        down, common = self.method.down(self.server, client), self.method.common(self.server)
        asked: dict[str, Any] = {"root": int(self.key), "round": self.round, "draws": draws}
        asked |= receipt_of(self.own(client, down))
        content = RecordDict({"down": record(down), "asked": ConfigRecord(asked)})
        if common is not None:
            sent = [k for k, v in common.items() if down.get(k) is v]
            content["asked"]["of_down"] = sent
            if rest := without(common, sent):
                content["common"] = record(rest)
        return content

    def _pooled(self, clients: dict[int, dict[str, float | None]]) -> dict[str, float | None]:
        """Row means over all clients' test rows, from the clients' own."""
        rows = {i: self.engine.members[i].tests for i in clients}
        out: dict[str, float | None] = {}
        for score in _ROW_MEANS:
            values = {i: v for i, scores in clients.items() if (v := scores.get(score)) is not None}
            if len(values) == len(clients):
                out[score] = sum(rows[i] * v for i, v in values.items()) / sum(rows.values())
        return out
