"""Bayesian nonparametric matching: clients' vectors are noisy copies of atoms of a Beta-Bernoulli process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]


class Matching(NamedTuple):
    """What was found."""

    atoms: Array  # (M, d) posterior means
    owner: list[NDArray[np.int64]]  # of each client's vectors: the atom, in 0..M-1


def match(
    vectors: Sequence[Array],
    rng: np.random.Generator,
    *,
    noise: float = 1.0,
    spread: float = 1.0,
    gamma: float = 1.0,
    most: int | None = None,
    sweeps: int = 10,
) -> Matching:
    """Atoms a_i ~ N(0, spread I), of which each client has a random set; its vector is w = a_i + N(0, noise I).

    No client has an atom twice. One client at a time, in random order, is taken out and assigned anew by the Hungarian
    algorithm, with all others fixed, until a whole sweep changes nothing or `sweeps` are done. `noise` and `spread` are
    variances, `gamma` the mass of new atoms; with `most`, there are at most so many atoms. Vectors are (L_k, d). The
    score maximises over an atom's place, as the paper's does, and does not integrate over it: with `noise` at its true
    value some copies stay apart, so choose it on the large side.

    Reference: Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, 2019, algorithm 1 (one hidden layer).
    """
    if most is not None and most < max(len(w) for w in vectors):
        raise ValueError(f"most = {most} atoms are fewer than the vectors of one client")
    J, d = len(vectors), vectors[0].shape[1]
    owner = [np.full(len(w), -1) for w in vectors]  # -1: nobody's yet
    total, members = np.zeros((0, d)), np.zeros(0, dtype=int)  # sum of each atom's vectors, and how many
    for _ in range(sweeps):
        before = _pattern(owner)
        for k in rng.permutation(J):
            held = owner[k] >= 0
            total[owner[k][held]] -= vectors[k][held]
            members[owner[k][held]] -= 1
            owner[k][:] = -1
            total, members = _without_empty(total, members, owner)
            score = _scores(vectors[k], total, members, J, noise, spread, gamma, most)
            _, column = linear_sum_assignment(score, maximize=True)
            fresh = column >= len(members)
            column[fresh] = len(members) + np.arange(fresh.sum())  # one after the other
            owner[k][:] = column
            total = np.concatenate([total, np.zeros((fresh.sum(), d))])
            members = np.concatenate([members, np.zeros(fresh.sum(), dtype=int)])
            total[column] += vectors[k]
            members[column] += 1
        if np.array_equal(before, _pattern(owner)):
            break
    precision = 1 / spread + members / noise
    return Matching(total / noise / precision[:, None], owner)


def _scores(
    w: Array, total: Array, members: Array, J: int, noise: float, spread: float, gamma: float, most: int | None
) -> Array:
    """Twice the gain in log-posterior of giving vector l to atom i, or to the r-th new atom: (L, M + R)."""
    h, precision = total / noise, 1 / spread + members / noise  # (M, d), (M,)
    gain = ((h[None] + w[:, None] / noise) ** 2).sum(2) / (precision + 1 / noise) - (h**2).sum(1) / precision
    known = gain + 2 * np.log(members / (J - members))  # (L, M)
    room = len(w) if most is None else min(len(w), most - len(members))
    new = (w**2).sum(1, keepdims=True) / noise**2 / (1 / spread + 1 / noise)  # (L, 1)
    return np.concatenate([known, new + 2 * np.log(gamma / J) - 2 * np.log(np.arange(1, room + 1))], axis=1)


def _pattern(owner: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Which vectors have one atom: the owners, numbered in the order of their first vector."""
    _, first, number = np.unique(np.concatenate(owner), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def _without_empty(total: Array, members: Array, owner: list[NDArray[np.int64]]) -> tuple[Array, Array]:
    """The atoms that somebody has, renumbered; `owner` is renumbered in place."""
    kept = members > 0
    number = np.cumsum(kept) - 1
    for own in owner:
        own[own >= 0] = number[own[own >= 0]]
    return total[kept], members[kept]
