"""The vectorised engine: `vmap` over clients, padded to one shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from ..data import Data
from ..tree import Tree, all_finite, stack
from .base import Failure, Hook, Job
from .sequential import Sequential


class Vectorised:
    """Clients of similar size run together, at most `chunk` at once (None: as many as there are).

    Clients are sorted by rows and cut into groups whose largest has at most `ragged` times the smallest's rows, so that
    little of the padding is computed. A client whose result is not finite runs again alone, which names the step and
    tensor. If a hook cannot be mapped, the engine says why in `fallback` and goes on sequentially.
    """

    name = "vectorised"

    def __init__(self, *, chunk: int | None = None, ragged: float = 1.5):
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1 client, got {chunk}")
        self.chunk, self.ragged = chunk, ragged
        self.fallback: str | None = None

    def map(self, hook: Hook, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        for group in self._groups(jobs):
            results = self._together(hook, group) if self.fallback is None else None
            alone = {j.client for j in group} if results is None else {i for i, r in results.items() if not _finite(r)}
            again = dict(Sequential().map(hook, [j for j in group if j.client in alone]))
            for job in group:
                yield job.client, again[job.client] if job.client in alone else results[job.client]  # type: ignore[index]

    def _groups(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        group: list[Job] = []
        for job in sorted(jobs, key=lambda j: (j.data.rows, j.client)):
            full = self.chunk is not None and len(group) >= self.chunk
            if group and (full or job.data.rows > self.ragged * max(group[0].data.rows, 1)):
                yield group
                group = []
            group.append(job)
        if group:
            yield group

    def _together(self, hook: Hook, group: list[Job]) -> dict[int, Any] | None:
        first = group[0]
        shared = all(j.down[k] is v for j in group for k, v in first.down.items())
        downs = first.down if shared else stack([j.down for j in group])
        owns = stack([j.own for j in group])
        run = vmap(hook, in_dims=(None if shared else 0, 0 if owns else None, 0, 0))
        try:
            out = run(downs, owns, _padded([j.data for j in group]), torch.stack([j.key for j in group]))
        except Exception as error:
            if any(isinstance(r, Failure) for _, r in Sequential().map(hook, group)):
                return None  # a client's own fault: the sequential pass will name it
            self.fallback = f"{type(error).__name__}: {error}".splitlines()[0]
            return None
        return {j.client: _row(out, i) for i, j in enumerate(group)}


def _padded(datas: list[Data]) -> Data:
    N = max(d.rows for d in datas)

    def pad(v: Tensor) -> Tensor:
        v = v[:N]
        return torch.cat([v, v.new_zeros(N - len(v), *v.shape[1:])]) if len(v) < N else v

    x, y = (torch.stack([pad(getattr(d, f)) for d in datas]) for f in ("x", "y"))
    return Data(x, y, torch.stack([d.n for d in datas]))


def _row(out: Any, i: int) -> Any:
    if isinstance(out, dict):
        return {k: v[i] for k, v in out.items()}
    return type(out)(*({k: v[i] for k, v in t.items()} for t in out))


def _finite(result: Any) -> bool:
    trees: list[Tree] = [result] if isinstance(result, dict) else list(result)
    return all(all_finite(v) for t in trees for v in t.values())
