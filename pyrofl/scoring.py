"""What one evaluation of a run finds: scores of every model, and what is kept of rows and posteriors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import evaluate
from .config import ConfigError, Evaluation
from .data import Federation
from .metrics import Bins
from .posteriors import Posteriors
from .random import fold
from .shared_rows import SharedRows
from .store import Record
from .tree import Tree

if TYPE_CHECKING:
    from .run import Run, Visitor

Scores = dict[str, dict[str, dict[str, float | None]]]  # "personal" or "global" ... -> client -> score -> value


@dataclass
class Evaluated:
    """Scores by model and client; reliability tables; and records, `rows-MODEL` (B,) and `posteriors`."""

    scores: Scores
    bins: dict[str, Bins] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)


class Tempered:
    """Predictions of the personal models that it is shown, each at the temperature of the client's validation rows."""

    def __init__(self, run: Run, *, key: Tensor, draws: int):
        self.run, self.key, self.draws = run, key, draws
        self.arrays: dict[str, evaluate.Arrays] = {}
        self.temperatures: dict[str, float] = {}

    def see(self, client: int, theta: Tree) -> None:
        run, who = self.run, self.run.federation.clients[client]
        options: dict[str, Any] = {"draws": self.draws, "together": run.together, "client": who.name}
        assert who.valid is not None  # see `check`
        valid, test = run.to_device(who.valid), run.to_device(who.test)
        key = fold(self.key, "temperature", client)
        t = evaluate.temperature(run.method, theta, valid, key, **options)
        key = fold(self.key, "personal", client)
        self.temperatures[who.name] = t
        self.arrays[who.name] = evaluate.predict(run.method, theta, test, key, temperature=t, **options)


def check(evaluation: Evaluation, federation: Federation) -> None:
    """Raise where these data cannot be scored as asked."""
    asked = [*evaluation.shared, *(["temperature"] if evaluation.temperature else [])]
    if asked and not federation.classes:
        raise ConfigError(f"evaluate.{asked[0]} is for classes, and these data are {federation.likelihood}: remove it")
    if evaluation.temperature and any(c.valid is None for c in federation.clients):
        raise ConfigError("evaluate.temperature needs validation rows: put some aside, as in data.validation = 0.2")


def evaluated(run: Run) -> Evaluated:
    """Score a run as it stands, as its `evaluation` says; each personal model is made once."""
    e, method, kind, names = run.evaluation, run.method, run.method.program.kind, run.names
    key, draws = fold(run.key, "evaluate", run.round), e.final_draws if run.done else e.draws
    posteriors = Posteriors(method.program, len(names))
    tempered = Tempered(run, key=key, draws=draws)
    shared = SharedRows(method, run.federation, e.shared, key=fold(key, "shared"), draws=draws, together=run.together)
    visitors: list[Visitor] = [posteriors, *([tempered] if e.temperature else []), *([shared] if e.shared else [])]
    drawn = run.predictions(draws=draws, visitors=visitors)
    if e.temperature:
        drawn["tempered"] = {n: tempered.arrays[n] for n in names if n in tempered.arrays}
    out = Evaluated({model: evaluate.score(kind, clients) for model, clients in drawn.items() if clients})
    for name, t in tempered.temperatures.items():
        out.scores["tempered"].setdefault(name, {})["temperature"] = t
    out.scores |= shared.scores
    out.records = {
        f"rows-{m}": Record(evaluate.by_row(kind, clients, fold(key, "rows"))) for m, clients in drawn.items()
    }
    out.records["posteriors"] = posteriors.record()
    if run.done:
        tables = {m: evaluate.reliability(kind, clients, e.bins) for m, clients in drawn.items()}
        out.bins = {m: t for m, t in tables.items() if t is not None}
    score_common(run, out.scores, draws)
    return out


def score_common(run: Run, scores: Scores, draws: int) -> None:
    """Add the score of the server's own model on test rows that all clients share, where there are both."""
    common = run.method.common(run.server)
    if common is None or run.federation.common is None:
        return
    data = run.to_device(run.federation.common)
    arrays = evaluate.predict(run.method, common, data, fold(run.key, "common", run.round), draws=draws)
    found = evaluate.score(run.method.program.kind, {evaluate.COMMON: arrays})
    scores.setdefault("global", {})[evaluate.COMMON] = found[evaluate.COMMON]
