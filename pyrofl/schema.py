"""What the sites of a federation agree on before any of them shows a row: names, shapes and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .data import Client, Data, Dataset, Federation

KINDS = ("categorical", "bernoulli", "gaussian", "poisson")


@dataclass(frozen=True)
class Schema:
    """The table `schema` of a configuration: the sites in the order of their ids, and the shape of a row."""

    sites: tuple[str, ...]
    shape: tuple[int, ...]
    likelihood: str
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise ValueError(f"schema.sites must name each site once, got {list(self.sites)}")
        if self.likelihood not in KINDS:
            raise ValueError(f"schema.likelihood must be one of {', '.join(KINDS)}, got {self.likelihood!r}")

    def table(self) -> dict[str, Any]:
        """As it is written in a configuration."""
        return {"sites": list(self.sites), **_kind(self.shape, self.likelihood, self.classes)}

    def reason(self, dataset: Dataset) -> str | None:
        """Why rows of this data set do not fit, or None."""
        mine = _kind(dataset.x.shape[1:], dataset.likelihood, dataset.classes)
        for key, expected in _kind(self.shape, self.likelihood, self.classes).items():
            if mine[key] != expected:
                return f"{key} is {mine[key]} here and {expected} in the federation's schema"
        return None

    def at(self, dataset: Dataset, site: str) -> Dataset:
        """One site's rows as the federation numbers its sites."""
        if site not in self.sites:
            raise ValueError(f"site {site!r} is none of the federation's: {', '.join(self.sites)}")
        if reason := self.reason(dataset):
            raise ValueError(f"the data of site {site} do not fit: {reason}")
        if dataset.site is not None and (named := _named(dataset)) != [site]:
            raise ValueError(
                f"the rows are those of {', '.join(named) or 'nobody'}, and not of {site}: name this site's own file"
            )
        number = torch.full((len(dataset.y),), self.sites.index(site))
        return replace(dataset, site=number, sites=self.sites)

    def whole(self, dataset: Dataset) -> Dataset:
        """The rows of all sites together, as where a federation is rehearsed in one place."""
        if reason := self.reason(dataset):
            raise ValueError(f"the data do not fit: {reason}")
        if dataset.sites != self.sites:
            whose = f"are of {', '.join(dataset.sites)}" if dataset.sites else "name no sites"
            raise ValueError(f"the data {whose}, the schema's are of {', '.join(self.sites)}")
        return dataset

    def empty(self) -> Dataset:
        """Two rows of zeros, so that a model can be traced where no site's rows are."""
        real = self.likelihood in ("gaussian", "poisson")
        y = torch.zeros(2, dtype=torch.float32 if real else torch.int64)
        return Dataset(torch.zeros(2, *self.shape), y, self.likelihood, self.classes, sites=self.sites)

    def federation(self) -> Federation:
        """The federation as the server sees it: sites without rows."""
        none = self.empty()
        y = none.y.float() if self.likelihood == "bernoulli" else none.y
        blank = Data(none.x[:0], y[:0], torch.tensor(0))
        clients = tuple(Client(name, blank, blank) for name in self.sites)
        return Federation(clients, self.likelihood, self.classes)


def _kind(shape: Sequence[int], likelihood: str, classes: Sequence[str]) -> dict[str, Any]:
    return {"shape": list(shape), "likelihood": likelihood, "classes": list(classes)}


def _named(dataset: Dataset) -> list[str]:
    """The sites of which there are rows, as the data name them."""
    assert dataset.site is not None
    return [dataset.sites[int(k)] for k in torch.unique(dataset.site)]
