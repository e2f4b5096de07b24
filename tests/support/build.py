"""Small networks, programs and federations, in float64 unless asked otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Client, Data, Federation
from pyrofl.guides import GUIDES
from pyrofl.priors import PRIORS
from pyrofl.program import Program

FEATURES, CLASSES = 3, 3
RAGGED = (17, 1, 8, 5, 0)  # training rows of the clients: one row, less than a batch, none at all


class Net(nn.Module):
    """Features -> 4 hidden units, or none if `linear` -> outputs, with batch normalisation or dropout on demand."""

    def __init__(self, *, linear: bool = False, batch_norm: bool = False, dropout: float = 0.0, outputs: int = CLASSES):
        super().__init__()
        units = FEATURES if linear else 4
        blocks: list[nn.Module] = [] if linear else [nn.Linear(FEATURES, units)]
        if batch_norm:
            blocks.append(nn.BatchNorm1d(units))
        if not linear:
            blocks.append(nn.Tanh())
        if dropout:
            blocks.append(nn.Dropout(dropout))
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def rows(n: int, *, seed: int = 0, classes: int = CLASSES, dtype: torch.dtype = torch.float64) -> Data:
    """n rows whose labels depend on the features, so that there is something to learn."""
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=(n, FEATURES))
    y = np.floor(classes * (0.5 + np.arctan(x.sum(1) + rng.normal(size=n)) / np.pi)).astype(np.int64)
    return Data.of(torch.tensor(x, dtype=dtype), torch.tensor(y).clamp(0, classes - 1))


def steps(data: Data, key: Tensor, epochs: float, size: int) -> list[tuple[Tensor, Batch]]:
    """(is the step live, batch) for each local step."""
    return list(data.batches(data.schedule(key, epochs, size)))


def federation(train: Sequence[int] = RAGGED, *, test: int = 4, dtype: torch.dtype = torch.float64) -> Federation:
    """Clients `site0`, `site1`, ... with the given numbers of training rows."""
    clients = tuple(
        Client(f"site{i}", rows(n, seed=i, dtype=dtype), rows(test, seed=100 + i, dtype=dtype))
        for i, n in enumerate(train)
    )
    return Federation(clients, "categorical", tuple("abc"))


def program(
    *,
    guide: str | Callable[..., Any] = "normal",
    prior: str = "gaussian",
    linear: bool = False,
    batch_norm: bool = False,
    dropout: float = 0.0,
    points: tuple[str, ...] = ("norm",),
    dtype: torch.dtype = torch.float64,
    **options: float,
) -> Program:
    """The classifier `Net` under a prior and a guide."""
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        net = Net(linear=linear, batch_norm=batch_norm, dropout=dropout).to(dtype)
    x, y, _ = rows(2, dtype=dtype)
    kind = GUIDES[guide] if isinstance(guide, str) else guide
    return Program(Bayesian(net, PRIORS[prior](), points=points), x, y, guide=kind, **options)
