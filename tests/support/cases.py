"""Every registered method as the laws try it: a method joins them by being registered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pyrofl.config import Evaluation
from pyrofl.data import Federation
from pyrofl.distill import Distillation
from pyrofl.engines import Engine, Sequential
from pyrofl.methods import METHODS, FedAvg
from pyrofl.optim import SGD, Adam
from pyrofl.run import Participation, Run
from pyrofl.store import RunDirectory

from . import build

NEEDS: Mapping[str, Mapping[str, Any]] = {  # of the network, where a method has some
    "mc_dropout": {"dropout": 0.25},
    "fedbn": {"batch_norm": True},
}
# methods whose own state is the model that they sent, by their paper: it is kept, not kept back
KEEPS_WHAT_IT_SENDS = frozenset({"fedmap", "vaneb_head", "pfnm"})
REFUSES_NORMALISATION = frozenset({"pfnm"})


@dataclass(frozen=True)
class Case:
    """A method with some arguments, on a network with some options."""

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = [*self.arguments, *(f"{k}={v}" for k, v in self.network.items())]
        return "-".join([self.method, *options])

    def build(self, *, rounds: int = 3, clients: int = len(build.RAGGED)) -> FedAvg:
        """The method on a fresh program, with what a run gives it."""
        kind = METHODS[self.method]
        options = {"guide": kind.guide, "prior": kind.prior, **NEEDS.get(self.method, {}), **self.network}
        fields = {f.name for f in dataclasses.fields(kind) if f.init}
        given = {"epochs": 2.0, "size": 4, "rounds": rounds, "clients": clients, "seed": 1}
        server = build.rows(12, seed=50, dtype=options.get("dtype", torch.float64))
        given |= {"unlabelled": server.x, "labelled": server}
        known = {k: v for k, v in given.items() if k in fields}
        return kind(build.program(**options), **{**known, **self.arguments})

    def run(
        self,
        *,
        engine: Engine | None = None,
        rounds: int = 2,
        total: int = 4,
        federation: Federation | None = None,
        directory: Path | None = None,
        cohort: Participation | None = None,
    ) -> Run:
        """A run of `rounds`, of a method that was told of `total`."""
        where = None if directory is None else RunDirectory(directory)
        if where is not None and not where.config.exists():
            where.create("")
        return Run(
            self.build(rounds=total),
            federation or build.federation(),
            engine=engine or Sequential(),
            rounds=rounds,
            seed=1,
            evaluation=Evaluation(every=2, draws=2, final_draws=2),
            cohort=cohort,
            directory=where,
        )


MIXED = (SGD(0.1, momentum=0.9), Adam(1e-2), Adam(1e-1))

CASES = [
    *(Case(name) for name in METHODS),
    *(Case(name, network={"batch_norm": True}) for name in METHODS if name not in REFUSES_NORMALISATION),
    Case("fedavg", {"finetune": True}),
    Case("bayfl", {"schedule": "a/sqrt(k)"}),
    Case("bayfl", {"pooling": "product"}),
    Case("bayfl", {"pooling": "mixture", "weighting": "uniform"}),
    Case("bayfl", network={"prior": "hierarchical"}),
    Case("meta_bayfl", {"distillation": Distillation(epochs=2, size=4), "teacher_draws": 2}),
    Case("fedbe", {"sampler": "dirichlet", "clients_teach": False}),
    Case("fedmap", {"weights": "rows_times_likelihood", "variance": "coordinate"}),
    Case("fedmap", {"weights": "total_loglik", "literal": True, "start": "global"}, {"guide": "normal"}),
    Case("fedmap", {"fixed_variance": 2.0, "variance": "tensor", "finetune": True}),
    Case("fedbn", {"finetune": True}, {"guide": "normal", "prior": "gaussian"}),
    Case("vaneb_head", {"every": 1, "estimate": "direct", "finetune": True}),
    Case("meta_bayfl", {"optimizers": MIXED, "every": "epoch"}),
    Case("meta_bayfl", {"restart": False, "train_on": "all", "score": "elbo"}),
]
