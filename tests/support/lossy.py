"""An in-memory grid that loses replies. Needs Flower: import it after `pytest.importorskip("flwr")`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from flwr.app import Context, Message

from pyrofl.flower.grid import LocalGrid


class Lossy(LocalGrid):
    """`lost(round)` says which nodes lose their replies to the training messages of a round, 1, 2, ..."""

    def __init__(self, app: Any, contexts: dict[int, Context], lost: Callable[[int], Collection[int]]):
        super().__init__(app, contexts)
        self.lost, self.round = lost, 0

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        self.round += bool(messages) and messages[0].metadata.message_type == "train"
        return super().push_messages(messages)

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id in self.lost(self.round):
            reply.content.clear()
        return reply
