"""Every registered method as the laws try it: a method joins them by being registered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
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
    **{name: {"linear": True} for name in ("npeb", "vaneb", "adamix")},  # whose cost is cubic in the parameters
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {  # arguments that make a method quick, or steady
    "npeb": {"newton": 2},
    "vaneb": {"newton": 2},
    "adamix": {"newton": 2, "components": 2, "restarts": 1, "em": 5},
    # Adam makes whole steps of rounding errors where a gradient is 0, as that of a bias before batch normalisation
    "pfedbayes": {"optimizer": SGD(0.01), "zeta": 0.1},
    "fedpa": {"epochs": 3},
}
# methods that keep, under the same names, what they sent, by their paper: the model, its factor, or a change
KEEPS_WHAT_IT_SENDS = frozenset(
    {"fedamp", "fedep", "fedfomo", "fedmap", "fedphp", "pfedbl", "pfnm", "pvi", "scaffold", "vaneb_head"}
)
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
        return kind(build.program(**options), **{**known, **SETTINGS.get(self.method, {}), **self.arguments})

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
    Case("fedavg", {"finetune": True, "finetune_epochs": 1.0, "finetune_part": "head"}),
    Case("bayfl", {"schedule": "a/sqrt(k)"}),
    Case("bayfl", {"pooling": "product"}),
    Case("bayfl", {"pooling": "mixture", "weighting": "uniform"}),
    Case("bayfl", network={"prior": "hierarchical"}),
    Case("meta_bayfl", {"distillation": Distillation(epochs=2, size=4), "teacher_draws": 2}),
    Case("fedbe", {"sampler": "dirichlet", "clients_teach": False}),
    Case("fedbe", {"distillation": Distillation(epochs=2, size=4), "samples": 1}, {"prior": "hierarchical"}),
    Case("fedmap", {"weights": "rows_times_likelihood", "variance": "coordinate"}),
    Case("fedmap", {"weights": "total_loglik", "literal": True, "start": "global"}, {"guide": "normal"}),
    Case("fedmap", {"fixed_variance": 2.0, "variance": "tensor", "finetune": True}),
    Case("per_fedavg", {"order": "hessian_free", "adapt": 2}, {"guide": "normal", "prior": "gaussian"}),
    Case("ditto", {"lam": 0.1}, {"guide": "normal", "prior": "gaussian"}),
    Case("pfedme", {"beta": 2.0}, {"guide": "normal", "prior": "gaussian"}),
    Case("fedamp", {"attention": "cosine"}, {"guide": "normal", "prior": "gaussian"}),
    Case("fedamp", network={"guide": "normal", "prior": "hierarchical"}),  # which has parameters without an axis
    Case("fedfomo", {"normalise": "softmax", "models": 2}, {"guide": "normal", "prior": "gaussian"}),
    Case("fedfomo", network={"guide": "normal", "prior": "hierarchical"}),
    Case("fedphp", {"softened": "both", "lam": 0.5}),
    Case("adaped", {"first_psi": 0.2}, {"prior": "gaussian"}),
    Case("fedmask", {"through": "identity", "keep": 1.0, "tau": 0.7}),
    Case("fedbn", {"finetune": True}, {"guide": "normal", "prior": "gaussian"}),
    Case("scaffold", {"option": "I", "server_rate": 0.5}, {"guide": "normal", "prior": "gaussian"}),
    Case("fedyogi", network={"guide": "normal", "prior": "gaussian"}),
    Case("fedrep", network={"guide": "normal", "prior": "gaussian"}),
    Case("vaneb_head", {"every": 1, "estimate": "direct", "finetune": True}),
    Case("meta_bayfl", {"optimizers": MIXED, "every": "epoch"}),
    Case("meta_bayfl", {"restart": False, "train_on": "all", "score": "elbo"}),
    Case("pvi", {"damping": 1.0, "finetune": True}),
    Case("pfedbayes", {"inner": 1, "optimizer": Adam(1e-3), "zeta": 10.0, "server_rate": 0.5, "finetune": True}),
    Case("fedep", {"stateless": True, "damping": 0.5, "finetune": True}),
    Case("pfedbl", {"finetune": True}, {"points": ("norm", "body")}),
    Case("fedpop", {"samples": 2, "prior_rate": 1.0}),
    Case("fedpa", {"warmup": 1, "rho": 1.0, "finetune": True}),
]

# methods that are tried with normalisation layers whenever the tests run; the others by `make test-all`
NORMALISED = frozenset(
    {"fedavg", "bayfl", "meta_bayfl", "alone", "scaffold", "fedadam", "fedbn", "fedper", "ditto", "fedbe", "pvi"}
)


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if "batch_norm" in case.network and case.method not in NORMALISED else []


every_case = pytest.mark.parametrize("case", [pytest.param(c, id=str(c), marks=_marks(c)) for c in CASES])
