"""Flower nodes in this process: no server, no network, one node after the other."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import DEFAULT_TTL, Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

RAISED = 2  # Flower's code of a ClientApp that raised


class LocalGrid(Grid):
    """Every message is answered by the ClientApp when its reply is pulled; what the app raises is an error reply."""

    def __init__(self, app: ClientApp, contexts: Mapping[int, Context]):
        self.app, self.contexts = app, dict(contexts)
        self._waiting: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError("a LocalGrid belongs to no run of Flower")

    @property
    def run(self) -> Any:
        raise NotImplementedError("a LocalGrid belongs to no run of Flower")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError("a LocalGrid takes messages made by its own `message`")

    def message(self, *, content: RecordDict, dst_node_id: int, message_type: str, ttl: float | None = None) -> Message:
        """`Message(...)` of Flower needs a process of Flower's, whose run the message belongs to; this one does not."""
        metadata = Metadata(
            run_id=0,
            message_id=f"message-{next(self._numbers)}",
            src_node_id=0,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=ttl or DEFAULT_TTL,
            message_type=message_type,
        )
        return Message(content=content, metadata=metadata)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = {message.metadata.message_id: message for message in messages}
        self._waiting.update(pushed)
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to the first of the messages: one node works at a time."""
        first = next((i for i in message_ids if i in self._waiting), None)
        return [] if first is None else [self.answer(self._waiting.pop(first))]

    def answer(self, message: Message) -> Message:
        """What the node replies."""
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = "".join(traceback.format_exception(error))
            return Message(Error(RAISED, reason), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self.answer(self._waiting.pop(i)) for i in self.push_messages(messages)]
