"""Meta-BayFL with candidates that are compared after averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..candidates import Candidates, Fit, losses, pick
from ..data import Data
from ..distill import Distillation
from ..limits import at_least, inside
from ..method import Cohort, Reply
from ..optim import Adam, Optimizer
from ..random import fold
from ..tree import Tree, only, pack, part, repeat, stack
from .bayfl import BayFL
from .fixed import OwnTuning

CHOICE = "report/choice"  # number of the candidate whose average is the global model
_WORST = 1e6  # nats a row: what a client says of a model that is not finite


@dataclass(frozen=True)
class MetaBayFLAveraged(OwnTuning, BayFL):
    """One global posterior for each candidate optimizer; now and then all go on from the one with the best clients.

    Each candidate i has a line: clients train w_i for T local epochs with it, and w_i <- average over clients. The
    server's choice is the line whose clients' models, after their local steps, have the lowest mean loss on held-out
    rows d_n. Every `exchange` rounds all lines go on from the chosen average, so that rates can change on the way.

    Meta-BayFL's trials judge a rate by one client's epoch. That favours a rate that is fast at first and ends in a poor
    average: what is compared here went through `exchange` rounds of averaging. It trains J candidates for T epochs,
    where Meta-BayFL tries J for `trial_epochs` and trains one for T, and sends J posteriors in place of one. A client
    predicts with the chosen line's model after local steps on all its rows, held-out ones too (`finetune`): by then
    they have made their choice.

    Reference: ours, after Rahman, Nguyen, 2026, algorithm 1; Jaderberg and others, "Population Based Training", 2017.
    """

    optimizers: tuple[Optimizer, ...] = (Adam(1e-2), Adam(1e-3), Adam(1e-4))
    holdout: float = 0.2
    score_draws: int = 4
    exchange: int = 4
    weighting: Literal["rows", "uniform"] = "uniform"
    finetune: bool = True
    optimizer: Optimizer = field(default=Adam(1e-2), init=False, repr=False)  # the candidates take its place
    schedule: Literal["a"] = field(default="a", init=False, repr=False)
    rounds: int = field(default=1, init=False, repr=False)
    distillation: Distillation | None = field(default=None, init=False, repr=False)
    teacher_draws: int = field(default=10, init=False, repr=False)

    travels: ClassVar[str] = "a posterior for each candidate, down and up; their held-out losses up"

    def __post_init__(self) -> None:
        super().__post_init__()
        Candidates(self.optimizers)
        inside("method", self, 0, 1, "holdout")
        at_least("method", self, 1, "score_draws", "exchange")

    def init(self, key: Tensor) -> Tree:
        w = super().init(key)
        none = torch.zeros((), dtype=torch.int64, device=key.device)
        lines = pack(lines=repeat(w, len(self.optimizers)))
        return {**w, **lines, "best": none, CHOICE: none.clone()}

    def down(self, server: Tree, client: int) -> Tree:
        return {**pack(lines=part(server, "lines")), "best": server["best"]}

    def message(self, down: Tree) -> Tree:
        like = next(iter(part(down, "lines").values()))
        return {**pack(lines=part(down, "lines")), "losses": like.new_zeros(len(self.optimizers))}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        train, held = data.split(self.holdout)
        starts = part(down, "lines")  # (candidates, ...)
        ends = Candidates(self.optimizers).trials(self._training(train, key), starts, key)
        f = losses(self.program, ends, held, data.n, fold(key, "score"), draws=self.score_draws)
        lines = {k: torch.where(torch.isfinite(v), v, starts[k]) for k, v in ends.items()}
        said = f.nan_to_num(nan=_WORST, posinf=_WORST, neginf=_WORST).to(next(iter(starts.values())).dtype)
        info = {f"loss{i}": said[i] for i in range(len(self.optimizers))}
        return Reply({**pack(lines=lines), "losses": said}, own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        lines, shares = part(ups, "lines"), self.shares(cohort)  # (clients, candidates, ...)
        means = [self.average({k: v[:, i] for k, v in lines.items()}, shares) for i in range(len(self.optimizers))]
        best = (ups["losses"].double() * shares[:, None]).sum(0).argmin()
        if cohort.round % self.exchange == 0:
            means = [means[int(best)]] * len(means)
        new = {**means[int(best)], **pack(lines=stack(means))}
        return {**server, **new, "best": best, CHOICE: best.clone()}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        w = pick(part(down, "lines"), down["best"])
        if not self.finetune:
            return w
        y, _ = Candidates(self.optimizers).run(self._training(data, key), w, down["best"])
        return self.program.refresh(y, data)

    def _training(self, rows: Data, key: Tensor) -> Fit:
        return lambda o, theta: self.fit(self.program.parts, only(theta, self.program.theta0), rows, key, optimizer=o)
