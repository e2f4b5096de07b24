"""A round whose updates are masked: keys first, then masked updates, of which only the sum can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from .. import secure
from ..engines import Failure, Job
from ..gate import Contract
from ..method import Reply
from ..tree import Tree
from .replies import last_line, update, work

if TYPE_CHECKING:
    from .exchange import Exchange


def sum_of_masked(exchange: Exchange, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
    """Every site's reply with the mean of all in place of its own update, or a Failure for every site.

    The method's server step is a plain mean of what is summed (`averaged`), so that it comes to the same.
    """
    asked = {j.client: RecordDict({"asked": ConfigRecord({"key": int(j.key)})}) for j in jobs}
    keys = {}
    for client, reply in exchange.ask("query.key", asked):
        found = exchange.silent(client) if reply is None else _key(client, reply)
        if isinstance(found, Failure):  # the sum goes on without it
            yield client, found
        else:
            keys[client] = found
    jobs = [j for j in jobs if j.client in keys]
    assert exchange.messages.secure is not None
    least = exchange.messages.secure.least
    if 0 < len(jobs) < least:
        why = f"a sum of {len(jobs)} sites would give too much of them away: at least {least} must take part"
        yield from ((j.client, Failure(j.client, why, "")) for j in jobs)
    elif jobs:
        yield from _round(exchange, jobs, keys)


def _round(exchange: Exchange, jobs: Sequence[Job], keys: dict[int, bytes]) -> Iterator[tuple[int, Any]]:
    contents = {}
    shares = exchange.messages.shares(torch.stack([job.data.n for job in jobs]))
    for job, share in zip(jobs, shares.tolist(), strict=True):
        contents[job.client] = content = work(job)
        content["asked"]["share"] = share
        content["asked"]["sites"] = sorted(keys)
        content["asked"]["keys"] = [keys[i] for i in sorted(keys)]
    job_of = {job.client: job for job in jobs}
    found: dict[int, Reply | Failure] = {}
    for client, reply in exchange.ask("train", contents):
        job = job_of[client]
        contract = Contract.of(exchange.messages.wire(job.down))
        found[client] = exchange.silent(client) if reply is None else update(client, reply, contract, job.key)
    failed = {i: f for i, f in sorted(found.items()) if isinstance(f, Failure)}
    replies = {i: r for i, r in sorted(found.items()) if isinstance(r, Reply)}
    mean = None if failed else _mean(exchange, [r.up for r in replies.values()], jobs[0].down)
    if mean is not None:
        yield from ((client, reply._replace(up=mean)) for client, reply in replies.items())
        return
    if failed:
        missing = ", ".join(f"{exchange.names[i]} ({f.reason})" for i, f in failed.items())
        why = f"the round's sum cannot be read without {missing}"
    else:
        why = "the sum is out of range: a site did not send what was agreed"
    yield from ((client, Failure(client, why, "")) for client in replies)  # first: it is what the round's line shows
    yield from failed.items()


def _mean(exchange: Exchange, sent: list[Tree], down: Tree) -> Tree | None:
    settings = exchange.messages.secure
    assert settings is not None
    codes = secure.total(sent)
    if any(q.numel() and int(q.abs().max()) > len(sent) * 2**settings.bits for q in codes.values()):
        return None
    return exchange.messages.of_sum(codes, len(sent), down)


def _key(client: int, reply: Message) -> bytes | Failure:
    if reply.has_error():
        return Failure(client, last_line(reply.error.reason), reply.error.reason or "")
    record = reply.content.get("key")
    key = record.get("public") if isinstance(record, ConfigRecord) else None
    if isinstance(key, bytes) and len(key) == 32:
        return key
    return Failure(client, "it sent no key for the round's sum", "")
