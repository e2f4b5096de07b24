"""What lies on disk: safetensors for trees, and a run directory whose server file is the commit.

Every write goes to a temporary file, is flushed to the disk and then renamed. A round is committed by the server file,
written last: client files of a later round, and rows appended after it, are dropped on opening. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
import tomllib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

try:
    import fcntl
except ModuleNotFoundError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

from .federation import Holding
from .metrics import Bins
from .tree import Tree, nbytes

FORMAT = "pyrofl-1"
COLUMNS = ("round", "client", "split", "metric", "value")
CHECKS = "checks.csv"  # of the posterior, written by `pyrofl evaluate`


def write(path: Path, *content: bytes | memoryview) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as f:
            for piece in content:
                f.write(piece)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _locked(handle: int) -> bool:
    """Lock an open directory; False where another process holds the lock. File systems without locks lock nothing."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def save_tree(path: Path, tree: Tree, metadata: Mapping[str, str] | None = None) -> None:
    """A tree as safetensors, on the CPU, in one step."""
    plain = {k: v.detach().cpu().contiguous().clone() for k, v in tree.items()}
    write(path, *_in_order(to_bytes(plain, {"format": FORMAT, **(metadata or {})})))


def _in_order(content: bytes) -> tuple[bytes, memoryview]:
    """(head, tensors) of the same file with its metadata by name: safetensors writes them in a random order.

    The head is 8 bytes of length, then JSON, padded with spaces to a multiple of 8.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:end])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, memoryview(content)[end:]


def load_tree(path: Path, device: torch.device | str = "cpu") -> tuple[Tree, dict[str, str]]:
    """(tree, metadata) of a file of `save_tree`."""
    with _readable(path), safe_open(path, framework="pt", device=str(device)) as f:
        return {k: f.get_tensor(k) for k in f.keys()}, dict(f.metadata() or {})  # noqa: SIM118


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of reading a safetensors file, in words that name it."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error})") from None


def check_like(tree: Tree, like: Tree, what: str) -> None:
    """Raise unless both trees have the same names, shapes and dtypes; the message names the first that differs."""
    for name in sorted(tree.keys() | like.keys()):
        if name not in tree or name not in like:
            where = "has" if name in tree else "lacks"
            raise ValueError(
                f"{what} {where} tensor {name!r}, unlike this model: it was made with another configuration"
            )
        a, b = tree[name], like[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"{what}: tensor {name!r} is {tuple(a.shape)} {a.dtype}, this model has {tuple(b.shape)} {b.dtype}"
            )


class Row(NamedTuple):
    """One line of metrics.csv."""

    round: int
    client: str
    split: str
    metric: str
    value: float | None  # None: undefined, for example the AUROC of one class


_CLIENT = re.compile(r"(\d+)-r(\d+)\.safetensors")


class Record(NamedTuple):
    """Arrays that an evaluation keeps, and short texts about them."""

    values: Mapping[str, Tensor | np.ndarray]
    notes: Mapping[str, str] = {}


def identity_of(meta: Mapping[str, str]) -> str:
    """The identity of the configuration that made a commit, from the commit's metadata."""
    return meta.get("identity", '""').strip('"')


