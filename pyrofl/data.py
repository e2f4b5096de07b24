"""What a client holds: rows, padded or not, and the batches that one local round takes from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .random import fold, is_mapped, permutation
from .rotation import rotated

_SHY = 1 - 1e-9  # 0.3 epochs of 10 batches are 3 steps, though 0.3 * 10 may round to just above 3


class Batch(NamedTuple):
    """Rows of one local step. Rows of weight 0 only fill the shape; batch statistics come from `distinct`."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B,)
    n: Tensor  # () float: rows of the client's whole training set, at least 1; the KL is divided by it
    weight: Tensor  # (B,) adds up to 1 over the rows that count, 0 elsewhere
    distinct: Tensor  # (B,) bool: every different row of the batch once

    @classmethod
    def of(cls, x: Tensor, y: Tensor, n: int | None = None) -> Batch:
        """All rows of x and y, each once, as a batch of a client with `n` rows (None: these)."""
        every = torch.ones_like(y, dtype=torch.bool)
        weight = torch.full_like(y, 1 / max(len(x), 1), dtype=x.dtype)
        return cls(x, y, torch.tensor(float(max(n or len(x), 1)), dtype=x.dtype, device=x.device), weight, every)

    @property
    def live(self) -> Tensor:
        """(B,) bool: the rows that count."""
        return self.weight > 0


class Schedule(NamedTuple):
    """The rows of each of T local steps, in batches of B."""

    rows: Tensor  # (T, B) int64
    real: Tensor  # (T, B) bool: not padding
    distinct: Tensor  # (T, B) bool
    weight: Tensor  # (T, B)
    live: Tensor  # (T,) bool: the client still trains
    last_epoch: Tensor  # (T,) rows that count in this step, 0 outside the client's last epoch
    n: Tensor  # () float, at least 1


