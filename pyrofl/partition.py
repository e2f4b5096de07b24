"""Kinds of partition: which client holds which rows of a data set.

A kind is a pure function `(y, clients, rng, *, options) -> parts`; part i holds the row numbers of client i,
ascending. Parts are disjoint, and they cover every row except where the kind says that some are left over
(`step`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .config import arguments
from .data import Dataset
from .dealing import Parts, at_least, even, feasible, positive, proportions, shares
from .label_skew import classes, dirichlet, dirichlet_clients, step
from .random import fold, generator
from .suggest import choose


def iid(y: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
    """All rows at random; sizes differ by at most one."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(y)), clients)]


def shards(y: np.ndarray, clients: int, rng: np.random.Generator, *, per_client: int = 2) -> Parts:
    """Rows sorted by label, cut into per_client x K shards and dealt at random; sizes differ by at most one.

    A client sees about `per_client` labels, more where a shard straddles a border. Targets that are not
    classes are sorted by value.

    Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, 2017, section 3 (pathological non-IID).
    """
    at_least(per_client, 1, "per_client")
    owner = rng.permutation(np.repeat(np.arange(clients), per_client))  # of each shard, in label order
    size = np.empty_like(owner)
    size[np.argsort(owner, kind="stable")] = [s for n in even(len(y), clients) for s in even(n, per_client)]
    shuffled = rng.permutation(len(y))
    order = shuffled[np.argsort(np.asarray(y)[shuffled], kind="stable")]
    pieces = np.split(order, np.cumsum(size)[:-1])
    return [np.sort(np.concatenate([pieces[s] for s in np.flatnonzero(owner == k)])) for k in range(clients)]


def quantity(
    y: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    minimum: int = 1,
    sizes: Sequence[float] | None = None,
) -> Parts:
    """Sizes differ, labels do not: all clients get `minimum` rows, and the rest is shared as Dir(alpha 1_K).

    `sizes` gives the shares instead, one a client, such as [4, 4, 1, 1].
    """
    if sizes is not None:
        share = np.asarray(sizes, dtype=float)
        if share.shape != (clients,) or not (np.isfinite(share).all() and share.min() >= 0 < share.sum()):
            raise ValueError(f"sizes must be {clients} shares, none negative, not all 0, got {list(sizes)}")
        counts = shares(share, len(y))
    else:
        positive(alpha, "alpha")
        at_least(minimum, 0, "minimum")
        feasible(minimum, clients, len(y))
        counts = minimum + shares(proportions(np.full(clients, alpha), rng), len(y) - minimum * clients)
    return [np.sort(part) for part in np.split(rng.permutation(len(y)), np.cumsum(counts)[:-1])]


def site(y: np.ndarray, clients: int, rng: np.random.Generator, *, site: np.ndarray) -> Parts:
    """Natural clients: every row stays at the site (0..clients-1) that it comes from; nothing is drawn."""
    site = np.asarray(site)
    if site.shape != (len(y),):
        raise ValueError(f"site has shape {site.shape}: it must name the site of each of the {len(y)} rows")
    if len(site) and not (site.min() >= 0 and site.max() < clients):
        raise ValueError(f"sites {site.min()} to {site.max()} do not fit {clients} clients, numbered from 0")
    return [np.flatnonzero(site == k) for k in range(clients)]


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_clients": dirichlet_clients,
    "step": step,
    "shards": shards,
    "classes": classes,
    "quantity": quantity,
    "site": site,
}


def partition(dataset: Dataset, *, key: Tensor, clients: int | None, split: Mapping[str, Any]) -> Parts:
    """Row numbers of each client by a table such as `{ kind = "dirichlet", alpha = 0.1, minimum = 10 }`."""
    if "kind" not in split:
        raise ValueError(f"the split names no kind: choose one of {', '.join(PARTITIONS)}")
    kind = split["kind"]
    choose(kind, PARTITIONS, "split kind")
    by_site = "site" in inspect.signature(PARTITIONS[kind]).parameters
    if by_site and dataset.site is None:
        raise ValueError(f"split kind {kind!r} needs natural clients, and this data set has none")
    if by_site and clients not in (None, len(dataset.sites)):
        raise ValueError(f"there are {len(dataset.sites)} natural clients: leave out clients = {clients}")
    clients = len(dataset.sites) if by_site else clients
    if clients is None or clients < 1:
        raise ValueError(f"split kind {kind!r} needs a number of clients of at least 1, got {clients}")
    given = {"y": dataset.y.numpy(), "clients": clients, "rng": generator(fold(key, "partition"))}
    if by_site and dataset.site is not None:
        given["site"] = dataset.site.numpy()
    options = {k: v for k, v in split.items() if k != "kind"}
    if own := [k for k in options if k in given]:
        raise ValueError(f"split.{own[0]} is known from the data set and the number of clients: leave it out")
    return PARTITIONS[kind](**arguments(PARTITIONS[kind], options, where="split", given=given))
