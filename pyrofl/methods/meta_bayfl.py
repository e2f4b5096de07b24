"""Meta-BayFL: each client chooses its optimizer by trial on its own held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from ..candidates import Candidates, Fit, Score, losses, pick
from ..data import Data
from ..limits import EPOCHS, at_least, inside, positive
from ..method import Reply
from ..optim import Adam, Optimizer
from ..random import fold
from ..tree import Tree, only, repeat
from .bayfl import BayFL
from .fixed import OwnTuning


@dataclass(frozen=True)
class MetaBayFL(OwnTuning, BayFL):
    """Candidate optimizers run trial steps from the global posterior; the lowest held-out loss trains the client.

    f_i = loss on d_n of w_g after `trial_epochs` epochs of candidate i on D_n minus d_n; eta_best = argmin f_i; then T
    local epochs with eta_best. The server averages without weights. d_n is the last `holdout` of the client's own
    training rows (their order is random), never test data.

    Our reading where the paper is open: candidates train on D_n minus d_n and are scored on d_n, by the negative
    log-likelihood over `score_draws` common draws (`score = "elbo"` adds KL / n); once a round (`every = "epoch"`:
    before every local epoch); from w_g again after the choice (`restart = false` goes on from the winner's trial); on
    D_n minus d_n (`train_on = "all"`: on D_n); a client predicts with its model after its local steps (`finetune`).

    Reference: Rahman, Nguyen, 2026, algorithm 1.
    """

    optimizers: tuple[Optimizer, ...] = (Adam(1e-2), Adam(1e-3), Adam(1e-4))
    holdout: float = 0.2
    trial_epochs: float = 1.0
    score: Score = "nll"
    score_draws: int = 4
    every: Literal["round", "epoch"] = "round"
    restart: bool = True
    train_on: Literal["training", "all"] = "training"
    weighting: Literal["rows", "uniform"] = "uniform"
    finetune: bool = True
    optimizer: Optimizer = field(default=Adam(1e-2), init=False, repr=False)  # the candidates take its place
    schedule: Literal["a"] = field(default="a", init=False, repr=False)
    rounds: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        Candidates(self.optimizers)
        inside("method", self, 0, 1, "holdout")
        positive("method", self, "trial_epochs", most=EPOCHS)
        at_least("method", self, 1, "score_draws")

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        train, held = data.split(self.holdout)
        rows = data if self.train_on == "all" else train
        w = only(down, self.program.theta0)
        info, candidates = Tree(), Candidates(self.optimizers)

        def training(rows: Data, key: Tensor, epochs: float) -> Fit:
            return lambda o, theta: self.fit(self.program.parts, theta, rows, key, optimizer=o, epochs=epochs)

        stages = [self.epochs] if self.every == "round" else self._stages()
        for t, epochs in enumerate(stages):
            k = fold(key, t) if t else key
            starts = repeat(w, len(self.optimizers))
            trials = candidates.trials(training(train, fold(k, "try"), self.trial_epochs), starts, k)
            how: dict[str, Any] = {"draws": self.score_draws, "score": self.score}
            f = losses(self.program, trials, held, data.n, fold(k, "score"), **how)  # (candidates,)
            best = f.argmin()
            if not self.restart:
                w = pick(trials, best)
            w, info = candidates.run(training(rows, k, epochs), w, best)
        info |= {f"trial{i}": f[i] for i in range(len(self.optimizers))}
        return Reply(self.program.refresh(w, data), own, {**info, "choice": best})

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return self.local(down, own, data, key).up if self.finetune else {**down, **own}

    def _stages(self) -> list[float]:
        """One stage an epoch, the last one shorter where `epochs` is not whole."""
        whole = int(self.epochs)
        return [1.0] * whole + ([self.epochs - whole] if self.epochs > whole else [])