class Data(NamedTuple):
    """A client's rows; rows at and after `n` are padding, whatever they hold."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,)
    n: Tensor  # () int64

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Data:
        if len(x) != len(y):
            raise ValueError(f"x has {len(x)} rows and y has {len(y)}: they must be the same rows")
        return cls(x, y, torch.tensor(len(x), device=x.device))

    @property
    def rows(self) -> int:
        """Number of real rows (outside `vmap` only)."""
        return int(self.n)

    def steps(self, epochs: float, size: int) -> Tensor:
        """Local steps of this client: ceil(epochs * ceil(n / size)), counted as whole batches of an epoch."""
        return torch.ceil(_SHY * epochs * ((self.n + size - 1) // size).double()).long()

    def max_steps(self, epochs: float, size: int) -> int:
        return math.ceil(_SHY * epochs * math.ceil(len(self.x) / size))

    def take(self, rows: Tensor, live: Tensor) -> Batch:
        """The named rows (B,) as a batch; rows that are padding are zeroed, so that NaN in padding has no effect."""
        real = rows < self.n  # (B,)
        distinct = real & (torch.arange(len(rows), device=rows.device) < self.n)
        return self._gather(rows, real, _weights(live & real, self.x.dtype), distinct, self._size())

    def sample(self, key: Tensor, size: int) -> Batch:
        """A batch of min(size, n) different rows, drawn at random."""
        rows = permutation(key, len(self.x), self.n)[:size]
        return self.take(rows, torch.ones_like(rows, dtype=torch.bool))

    def _size(self) -> Tensor:
        return self.n.clamp_min(1).to(self.x.dtype if self.x.is_floating_point() else torch.float32)

    def _gather(self, rows: Tensor, real: Tensor | None, weight: Tensor, distinct: Tensor, n: Tensor) -> Batch:
        x, y = self.x[rows], self.y[rows]
        if real is not None:
            x = torch.where(real.reshape(-1, *[1] * (x.dim() - 1)), x, 0)
            y = torch.where(real, y, 0)
        return Batch(x, y, n, weight, distinct)

    def schedule(self, key: Tensor, epochs: float, size: int) -> Schedule:
        """Which rows each local step sees: an epoch visits each row once, in a random order of its own.

        An epoch's last batch holds what is left: the free places are filled with rows from the start of the order, at
        weight 0. The first min(size, n) rows of any batch are distinct. The shape follows from that of `x`.
        """
        N, T, device = len(self.x), self.max_steps(epochs, size), self.x.device
        per_epoch = torch.ceil(self.n / size).long().clamp_min(1)
        keys = fold(key, torch.arange(max(math.ceil(epochs), 1), device=device))
        orders = torch.stack([permutation(k, N, self.n) for k in keys])  # (E, N)
        t = torch.arange(T, device=device)
        epoch = (t // per_epoch).clamp_max(len(orders) - 1)  # (T,)
        place = (t % per_epoch).unsqueeze(1) * size + torch.arange(size, device=device)  # (T, B)
        rows = orders[epoch.unsqueeze(1), place % self.n.clamp_min(1)] if T else place
        real = rows < self.n
        distinct = real & (torch.arange(size, device=device) < self.n)
        weight = _weights((place < self.n) & real, self.x.dtype)
        steps = self.steps(epochs, size)
        count = (self.n - (t % per_epoch) * size).clamp(0, size)
        last = torch.where((t < steps) & (t >= steps - torch.ceil(self.n / size)), count, 0)
        return Schedule(rows, real, distinct, weight, t < steps, last, self._size())

    def batches(self, s: Schedule) -> Iterator[tuple[Tensor, Batch]]:
        """(is the step live, batch) for each local step of a schedule."""
        padded = is_mapped(self.n) or self.rows < len(self.x)
        steps = zip(s.live.unbind(), s.rows.unbind(), s.real.unbind(), s.weight.unbind(), s.distinct.unbind())
        for live, rows, real, weight, distinct in steps:
            yield live, self._gather(rows, real if padded else None, weight, distinct, s.n)

    def chunks(self, size: int) -> Iterator[Batch]:
        """All rows once, in order, for evaluation and for batch-norm statistics."""
        N = len(self.x)
        for start in range(0, N, size):
            rows = torch.arange(start, min(start + size, N), device=self.x.device)
            yield self.take(rows, rows < self.n)

    def split(self, part: float) -> tuple[Data, Data]:
        """(first, last): the last `part` of the rows, at least one and never all where n >= 2."""
        N = len(self.x)
        held = torch.clamp((self.n * part).round().long(), min=1)
        m = torch.maximum(self.n - held, self.n.clamp_max(1))
        most = min(N, round(N * part) + 1)  # no client holds out more than this
        rows = (m + torch.arange(most, device=self.x.device)) % self.n.clamp_min(1)
        kept = max(N - most + 2, 1)
        return Data(self.x[:kept], self.y[:kept], m), Data(self.x[rows], self.y[rows], self.n - m)


def _weights(live: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / (number of live rows) on the live ones, 0 elsewhere, along the last axis."""
    live = live.to(dtype if dtype.is_floating_point else torch.float32)
    return live / live.sum(-1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class Dataset:
    """Rows as a loader returns them, before they are split over clients."""

    x: Tensor  # (N, ...) float32; images are (N, channels, height, width) in [0, 1]
    y: Tensor  # (N,) int64 codes of the classes, or float32 targets
    likelihood: str  # "categorical", "bernoulli", "gaussian" or "poisson"
    classes: tuple[str, ...] = ()  # class names in the order of their codes
    site: Tensor | None = None  # (N,) int64: the natural client of each row, where there is one
    sites: tuple[str, ...] = ()  # names of the natural clients
    test: tuple[Tensor, Tensor] | None = None  # (x, y) of the set's own test rows, shared by all clients
    notes: tuple[str, ...] = ()  # what loading changed (casts, dropped rows), to be said once


class Scaling(NamedTuple):
    """A client's own scaling of its features: (x - center) / spread."""

    center: Tensor  # (F,) float64
    spread: Tensor  # (F,) float64, positive

    def apply(self, data: Data) -> Data:
        """Rows as they came, in the client's scale."""
        return data._replace(x=((data.x - self.center.to(data.x.device)) / self.spread.to(data.x.device)).to(data.x))

    def undo(self, data: Data) -> Data:
        """Rows in the client's scale, as they came."""
        return data._replace(x=(data.x * self.spread.to(data.x.device) + self.center.to(data.x.device)).to(data.x))


class Rotation(NamedTuple):
    """A client's own angle, by which its images are turned counter-clockwise."""

    degrees: float

    def apply(self, data: Data) -> Data:
        """Upright rows, turned."""
        return data._replace(x=rotated(data.x, self.degrees))

    def undo(self, data: Data) -> Data:
        """Turned rows, upright: exact for quarter turns, else between pixels once more and without the corners."""
        return data._replace(x=rotated(data.x, -self.degrees))


@dataclass(frozen=True)
class Client:
    """One participant: its name and its own rows."""

    name: str
    train: Data
    test: Data
    valid: Data | None = None  # training rows put aside, of which no model learns
    transform: Scaling | Rotation | None = None  # what was done to the inputs of all its rows


@dataclass(frozen=True)
class Federation:
    """The clients of a run. Client i is `clients[i]`; ids are positions and never change."""

    clients: tuple[Client, ...]
    likelihood: str
    classes: tuple[str, ...] = ()
    common: Data | None = None  # test rows shared by all clients
    notes: tuple[str, ...] = ()
    unlabelled: Tensor | None = None  # (U, ...) inputs of the server's own, for distillation
    labelled: Data | None = None  # rows of the server's own, for what is fitted there

    def __post_init__(self) -> None:
        for client in self.clients:
            if client.name.startswith("("):
                raise ValueError(
                    f"client {client.name!r}: names in parentheses stand for no single client, such as (pooled) and "
                    "(all): rename it"
                )

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input row."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def outputs(self) -> int:
        """Width of the network's output: one per class, else one."""
        return len(self.classes) if self.likelihood == "categorical" else 1
