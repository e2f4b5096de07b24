"""Partitions by class: each kind makes a matrix of counts (clients, classes) and deals out rows by it.

Signature and promises are those of `pyrofl.partition`. Targets that are not classes are refused.
"""

from __future__ import annotations

import numpy as np

from .dealing import Parts, at_least, deal, draw, even, feasible, positive, proportions, repair, shares


def dirichlet(
    y: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    minimum: int = 10,
    balance: bool = True,
    retries: int = 100,
) -> Parts:
    """Class-wise label skew: each class is split over the clients in proportions Dir(alpha 1_K).

    Sizes differ. `balance` closes a client for the remaining classes once it holds N/K rows, as the reference
    does: sizes become more even, and the last classes sit with fewer clients. The whole draw is repeated
    until every client has `minimum` rows. After `retries` draws the last one is repaired: random rows of the
    largest client move to the smallest, one at a time.

    Reference: Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, 2019, section 4.
    """
    codes, totals = _classes(y, "dirichlet")
    positive(alpha, "alpha")
    at_least(minimum, 0, "minimum")
    at_least(retries, 1, "retries")
    feasible(minimum, clients, len(y))
    for _ in range(retries):
        counts = _class_wise(totals, clients, rng, alpha, balance)
        if counts.sum(1).min() >= minimum:
            return deal(codes, counts, rng)
    return deal(codes, repair(counts, minimum, rng), rng)


def dirichlet_clients(
    y: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float, rotate: bool = False
) -> Parts:
    """Client-wise label skew: client k draws its rows by class proportions q_k ~ Dir(alpha p).

    Sizes differ by at most one. p holds the class proportions of the data set, so that the concentrations sum
    to alpha: the same alpha is far more skewed here than in `dirichlet`. A class that runs out has
    probability 0 from then on, and the others are renormalised. Clients draw one after the other; with
    `rotate` they take turns, one row each, so that the last are not left with the rest.

    Reference: Hsu, Qi, Brown, 2019, section 3.
    """
    codes, totals = _classes(y, "dirichlet_clients")
    positive(alpha, "alpha")
    q = [proportions(alpha * totals / totals.sum(), rng) for _ in range(clients)]  # K x (classes,)
    left, counts = totals.copy(), np.zeros((clients, len(totals)), dtype=np.int64)
    sizes = even(len(y), clients)
    turns = [(k, 1) for t in range(sizes.max()) for k in range(clients) if t < sizes[k]]
    for k, size in turns if rotate else enumerate(sizes):
        taken = draw(q[k], left, int(size), rng)
        counts[k] += taken
        left -= taken
    return deal(codes, counts, rng)


def step(
    y: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    majors: int = 2,
    minor: int = 10,
    major: int | None = None,
) -> Parts:
    """Major and minor classes: `major` rows of each of `majors` classes, `minor` rows of every other.

    Client k's major classes are floor(k C / K) + j mod C for j < majors: every class is major for equally
    many clients, give or take one; for 10 clients and 10 classes the pairs are {k, k+1 mod 10}. All clients
    have the same size. Without `major` it is the largest number that every class can supply. Rows beyond the
    design are left over.

    Reference: Chen, Chao, 2021 (FedBE), section 5: 10 clients with 2 x 1960 + 8 x 10 images of CIFAR-10.
    """
    codes, totals = _classes(y, "step")
    C = len(totals)
    if not 1 <= majors <= C:
        raise ValueError(f"majors = {majors}, and the data set has {C} classes: choose 1 to {C}")
    at_least(minor, 0, "minor")
    if minor > totals.min() // clients:
        raise ValueError(
            f"step: minor = {minor} for {clients} clients needs {clients * minor} rows of every class, and "
            f"the smallest class has {totals.min()}: the largest feasible minor is {totals.min() // clients}"
        )
    is_major = np.zeros((clients, C), dtype=bool)
    for k in range(clients):
        is_major[k, (k * C // clients + np.arange(majors)) % C] = True
    users = is_major.sum(0)  # (C,) clients for which the class is major
    room = (totals - minor * (clients - users)) // np.maximum(users, 1)  # (C,) most rows for each of them
    most = int(room[users > 0].min())
    if most == 0:
        raise ValueError(f"step: a class of {totals.min()} rows is major for more clients: use fewer clients")
    major = most if major is None else major
    if not max(minor, 1) <= major <= most:
        raise ValueError(
            f"step: major = {major} is not feasible with {clients} clients and minor = {minor}: "
            f"choose {max(minor, 1)} to {most}, the largest feasible major"
        )
    return deal(codes, np.where(is_major, major, minor), rng)


def classes(y: np.ndarray, clients: int, rng: np.random.Generator, *, per_client: int = 2) -> Parts:
    """Every client has exactly `per_client` classes, at random, so that all classes have equally many owners.

    A class is split evenly over its owners (sizes differ by at most one): clients are as even as classes are.

    Reference: Collins, Hassani, Mokhtari, Shakkottai, 2021 (FedRep), section 5; Liang et al., 2020
    (LG-FedAvg).
    """
    codes, totals = _classes(y, "classes")
    C = len(totals)
    if not 1 <= per_client <= C:
        raise ValueError(f"per_client = {per_client}, and the data set has {C} classes: choose 1 to {C}")
    if clients * per_client < C:
        raise ValueError(
            f"{clients} clients with {per_client} of {C} classes each leave classes without an owner: "
            f"per_client must be at least {-(-C // clients)}"
        )
    owners: list[list[int]] = [[] for _ in range(C)]
    quota = rng.permutation(even(clients * per_client, C))  # owners that each class still needs
    for k in rng.permutation(clients):
        for c in np.argsort(-(quota + rng.random(C)))[:per_client]:  # most needed first, ties at random
            owners[c].append(int(k))
            quota[c] -= 1
    counts = np.zeros((clients, C), dtype=np.int64)
    for c, ks in enumerate(owners):
        if totals[c] < len(ks):
            raise ValueError(
                f"classes: a class of {totals[c]} rows would have {len(ks)} owners: "
                "use fewer clients or a smaller per_client"
            )
        counts[ks, c] = even(int(totals[c]), len(ks))
    return deal(codes, counts, rng)


def _classes(y: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(code of each row, rows of each class)."""
    y = np.asarray(y)
    if y.dtype.kind not in "iub":
        raise ValueError(
            f"split kind {kind!r} needs classes, and the targets are {y.dtype}: "
            "use iid, quantity, shards (sorts by the target) or site"
        )
    if len(y) == 0:
        raise ValueError(f"split kind {kind!r} got a data set without rows")
    _, codes, totals = np.unique(y, return_inverse=True, return_counts=True)
    return codes, totals


def _class_wise(totals: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, balance: bool) -> np.ndarray:
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    for c, n in enumerate(totals):
        is_open = counts.sum(1) < totals.sum() / clients if balance else np.ones(clients, dtype=bool)
        share = proportions(np.full(clients, alpha), rng) * is_open
        counts[:, c] = shares(share if share.sum() > 0 else is_open, n)  # else: all mass is on closed clients
    return counts
