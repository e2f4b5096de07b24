"""What an engine gets and gives back."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..data import Data
from ..fit import NonFinite
from ..tree import Tree


class Job(NamedTuple):
    """One client's arguments of `local` or `personal`."""

    client: int
    down: Tree
    own: Tree
    data: Data
    key: Tensor


@dataclass(frozen=True)
class Failure:
    """A client whose hook raised: the reason in one line, and the traceback."""

    client: int
    reason: str
    details: str

    @classmethod
    def of(cls, client: int, error: Exception) -> Failure:
        reason = str(error) if isinstance(error, NonFinite) else f"{type(error).__name__}: {error}"
        return cls(client, reason, "".join(traceback.format_exception(error)))


Hook = Callable[[Tree, Tree, Data, Tensor], Any]  # (down, own, data, key) -> Reply or Tree


class Engine(Protocol):
    """`map` yields (client, result or Failure) for each job, in ascending id within what it finishes together."""

    name: str

    def map(self, hook: Hook, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]: ...
