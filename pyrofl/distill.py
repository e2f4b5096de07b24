"""Distillation: an ensemble's predictions on unlabelled rows, learned by one student."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import kl_div, logsigmoid

from .data import Batch, Data
from .fit import fit
from .limits import EPOCHS, positive
from .optim import SGD, Optimizer
from .program import Program
from .random import fold
from .tree import Tree, only, pack, part


@dataclass(frozen=True)
class Distillation:
    """How a student is trained: `epochs` over the unlabelled rows towards p^(1 / temperature) / Z.

    The student is the mean of its weights at every `average_every`-th step after the first part `average_after` of all
    steps (stochastic weight averaging); with `average_every = 0` it is the last one.
    """

    optimizer: Optimizer = field(default=SGD(1e-3, decay=1e-5, momentum=0.9))
    epochs: float = 20.0
    size: int = 128
    temperature: float = 0.5
    average_after: float = 0.3
    average_every: int = 25

    def __post_init__(self) -> None:
        positive("distillation", self, "epochs", most=EPOCHS)
        positive("distillation", self, "temperature")
        if self.size < 1:
            raise ValueError(f"distillation.size must be at least 1 row, got {self.size}")
        if not 0 <= self.average_after <= 1:
            raise ValueError(f"distillation.average_after is a part of the steps, 0 to 1, got {self.average_after}")
        if self.average_every < 0:
            raise ValueError(f"distillation.average_every is a number of steps, 0 or more, got {self.average_every}")


def needs_unlabelled(rows: Tensor | None, program: Program, method: str) -> None:
    """Raise where a method that distils cannot: it has no rows to distil on, or predictions that are no classes."""
    if program.kind not in ("categorical", "bernoulli"):
        raise ValueError(
            f"{method} averages predicted class probabilities, and this model's likelihood is {program.kind}"
        )
    if rows is None:
        raise ValueError(
            f"{method} distils on unlabelled rows of the server's own, and the data have none: write for example "
            "data.unlabelled = 1000, which keeps training rows from the clients, or name another data set there"
        )


def log_probabilities(kind: str, out: Tensor) -> Tensor:
    """Predictive parameters (..., K) of a classifier as log-probabilities of its classes (two for "bernoulli")."""
    if kind == "bernoulli":
        return torch.cat([logsigmoid(-out), logsigmoid(out)], -1)
    return torch.log_softmax(out, -1)


def ensemble(
    program: Program, teachers: Sequence[Tree], x: Tensor, key: Tensor, *, draws: int = 1, rows: int = 1000
) -> Tensor:
    """log of the mean of the teachers' predicted probabilities on the rows of x, (U, K) float64.

    Each teacher gives `draws` posterior draws (one is enough of a point).
    """
    parts = []
    with torch.no_grad():
        for start in range(0, len(x), rows):
            some = x[start : start + rows]
            out = [program.predict(t, some, fold(key, i, s)) for i, t in enumerate(teachers) for s in range(draws)]
            log_p = log_probabilities(program.kind, torch.stack(out).double())  # (teachers * draws, u, K)
            parts.append(torch.logsumexp(log_p, 0) - math.log(len(out)))
    return torch.cat(parts)


_COUNT, _MEAN = "averaged", "mean"  # of the iterates, beside the student


def sharpened(log_p: Tensor, temperature: float) -> Tensor:
    """log of p^(1 / temperature) / Z."""
    return torch.log_softmax(log_p / temperature, -1)


def distill(
    program: Program,
    student: Tree,
    log_p: Tensor,
    x: Tensor,
    key: Tensor,
    how: Distillation,
    *,
    names: Collection[str] | None = None,
) -> tuple[Tree, Tensor]:
    """(student, mean KL(target || student) over the last epoch, () in nats a row).

    The student minimises that KL on `names` (default: all that is trained), one posterior draw a step where it has a
    spread. Normalisation layers use running statistics throughout, which are recomputed over x at the end.

    Shapes: x (U, ...), the teachers' log-probabilities log_p (U, K).
    """
    theta = only(student, program.theta0)
    target = sharpened(log_p, how.temperature).to(next(theta[k] for k in program.trainable).dtype)
    data = Data.of(x, torch.arange(len(x), device=x.device))  # a row's "label" is its place in `target`

    def loss(theta: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
        out = log_probabilities(program.kind, program.predict(only(theta, program.theta0), batch.x, k))  # (B, K)
        each = kl_div(out, target[batch.y], log_target=True, reduction="none").sum(-1)
        value = torch.dot(batch.weight.to(each.dtype), each)
        return value, {"kl": value.detach()}

    trained = program.trainable if names is None else program.trainable & frozenset(names)
    first = max(math.ceil(how.average_after * data.max_steps(how.epochs, how.size)), 1)

    def averaged(t: int, theta: Tree, batch: Batch, k: Tensor) -> Tree:
        """The running mean of the iterates at steps `first`, `first + average_every`, ..."""
        if not how.average_every or t + 1 < first or (t + 1 - first) % how.average_every:
            return {}
        count = theta[_COUNT] + 1
        running = part(theta, _MEAN)
        mean = {n: torch.lerp(v, theta[n], 1 / count) for n, v in running.items()}
        return {_COUNT: count, **pack(**{_MEAN: mean})}

    start = pack(**{_MEAN: only(theta, trained)}) | {_COUNT: next(iter(theta.values())).new_zeros(())}
    last, info = fit(
        loss,
        {**theta, **start},
        data,
        key,
        optimizer=how.optimizer,
        epochs=how.epochs,
        size=how.size,
        names=trained,
        after=averaged,
    )
    final = only(last, theta)
    if last[_COUNT] > 0:
        final |= part(last, _MEAN)
    return program.refresh(final, Data.of(x, torch.zeros_like(data.y))), info["kl"]
