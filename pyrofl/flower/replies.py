"""What the server asks of a site, and what it makes of the answer: nothing is taken that was not asked for."""

from __future__ import annotations

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from ..engines import Failure, Job
from ..gate import Contract
from ..method import Reply
from ..run import RECEIPT
from ..tree import Tree
from .records import Malformed, record, tree

_MOST_SCALARS = 1000  # in one reply


def receipt_of(own: Tree) -> dict[str, int]:
    """`after` of a request: the receipt that the server holds for a site's own state, where it holds one."""
    return {"after": int(own[RECEIPT])} if RECEIPT in own else {}


def work(job: Job) -> RecordDict:
    asked = {"key": int(job.key), **receipt_of(job.own)}
    return RecordDict({"down": record(job.down), "asked": ConfigRecord(asked)})


def update(client: int, reply: Message, contract: Contract, key: torch.Tensor) -> Reply | Failure:
    """A site's update, or what is wrong with it. The own state stays there: the server keeps its receipt."""
    if reply.has_error():
        return Failure(client, last_line(reply.error.reason), reply.error.reason or "")
    content = reply.content
    try:
        up = tree(content.get("up"), contract)
        info = _scalars(content.get("info"))
        kept = content.get("kept")
        if not isinstance(kept, ConfigRecord) or not isinstance(kept.get("own"), bool):
            raise Malformed("the message does not say whether the site keeps a state")
    except Malformed as error:
        return Failure(client, str(error), "")
    own = {RECEIPT: key.cpu().clone()} if kept["own"] else {}
    return Reply(up, own, {k: torch.tensor(v, dtype=torch.float64) for k, v in info.items()})


def scores(client: int, reply: Message) -> dict[str, float | None] | Failure:
    if reply.has_error():
        return Failure(client, last_line(reply.error.reason), reply.error.reason or "")
    try:
        known = _scalars(reply.content.get("scores"))
        undefined = reply.content.get("undefined")
        if not isinstance(undefined, ConfigRecord) or not isinstance(undefined.get("names"), list):
            raise Malformed("the message does not say which scores are undefined")
    except Malformed as error:
        return Failure(client, str(error), "")
    return {**known, **{str(name): None for name in undefined["names"]}}


def _scalars(received: object) -> dict[str, float]:
    if not isinstance(received, MetricRecord):
        raise Malformed(f"the message holds {type(received).__name__} where scalars should be")
    if len(received) > _MOST_SCALARS:
        raise Malformed(f"the message holds {len(received)} scalars, at most {_MOST_SCALARS} are taken")
    for name, v in received.items():
        if not isinstance(v, int | float):
            raise Malformed(f"scalar {name!r} is a {type(v).__name__}")
    return {name: float(v) for name, v in received.items()}


def last_line(text: str | None) -> str:
    """What a traceback ends with."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "it failed and gave no reason"
