"""What a client does when a message comes: the method's hooks on its own rows, with its own state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .. import evaluate, secure
from ..data import Data
from ..messages import Messages
from ..method import Reply
from ..methods.fedavg import FedAvg
from ..privacy import keyed_noise, secret_noise
from ..random import fold
from ..run import evaluation_key, personal_key
from ..tree import Tree
from .records import record
from .states import States

Scores = dict[str, dict[str, float | None]]  # "personal" or "global" -> score -> value


class Sum(NamedTuple):
    """What a site is asked to be a term of."""

    sites: list[int]
    keys: list[bytes]  # their public keys of this round
    share: float  # what this site's update is multiplied with


@dataclass(frozen=True)
class Site:
    """One client, on its own machine: rows and states stay here."""

    messages: Messages
    client: int  # its id in the federation
    name: str
    train: Data
    test: Data
    states: States
    secretive: bool = False  # whether noise comes from the site's secret; a simulation's can be repeated

    @property
    def method(self) -> FedAvg:
        return self.messages.method

    def counts(self) -> tuple[int, int]:
        """(training rows, test rows) as the server may know them: under privacy, whether there are any."""
        rows, tests, privacy = self.train.rows, self.test.rows, self.messages.privacy
        return (rows, tests) if privacy is None else (min(rows, 1), min(tests, 1) if privacy.scores else 0)

    def public_key(self, key: Tensor) -> bytes:
        """This site's public key for the sum of one round."""
        return secure.public_key(self.states.secret(), _bytes(key))

    def update(self, down: Tree, key: Tensor, after: int | None, into: Sum | None = None) -> Reply:
        """The client's local update, from the own state with the receipt `after` (None: its first).

        `up` is as it travels: protected, and compressed, or masked for the sum that it goes `into`.
        """
        reply = self.method.local(down, self.own(down, after), self.train, key)
        if (privacy := self.messages.privacy) is not None:
            reply = privacy.reply(reply, down, self._noise(reply.up, down, key, after))
        if after is not None:
            self.states.keep(after)
        if reply.own:
            self.states.put(int(key), reply.own)
        if self.messages.secure is None:
            return reply._replace(up=self.messages.encode(reply.up, down, key))
        if into is None:
            raise ValueError("the server asks for a plain update where the configuration says secure: refused")
        return reply._replace(up=self._masked(reply.up, down, key, into))

    def _masked(self, up: Tree, down: Tree, key: Tensor, into: Sum) -> Tree:
        """The update under masks, once: of two sums that differ by a site the difference would be its update."""
        assert self.messages.secure is not None
        keys = dict(zip(into.sites, into.keys, strict=True))
        if not 0 < into.share <= len(keys):
            raise ValueError(f"the server asks for {into.share} times the update of one of {len(keys)} sites: refused")
        if not self.states.agree(int(key), digest(down) + repr(into).encode()):
            raise ValueError(f"site {self.name} has answered this round already, for a sum of other sites: refused")
        codes = self.messages.codes(up, down, into.share)
        least = self.messages.secure.least
        return secure.masked(codes, self.client, keys, self.states.secret(), _bytes(key), least=least)

    def _noise(self, like: Tree, down: Tree, key: Tensor, after: int | None) -> Tree:
        if not self.secretive:
            return keyed_noise(like, key)
        return secret_noise(like, self.states.secret(), digest(down), repr((int(key), after)).encode())

    def own(self, down: Tree, after: int | None) -> Tree:
        if after is None:
            return self.method.join(down)
        kept = self.states.get(after)
        if kept is None:
            raise LookupError(
                f"site {self.name} does not have the own state that the server last acknowledged: put its state folder "
                "back, or start a new run"
            )
        return kept

    def scores(
        self, down: Tree, common: Tree | None, root: Tensor, round: int, draws: int, after: int | None
    ) -> Scores:
        """Scores of the client's own and of the server's model on the client's test rows."""
        theta = self.method.personal(down, self.own(down, after), self.train, personal_key(root, round, self.client))
        models = {"personal": theta, **({} if common is None else {"global": common})}
        key, kind, out = evaluation_key(root, round), self.method.program.kind, {}
        for model, theta in models.items():
            at = fold(key, model, self.client)
            arrays = evaluate.predict(self.method, theta, self.test, at, draws=draws, client=self.name)
            if arrays:
                out[model] = evaluate.score(kind, {self.name: arrays})[self.name]
        return out


def _bytes(key: Tensor) -> bytes:
    return int(key).to_bytes(8, "little", signed=True)


def digest(tree: Tree) -> bytes:
    """A hash of a tree's names and bits."""
    sha = hashlib.sha256()
    for name in sorted(tree):
        array = record({name: tree[name]})[name]
        sha.update(repr((name, array.dtype, array.shape)).encode() + array.data)
    return sha.digest()


def as_key(value: int) -> Tensor:
    """A key that has travelled as an integer."""
    return torch.tensor(value, dtype=torch.int64)
