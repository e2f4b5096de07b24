"""The server's side of the messages: who is there, what was asked, and what came back, checked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ..config import Patience
from ..engines import Failure, Job
from ..engines.base import Hook
from ..gate import Contract
from ..messages import Messages
from ..method import Reply
from .replies import last_line, update, work
from .replies import scores as scores_of
from .sums import sum_of_masked


class Member(NamedTuple):
    """A site that has said who it is."""

    node: int
    rows: int  # training rows
    tests: int  # test rows


class Exchange:
    """The engine of Flower nodes: of a job it sends `down`, the key, and the receipt of the own state."""

    name = "flower"

    def __init__(self, grid: Grid, config: str, *, names: Sequence[str], messages: Messages, patience: Patience):
        self.grid, self.config, self.names, self.messages, self.patience = grid, config, names, messages, patience
        self.members: dict[int, Member] = {}  # client -> member

    # ------------------------------------------------------------------ who is there

    def meet(self) -> dict[int, str]:
        """Ask new nodes who they are and forget those that have gone; returns node -> why it is not taken in."""
        online = {n.node_id: n.name for n in self.grid.get_nodes()}
        self.members = {i: m for i, m in self.members.items() if m.node in online}
        new = online.keys() - {m.node for m in self.members.values()}
        refused = {}
        for node, reply in self._ask("query", {node: RecordDict({}) for node in sorted(new)}, self.patience.timeout):
            found = "it did not answer" if reply is None else self._introduced(node, reply, online[node])
            if isinstance(found, str):
                refused[node] = found
            else:
                self.members |= found
        return refused

    def _introduced(self, node: int, reply: Message, registered: str) -> dict[int, Member] | str:
        """{client: member}, or why the node cannot take part."""
        if reply.has_error():
            return last_line(reply.error.reason)
        facts = reply.content.get("site")
        if not isinstance(facts, ConfigRecord):
            return "it did not say which site it is"
        client, name, rows, tests = (facts.get(k) for k in ("client", "name", "rows", "tests"))
        if type(client) is not int or not 0 <= client < len(self.names) or name != self.names[client]:
            return f"it says it is site {name!r}, which is none of {', '.join(self.names[:10])}"
        if type(rows) is not int or rows < 0 or type(tests) is not int or tests < 0:
            return f"site {name} reports {rows!r} training rows and {tests!r} test rows"
        if registered and registered != name:
            return f"it says it is site {name!r}, but its key is registered for {registered!r}"
        if client in self.members:
            return f"site {name} is there already, as node {self.members[client].node}"
        return {client: Member(node, rows, tests)}

    # ------------------------------------------------------------------ work

    def map(self, hook: Hook, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """The sites' updates as they come; a site that fails or says nothing in time is a Failure.

        The hook is not called: a site has the method's own.
        """
        if self.messages.secure is not None:
            yield from sum_of_masked(self, jobs)
            return
        contents = {job.client: work(job) for job in jobs}
        downs = {job.client: job.down for job in jobs}
        wanted = {job.client: (Contract.of(self.messages.wire(job.down)), job.key) for job in jobs}
        for client, reply in self.ask("train", contents):
            found = self.silent(client) if reply is None else update(client, reply, *wanted[client])
            if isinstance(found, Reply):
                found = found._replace(up=self.messages.decode(found.up, downs[client]))
            yield client, found

    def scores(self, contents: Mapping[int, RecordDict]) -> Iterator[tuple[int, dict[str, float | None] | Failure]]:
        """The sites' scores, "MODEL/SCORE" -> value; None where a score is undefined."""
        for client, reply in self.ask("evaluate", contents):
            yield client, self.silent(client) if reply is None else scores_of(client, reply)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> Iterator[tuple[int, Message | None]]:
        """(client, reply) in the order of arrival, then (client, None) for those that said nothing in time."""
        client_of = {self.members[client].node: client for client in contents}
        by_node = {self.members[client].node: content for client, content in contents.items()}
        for node, reply in self._ask(kind, by_node, self.patience.timeout):
            yield client_of[node], reply

    def silent(self, client: int) -> Failure:
        return Failure(client, f"no reply within {self.patience.timeout:g} s", "")

    def _ask(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> Iterator[tuple[int, Message | None]]:
        messages = [self._message(kind, node, content, timeout) for node, content in contents.items()]
        ids = list(self.grid.push_messages(messages)) if messages else []
        waiting = {i: m.metadata.dst_node_id for i, m in zip(ids, messages) if i is not None}
        pause, end = 0.05, time.monotonic() + timeout
        while waiting and time.monotonic() < end:
            came = list(self.grid.pull_messages(list(waiting)))
            for reply in came:
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
            pause = 0.05 if came else min(1.5 * pause, 1.0)
            if waiting and not came:
                time.sleep(pause)
        unsent = [m.metadata.dst_node_id for m in messages[len(ids) :]]
        for node in [*waiting.values(), *unsent, *(m.metadata.dst_node_id for i, m in zip(ids, messages) if i is None)]:
            yield node, None

    def _message(self, kind: str, node: int, content: RecordDict, timeout: float) -> Message:
        asked = content.get("asked", ConfigRecord())
        asked["config"] = self.config
        content["asked"] = asked
        build = getattr(self.grid, "message", Message)
        return build(content=content, dst_node_id=node, message_type=kind, ttl=timeout)
