"""FedBE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..distill import Distillation, distill, ensemble, needs_unlabelled
from ..limits import at_least, positive
from ..method import Cohort
from ..random import fold, generator, normal
from ..tree import Ravel, Tree, mean, only, unstack
from .fedavg import FedAvg
from .fixed import Unpooled

KL = "report/distillation_kl"  # nats a row


@dataclass(frozen=True)
class FedBE(Unpooled, FedAvg):
    """Clients' models are draws from a posterior over global models: an ensemble of it is distilled into the next one.

    Server: the teachers are the average w, `samples` models from a distribution around it, and, with `clients_teach`,
    the clients' models y_k. p(x) = mean of their softmax outputs on unlabelled rows x. The student starts at w and
    minimises KL(p^(1/T) / Z || student), see `Distillation`; it is the next global model. The distribution is

    - "gaussian": N(w, diag(sum_k (n_k / n) (y_k - w)^2)), a variance for every weight;
    - "dirichlet": sum_k g_k y_k with g ~ Dir(concentration C n_k / n), so that equal clients have Dir(concentration).

    Statistics of normalisation layers are never drawn: samples have those of w. The authors' code draws around the last
    global model from normalised updates instead; this is the paper's text.

    Reference: Chen, Chao, 2021, algorithm 1.
    """

    sampler: Literal["gaussian", "dirichlet"] = "gaussian"
    samples: int = 10
    concentration: float = 1.0
    clients_teach: bool = True
    distillation: Distillation = field(default=Distillation())
    unlabelled: Tensor | None = field(default=None, repr=False, compare=False)  # (U, ...), taken from the run

    travels: ClassVar[str] = "the model, down and up; the server needs unlabelled rows"
    stays: ClassVar[str] = "nothing"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "draws models around the clients' (with posteriors: bayfl with distillation)"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method", self, 0, "samples")
        positive("method", self, "concentration")
        needs_unlabelled(self.unlabelled, self.program, "fedbe")

    def init(self, key: Tensor) -> Tree:
        theta = super().init(key)
        return {**theta, KL: next(iter(theta.values())).new_zeros(())}

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        assert self.unlabelled is not None
        w = only(super().aggregate(server, ups, cohort), self.program.theta0)
        clients = [unstack(ups, k) for k in range(len(cohort.ids))] if self.clients_teach else []
        teachers = [w, *self.drawn(w, ups, cohort), *clients]
        log_p = ensemble(self.program, teachers, self.unlabelled, cohort.key)  # (U, K)
        key = fold(cohort.key, "distill")
        student, kl = distill(self.program, w, log_p, self.unlabelled, key, self.distillation)
        return {**student, KL: kl.to(server[KL].dtype)}

    def drawn(self, w: Tree, ups: Tree, cohort: Cohort) -> list[Tree]:
        """`samples` models from the distribution over global models."""
        share, key = self.shares(cohort), fold(cohort.key, "models")
        y = only(ups, self.program.trainable)  # leaves (C, ...)
        if self.sampler == "dirichlet":
            alpha = (self.concentration * len(share) * share).cpu().numpy()
            g = torch.as_tensor(generator(key).dirichlet(alpha, self.samples), device=share.device)  # (M, C)
            return [{**w, **mean(y, row)} for row in g]
        ravel = Ravel(only(w, y))
        center = ravel.flat(w)  # (P,)
        square = torch.stack([(ravel.flat(unstack(y, k)) - center).square() for k in range(len(share))])
        spread = torch.tensordot(share.to(square), square, 1).sqrt()
        noise = [normal(fold(key, m), center.shape, center.dtype) for m in range(self.samples)]
        return [dict(ravel.tree(center + spread * e, w)) for e in noise]
