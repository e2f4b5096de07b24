"""A run as it lies on disk, read without changing anything: it may still be training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ..compare import Finished, read_table
from ..evaluate import CLASSES
from ..metrics import summary
from ..metrics.clients import Summary
from ..store import CHECKS, Record, RunDirectory

Rows = Mapping[str, Any]  # name -> (B,) array


@dataclass(frozen=True)
class Recorded:
    """A run up to its last committed round."""

    name: str
    table: Finished
    round: int
    prefix: str = ""  # of captions, where there are several runs

    @classmethod
    def read(cls, path: Path, name: str, *, prefix: str = "") -> Recorded:
        table = Finished.read(path)
        return cls(name, table, table.directory.committed()[0], prefix)

    def say(self, text: str) -> str:
        """A sentence or caption about this run, which it names where there are others."""
        return f"{self.prefix}{text}" if self.prefix else text[:1].upper() + text[1:]

    @property
    def directory(self) -> RunDirectory:
        return self.table.directory

    @property
    def metrics(self) -> pd.DataFrame:
        return self.table.metrics

    @cached_property
    def text(self) -> str:
        """The configuration as it was resolved."""
        return self.directory.config.read_text()

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.directory.table()

    @property
    def rounds(self) -> int:
        return int(self.config["rounds"])

    @property
    def commands(self) -> str:
        """The command that began the run, and those that went on with it, a line each."""
        return "\n".join(re.findall(r"^# command: (.+)$", self.text, re.MULTILINE))

    @cached_property
    def checks(self) -> pd.DataFrame | None:
        """The checks of the posterior, a row a client, where `pyrofl evaluate` has written them at this round."""
        path = self.directory.path / CHECKS
        frame = read_table(path, ("client", "round"), index_col="client") if path.exists() else None
        return None if frame is None or frame["round"].iloc[0] != self.round else frame.drop(columns="round")

    @property
    def scored(self) -> int | None:
        """The last round that was evaluated."""
        test = self.metrics[self.metrics["split"] == "test"]
        return None if test.empty else int(test["round"].max())

    @cached_property
    def model(self) -> str:
        """The model that the report is about: the clients' own, or the only one there is."""
        return "personal" if self.last("personal", self.headline) else "global"

    @cached_property
    def headline(self) -> str:
        """The score that is named first."""
        return "accuracy" if self.of_classes else "rmse"

    @cached_property
    def of_classes(self) -> bool:
        named = self.config.get("likelihood", {}).get("name")  # a model with its own likelihood names none
        return named in CLASSES if named else not self.metrics["metric"].str.endswith("/rmse").any()

    def last(self, model: str, score: str) -> dict[str, float | None]:
        """Client -> value at the last evaluated round, without names in parentheses."""
        return {c: v for c, v in self.table.last(f"{model}/{score}").items() if not c.startswith("(")}

    def pooled(self, score: str) -> float | None:
        """The score of all test rows together."""
        return self.table.last(f"{self.model}/{score}").get("(pooled)")

    def summary(self, score: str, model: str | None = None) -> Summary:
        return summary(score, self.last(model or self.model, score))

    @cached_property
    def clients(self) -> list[str]:
        """All clients, in the order of their ids; of older runs, those with scores."""
        if self.partition is not None:
            return [str(c) for c in self.partition["client"]]
        return list(self.last(self.model, self.headline))

    @cached_property
    def partition(self) -> pd.DataFrame | None:
        """`client, train, test`, and the training rows of each class."""
        path = self.directory.partition
        if not path.exists():
            return None
        return read_table(path, ("client", "train", "test"), dtype={"client": str}, keep_default_na=False)

    @cached_property
    def rows(self) -> Rows:
        """What was kept of each test row's prediction at the last evaluation; empty where nothing was."""
        return self._record(f"rows-{self.model}").values

    def rows_of(self, client: str) -> Rows:
        here = self.rows["client"] == self.clients.index(client) if self.rows else []
        return {k: v[here] for k, v in self.rows.items()}

    @cached_property
    def posteriors(self) -> Record:
        """Widths, signal-to-noise ratios and distances of the clients' posteriors at the last evaluation."""
        return self._record("posteriors")

    def _record(self, name: str) -> Record:
        found = self.directory.load_record(name)
        return Record({}) if found is None or found[0] != self.scored else found[1]


def named(paths: list[Path]) -> list[Recorded]:
    """The runs, each under a name of its own."""
    names = [p.resolve().name for p in paths]
    if len(set(names)) < len(names):
        names = [str(p) for p in paths]
    return [Recorded.read(p, n, prefix=f"{n}: " if len(paths) > 1 else "") for p, n in zip(paths, names)]