class RunDirectory:
    """`runs/NAME/`: config.toml, server.safetensors, clients/ID-rROUND.safetensors, metrics.csv, and records."""

    def __init__(self, path: Path):
        self.path = path
        self.server, self.metrics, self.config = (
            path / name for name in ("server.safetensors", "metrics.csv", "config.toml")
        )
        self.clients, self.timings, self.partition = path / "clients", path / "timings.csv", path / "partition.csv"

    def create(self, config: str) -> None:
        """Make the directory; one that already holds a run is refused."""
        self.refuse_existing()
        self.clients.mkdir(parents=True, exist_ok=True)
        write(self.metrics, (",".join(COLUMNS) + "\n").encode())
        write(self.config, config.encode())

    @contextmanager
    def at_work(self, patience: float = 0.0) -> Iterator[None]:
        """Where this process trains here; a second one is refused, after `patience` seconds of waiting for the first.

        The lock ends with the process, however it ends.
        """
        if not self.path.is_dir() or fcntl is None:
            yield
            return
        handle, end = os.open(self.path, os.O_RDONLY), time.monotonic() + patience
        try:
            while not _locked(handle):
                if time.monotonic() >= end:
                    raise ValueError(
                        f"another process trains in {self.path}: wait until it has ended, or give another folder"
                    )
                time.sleep(0.2)
            yield
        finally:
            os.close(handle)

    def table(self) -> dict[str, Any]:
        """The configuration of the run that is here."""
        try:
            found = tomllib.loads(self.config.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.config}: not valid TOML: {error}") from None
        for key in ("method", "rounds"):
            if key not in found:
                raise ValueError(f"{self.config} has no {key}: it is not the configuration that the run wrote")
        return found

    def rewrite(self, config: str) -> None:
        """Replace the configuration of the run that is here."""
        write(self.config, config.encode())

    def clear(self) -> None:
        """Remove the run that is here, its commit first; other files stay."""
        states = self.clients.glob("*-r*.safetensors") if self.clients.is_dir() else ()
        made = (f for p in ("reliability-*.csv", "rows-*.safetensors", "draws*.nc") for f in self.path.glob(p))
        others = (self.partition, self.path / "posteriors.safetensors", self.path / CHECKS)
        for path in (self.server, self.metrics, self.timings, self.config, *others, *states, *made):
            path.unlink(missing_ok=True)

    def refuse_existing(self) -> None:
        """Raise if a run is here already."""
        if self.config.exists():
            raise FileExistsError(
                f"{self.path} already holds a run: go on with `pyrofl resume {self.path}`, choose another --out, "
                "or give --overwrite"
            )

    def refuse_lost(self) -> None:
        """Raise if rounds were recorded here and the server file, their commit, is gone."""
        header = len(",".join(COLUMNS)) + 1
        if not self.server.exists() and self.metrics.exists() and self.metrics.stat().st_size > header:
            raise ValueError(
                f"{self.server} is missing, though {self.metrics} holds rounds: put it back from a copy, or start "
                f"again with `pyrofl run {self.config} --out {self.path} --overwrite`"
            )

    def look(self) -> tuple[int, Tree, dict[str, str]]:
        """(last committed round, server tree, metadata), read without changing anything."""
        self.refuse_lost()
        if not self.server.exists():
            raise ValueError(f"{self.path} holds no round yet: wait for the first one")
        tree, meta = load_tree(self.server)
        return self._commit_of(meta)[0], tree, meta

    def _commit_of(self, meta: Mapping[str, str]) -> tuple[int, int]:
        """(round, bytes of metrics.csv) of a commit, whose rows must be there."""
        if meta.get("format") != FORMAT:
            raise ValueError(f"{self.server}: format {meta.get('format')!r}, this version reads {FORMAT!r}")
        if not {"round", "metrics_bytes"} <= meta.keys():
            raise ValueError(f"{self.server} says no round: it is no server file of a run")
        kept, size = int(meta["metrics_bytes"]), self.metrics.stat().st_size
        if size < kept:
            raise ValueError(f"{self.metrics} has {size} bytes, {kept} were committed: it was changed after the run")
        return int(meta["round"]), kept

    def open(self) -> tuple[int, Tree, dict[str, str]]:
        """What `look` gives, after dropping what is newer than the commit: for the one process that trains here."""
        committed, tree, meta = self.look()
        kept = int(meta["metrics_bytes"])
        if self.metrics.stat().st_size > kept:
            os.truncate(self.metrics, kept)
        for half in (*self.path.glob(".*.tmp"), *self.clients.glob(".*.tmp")):
            half.unlink()
        for i, rounds in self._client_rounds().items():
            newest = max((r for r in rounds if r <= committed), default=None)
            for r in rounds:
                if r != newest:
                    self._client(i, r).unlink()
        return committed, tree, meta

    def committed(self) -> tuple[int, int]:
        """(last committed round, bytes of metrics.csv that belong to it), read without changing anything."""
        if not self.server.exists():
            raise ValueError(f"{self.path} holds no round yet: wait for the first one")
        with _readable(self.server), safe_open(self.server, framework="pt") as f:
            return self._commit_of(f.metadata() or {})

    def identity(self) -> str | None:
        """The identity of the configuration that made the last commit, None where nothing is committed."""
        if not self.server.exists():
            return None
        with _readable(self.server), safe_open(self.server, framework="pt") as f:
            return identity_of(f.metadata() or {})

    def append(self, rows: Iterable[Row]) -> int:
        """Append rows; returns the file's size in bytes, which the commit records."""
        with open(self.metrics, "a", newline="") as f:
            out = csv.writer(f, lineterminator="\n")
            out.writerows((*r[:4], "" if r.value is None else repr(float(r.value))) for r in rows)
            f.flush()
            os.fsync(f.fileno())
            return f.tell()

    def commit(self, round: int, server: Tree, metrics_bytes: int, extra: Mapping[str, object]) -> None:
        """Make `round` the last committed one."""
        meta = {
            "round": str(round),
            "metrics_bytes": str(metrics_bytes),
            **{k: json.dumps(v) for k, v in extra.items()},
        }
        save_tree(self.server, server, meta)

    def log_time(self, round: int, seconds: float, local_seconds: float) -> None:
        """Append to timings.csv: wall times differ between runs, so they stay out of metrics.csv."""
        new = not self.timings.exists()
        with open(self.timings, "a", newline="") as f:
            if new:
                f.write("round,seconds,local_seconds\n")
            f.write(f"{round},{seconds:.6f},{local_seconds:.6f}\n")

    def save_partition(self, lines: Sequence[Holding], classes: Sequence[str]) -> None:
        """Who holds what: `client, train, test`, and the training rows of each class."""
        text = io.StringIO(newline="")
        out = csv.writer(text, lineterminator="\n")
        out.writerow(("client", "train", "test", *classes))
        out.writerows((h.name, h.train, h.test, *h.classes) for h in lines)
        write(self.partition, text.getvalue().encode())

    def save_record(self, name: str, record: Record, round: int) -> None:
        """What the evaluation of a round keeps, `NAME.safetensors`: floats as float32. Nothing leaves no file."""
        if record.values:
            tensors = {k: torch.as_tensor(v) for k, v in record.values.items()}
            kept = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
            save_tree(self.path / f"{name}.safetensors", kept, {**record.notes, "round": str(round)})

    def load_record(self, name: str) -> tuple[int, Record] | None:
        """(round, what `save_record` wrote), or None."""
        path = self.path / f"{name}.safetensors"
        if not path.exists():
            return None
        tree, notes = load_tree(path)
        return int(notes["round"]), Record({k: v.numpy() for k, v in tree.items()}, notes)

    def save_bins(self, model: str, table: Bins) -> None:
        """The reliability table of the last evaluation, `reliability-MODEL.csv`."""
        lines = ["low,high,rows,weight,confidence,accuracy"]
        edges = zip(table.edges[:-1], table.edges[1:])
        for (low, high), *rest in zip(edges, table.rows, table.weight, table.confidence, table.accuracy):
            lines.append(",".join(repr(float(v)) for v in (low, high, *rest)))
        write(self.path / f"reliability-{model}.csv", ("\n".join(lines) + "\n").encode())

    def load_bins(self, model: str) -> Bins | None:
        """What `save_bins` wrote, or None."""
        path = self.path / f"reliability-{model}.csv"
        if not path.exists():
            return None
        try:
            low, high, rows, weight, confidence, accuracy = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2).T
        except ValueError as error:
            raise ValueError(f"{path}: not a readable table of bins ({error})") from None
        return Bins(np.append(low, high[-1]), rows.astype(np.int64), weight, confidence, accuracy)

    def _client(self, client: int, round: int) -> Path:
        return self.clients / f"{client}-r{round}.safetensors"

    def _client_rounds(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for entry in os.scandir(self.clients):
            if m := _CLIENT.fullmatch(entry.name):
                found.setdefault(int(m[1]), []).append(int(m[2]))
        return found

    def states(self, device: torch.device, memory: int = 256 << 20, *, committed: int | None = None) -> States:
        """The clients' own states of the last commit, those newer than the round `committed` left aside."""
        old = {i: [r for r in n if committed is None or r <= committed] for i, n in self._client_rounds().items()}
        known = {i: max(rounds) for i, rounds in old.items() if rounds}
        return States(directory=self, known=known, device=device, memory=memory)


class States:
    """The clients' own states: in memory, or on disk with the recently used ones in memory (at most `memory` bytes)."""

    def __init__(
        self,
        *,
        directory: RunDirectory | None = None,
        known: dict[int, int] | None = None,
        device: torch.device | str = "cpu",
        memory: int | None = None,
    ):
        self._directory, self._rounds, self._device = directory, known or {}, device
        self._memory, self._used = memory, 0
        self._recent: OrderedDict[int, Tree] = OrderedDict()
        self._old: list[Path] = []

    def known(self) -> list[int]:
        """Clients whose states are on disk, ascending."""
        return sorted(self._rounds)

    def get(self, client: int) -> Tree | None:
        """A client's state, or None if it has none yet."""
        if client in self._recent:
            self._recent.move_to_end(client)
            return self._recent[client]
        if self._directory is None or client not in self._rounds:
            return None
        path = self._directory._client(client, self._rounds[client])
        try:
            tree, _ = load_tree(path, self._device)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: no such file; if the run is still training, it went on while it was read: try again"
            ) from None
        self._keep(client, tree)
        return tree

    def put(self, client: int, tree: Tree, round: int) -> None:
        """Store a new state; on disk it lies beside the old one until `commit`."""
        if not tree:
            return
        if self._directory is not None:
            save_tree(self._directory._client(client, round), tree)
            if client in self._rounds:
                self._old.append(self._directory._client(client, self._rounds[client]))
            self._rounds[client] = round
        self._keep(client, tree)

    def commit(self) -> None:
        """The server file is written: the states that it replaced may go."""
        for path in self._old:
            path.unlink(missing_ok=True)
        self._old.clear()

    def _keep(self, client: int, tree: Tree) -> None:
        if client in self._recent:
            self._used -= nbytes(self._recent.pop(client))
        self._recent[client] = tree
        self._used += nbytes(tree)
        while (
            self._directory is not None
            and self._memory is not None
            and self._used > self._memory
            and len(self._recent) > 1
        ):
            _, dropped = self._recent.popitem(last=False)
            self._used -= nbytes(dropped)


def read_metrics(path: Path, size: int | None = None) -> Sequence[Row]:
    """The rows of a metrics.csv, or of its first `size` bytes: a run that goes on may be writing the next line."""
    with io.StringIO(path.read_bytes()[:size].decode(), newline="") as f:
        return [
            Row(
                int(r["round"]),
                r["client"],
                r["split"],
                r["metric"],
                float(r["value"]) if r["value"] else None,
            )
            for r in csv.DictReader(f)
        ]
