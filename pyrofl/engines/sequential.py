"""The sequential engine: a loop over clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .base import Failure, Hook, Job


class Sequential:
    """One client after the other. A client that raises is a Failure; the others go on."""

    name = "sequential"

    def map(self, hook: Hook, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        for job in jobs:
            try:
                result = hook(job.down, job.own, job.data, job.key)
            except Exception as error:
                yield job.client, Failure.of(job.client, error)
            else:
                yield job.client, result
