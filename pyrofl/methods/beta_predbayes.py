"""Beta-Predictive Bayes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..committee import combined, fitted, nll_and_accuracy
from ..data import Data
from ..distill import Distillation, distill, ensemble, needs_unlabelled
from ..langevin import langevin
from ..limits import EPOCHS, at_least, positive
from ..method import Cohort, Reply
from ..optim import SGD, Adam, Optimizer
from ..random import fold
from ..tree import Tree, stack, unstack
from .fedavg import FedAvg
from .fixed import Unpooled, Untuned

REPORTS = ("beta", "ensemble_nll", "ensemble_accuracy", "student_nll", "student_accuracy")


@dataclass(frozen=True)
class BetaPredBayes(Untuned, Unpooled, FedAvg):
    """The clients' predictive posteriors p_k are combined between mixture and product, and distilled into one model.

    log p = beta sum_k log p_k + (1 - beta) log sum_k pi_k p_k - log Z, with p_k the mean over client k's posterior
    samples, pi_k by `weighting`, and beta in [0, 1] minimising the negative log-likelihood of the server's labelled
    rows (convex in beta). A product would count a shared prior K times; a uniform prior predictive drops out.

    Client: descent for `epochs`, then `samples` draws by stochastic gradient HMC at a constant rate (see `langevin`),
    `between` epochs apart, each from momentum 0; the authors' rate goes in cosine cycles instead. All samples travel.
    Server: KL(p || student) on unlabelled rows, from the first client's last sample, as in the authors' code. One round
    is the method; in a further one the clients start from the student. Logged on the labelled rows: the undistilled
    ensemble's and the student's NLL (nats a row) and accuracy, beta being fitted on the same rows.

    Reference: Hasan, Zhang, Guo, Chen, Poupart, 2024, algorithm 1.
    """

    optimizer: Optimizer = field(default=SGD(0.01, momentum=0.9))
    samples: int = 6
    between: float = 1.0
    temperature: float = 1.0
    distillation: Distillation = field(default=Distillation(Adam(1e-4), epochs=100.0, temperature=1.0, average_every=0))
    unlabelled: Tensor | None = field(default=None, repr=False, compare=False)  # (U, ...), taken from the run
    labelled: Data | None = field(default=None, repr=False, compare=False)  # taken from the run

    prior: ClassVar[str] = "gaussian"
    travels: ClassVar[str] = "posterior samples go up, the distilled model comes down"
    stays: ClassVar[str] = "nothing"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "draws samples of the weights themselves"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method", self, 1, "samples")
        positive("method", self, "between", most=EPOCHS)
        positive("method", self, "temperature")
        langevin(self.program.parts, self.optimizer, self.program.trainable)  # refuses what cannot sample
        needs_unlabelled(self.unlabelled, self.program, "beta_predbayes")
        if self.labelled is None:
            raise ValueError(
                "beta_predbayes fits beta on labelled rows of the server's own, and the data have none: write for "
                "example data.labelled = 200, which keeps training rows from the clients"
            )

    def init(self, key: Tensor) -> Tree:
        theta = super().init(key)
        zero = next(iter(theta.values())).new_zeros(())
        return {**theta, **{f"report/{name}": zero.clone() for name in REPORTS}}

    def message(self, down: Tree) -> Tree:
        return {k: v.expand(self.samples, *v.shape) for k, v in down.items()}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p = self.program
        theta, info = self.fit(p.parts, down, data, key)
        energy = langevin(p.parts, self.optimizer, p.trainable, temperature=self.temperature)
        drawn = []
        for s in range(self.samples):
            theta, _ = self.fit(energy, theta, data, fold(key, "sample", s), epochs=self.between)
            drawn.append(p.refresh(theta, data))
        return Reply(stack(drawn), own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        assert self.unlabelled is not None and self.labelled is not None
        share, x, held = self.shares(cohort), self.unlabelled, self.labelled
        at = lambda rows: torch.stack([self.predictive(unstack(ups, k), rows, cohort.key) for k in range(len(share))])
        known = at(held.x)  # (C, L, K)
        beta = fitted(known, share, held.y.long())
        first = unstack(unstack(ups, 0), -1)
        student, _ = distill(
            self.program, first, combined(at(x), share, beta), x, fold(cohort.key, "distill"), self.distillation
        )
        both = combined(known, share, beta), ensemble(self.program, [student], held.x, cohort.key)
        values = [beta, *(v for log_p in both for v in nll_and_accuracy(log_p, held.y.long()))]
        return {**student, **{f"report/{n}": server["report/beta"].new_tensor(v) for n, v in zip(REPORTS, values)}}

    def predictive(self, samples: Tree, x: Tensor, key: Tensor) -> Tensor:
        """log of a client's predictive posterior on the rows of x, (U, K) float64."""
        return ensemble(self.program, [unstack(samples, s) for s in range(self.samples)], x, key)
