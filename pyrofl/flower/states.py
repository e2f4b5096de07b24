"""A site's own states: what a method keeps at its client, by the receipt that the server holds for it.

A receipt is the key of the local update that made the state. The server names the receipt of the last reply that it
committed; only a state that it has moved on from is deleted. So a reply that was lost or refused, and a server resumed
from its last round, find the state that they start from.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, Context

from ..store import load_tree, save_tree, write
from ..tree import Tree
from .records import record, tree

_SUFFIX = ".safetensors"


class States(Protocol):
    """Own states by receipt."""

    def get(self, receipt: int) -> Tree | None: ...
    def put(self, receipt: int, state: Tree) -> None: ...
    def keep(self, receipt: int) -> None:
        """Drop all but this one."""

    def secret(self) -> bytes:
        """32 random bytes that never leave the site, the same each time."""

    def agree(self, receipt: int, terms: bytes) -> bool:
        """Agree to `terms` under this receipt; False where other terms were agreed to under it."""


class InContext:
    """States in Flower's `Context.state`, which lasts as long as the node's part in one run of Flower."""

    def __init__(self, context: Context):
        self._records = context.state

    def get(self, receipt: int) -> Tree | None:
        found = self._records.get(_name(receipt))
        return None if found is None else tree(found)

    def put(self, receipt: int, state: Tree) -> None:
        self._records[_name(receipt)] = record(state)

    def secret(self) -> bytes:
        if "secret" not in self._records:
            self._records["secret"] = ConfigRecord({"secret": secrets.token_bytes(32)})
        return bytes(self._records["secret"]["secret"])

    def agree(self, receipt: int, terms: bytes) -> bool:
        last = self._records.get("agreed", ConfigRecord())
        self._records["agreed"] = last if last.get("receipt") == receipt else _agreed(receipt, terms)
        return bool(self._records["agreed"]["terms"] == terms)

    def keep(self, receipt: int) -> None:
        for name in [n for n in self._records if n.startswith("own-") and n != _name(receipt)]:
            del self._records[name]


class InFolder:
    """States as files of the site's own folder: they outlast the SuperNode and the run of Flower."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, receipt: int) -> Tree | None:
        path = self._path(receipt)
        return load_tree(path)[0] if path.exists() else None

    def put(self, receipt: int, state: Tree) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tree(self._path(receipt), state)

    def keep(self, receipt: int) -> None:
        for path in self.folder.glob(f"own-*{_SUFFIX}"):
            if path != self._path(receipt):
                path.unlink(missing_ok=True)

    def secret(self) -> bytes:
        path = self.folder / "secret"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write(path, secrets.token_bytes(32))
            path.chmod(0o600)
        return path.read_bytes()

    def agree(self, receipt: int, terms: bytes) -> bool:
        path, key = self.folder / "agreed", _name(receipt).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not path.read_bytes().startswith(key):
            write(path, key + terms)
        return path.read_bytes() == key + terms

    def _path(self, receipt: int) -> Path:
        return self.folder / f"{_name(receipt)}{_SUFFIX}"


def _agreed(receipt: int, terms: bytes) -> ConfigRecord:
    return ConfigRecord({"receipt": receipt, "terms": terms})


def _name(receipt: int) -> str:
    return f"own-{receipt & ((1 << 64) - 1):016x}"
