"""What a client's reply goes through on its way to the server: protection, then compression or masks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .averaged import Averaged
from .compression import Compression
from .data import Data
from .method import Reply
from .methods.fedavg import FedAvg
from .privacy import Privacy, keyed_noise
from .secure import Secure
from .tree import Tree


@dataclass(frozen=True)
class Messages:
    """A method's messages. `local` is the method's own, followed by all that happens on the way to the server."""

    method: FedAvg
    compression: Compression
    privacy: Privacy | None = None
    secure: Secure | None = None
    averaged: Averaged | None = None  # what `secure` sums; None: the messages as they are

    @classmethod
    def plain(cls, method: FedAvg) -> Messages:
        return cls(method, Compression(method.program))

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        """The client's reply as it reaches the server; for engines that hold the clients in their own process."""
        reply = self.method.local(down, own, data, key)
        if self.privacy is not None:
            reply = self.privacy.reply(reply, down, keyed_noise(reply.up, key))
        if self.secure is not None:  # the masks cancel in the sum: what stays is the rounding
            z = self.secure.rounded(self._averaged.of(reply.up), self._averaged.of(down))
            return reply._replace(up=self._averaged.back(z, self.method.message(down)))
        if self.compression.kind == "none":
            return reply
        return reply._replace(up=self.decode(self.encode(reply.up, down, key), down))

    def spent(self, rounds: int) -> dict[str, float]:
        """The account of privacy after so many rounds: epsilon for whoever reads a client's messages; and, where only
        sums can be read, for whoever reads those and knows the noise of one site at most: the server, or a site.
        """
        if self.privacy is None:
            return {}
        spent = {"epsilon": self.privacy.spent(rounds)}
        if self.secure is not None:
            spent["epsilon_of_sums"] = self.privacy.spent_on_average(rounds, self.secure.least - 1)
        return spent

    def encode(self, up: Tree, down: Tree, key: Tensor) -> Tree:
        return self.compression.encode(up, down, key)

    def decode(self, sent: Tree, down: Tree) -> Tree:
        return self.compression.decode(sent, down, self.method.message(down))

    def wire(self, down: Tree) -> Tree:
        """Names, shapes and dtypes of what travels in answer to `down`."""
        message = self.method.message(down)
        return self.compression.wire(message) if self.secure is None else self.secure.wire(message)

    # ------------------------------------------------------------------ secure sums

    @property
    def _averaged(self) -> Averaged:
        return self.averaged or Averaged(self.method.program)

    def shares(self, n: Tensor) -> Tensor:
        """What each of C sites multiplies its message with, so that the sum's C-th part is the server's mean, (C,)."""
        return self._averaged.shares(n)

    def codes(self, up: Tree, down: Tree, share: float) -> Tree:
        """A site's term of the sum, before masks; refused where it is out of range."""
        assert self.secure is not None
        z, z0 = self._averaged.of(up), self._averaged.of(down)
        if reason := self.secure.reason(self.secure.encode(z, z0)):
            raise ValueError(reason)
        return self.secure.encode(z, z0, share)

    def of_sum(self, total: Tree, count: int, down: Tree) -> Tree:
        """The message that stands for each of `count` sites, from the sum of their terms."""
        assert self.secure is not None
        like = self.method.message(down)
        z = self.secure.decode_mean(total, count, self._averaged.of(down), self._averaged.of(like))
        return self._averaged.back(z, like)
