"""The arithmetic of partitions: whole numbers in given proportions, and rows handed out by counts."""

from __future__ import annotations

import numpy as np

Parts = list[np.ndarray]


def deal(codes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Parts:
    """Rows of each class, shuffled, handed out by `counts` (clients, classes); each part ascending."""
    pieces: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(codes == c))
        for k, piece in enumerate(np.split(rows, np.cumsum(counts[:, c]))[:-1]):
            pieces[k].append(piece)
    return [np.sort(np.concatenate(p)) for p in pieces]


def even(n: int, parts: int) -> np.ndarray:
    """n as `parts` whole numbers that differ by at most one, the larger first."""
    return np.full(parts, n // parts) + (np.arange(parts) < n % parts)


def shares(share: np.ndarray, n: int) -> np.ndarray:
    """n as whole numbers in proportion to `share`, rounded at the cumulative sums; a share of 0 gets 0."""
    total = np.cumsum(share)
    return np.diff(np.rint(total / total[-1] * n).astype(np.int64), prepend=0)


def proportions(concentration: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One draw of Dir(concentration); where it underflows, its limit: all mass on one entry."""
    p = rng.dirichlet(concentration)
    if np.isfinite(p).all() and p.sum() > 0:
        return p
    return rng.multinomial(1, concentration / concentration.sum()).astype(float)


def draw(q: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Class counts (classes,) of `size` draws by `q` without replacement from `left` rows of each class.

    A draw of a class that ran out is drawn again, which is a draw from the renormalised probabilities.
    """
    taken = np.zeros_like(left)
    while (need := size - taken.sum()) > 0:
        w = q * (taken < left)
        w = w if w.sum() > 0 else (left - taken).astype(float)  # only classes of probability 0 are left
        taken += np.minimum(rng.multinomial(need, w / w.sum()), left - taken)
    return taken


def repair(counts: np.ndarray, minimum: int, rng: np.random.Generator) -> np.ndarray:
    """Move random rows of the largest client to the smallest until all have a (feasible) `minimum`."""
    counts, sizes = counts.copy(), counts.sum(1)
    while sizes.min() < minimum:
        taker, giver = sizes.argmin(), sizes.argmax()
        row = rng.multivariate_hypergeometric(counts[giver], 1)  # (classes,) one-hot
        counts[taker] += row
        counts[giver] -= row
        sizes[taker] += 1
        sizes[giver] -= 1
    return counts


def feasible(minimum: int, clients: int, rows: int) -> None:
    if clients * minimum > rows:
        raise ValueError(
            f"{clients} clients with at least {minimum} rows each need {clients * minimum} rows "
            f"and there are {rows}: the largest feasible minimum is {rows // clients}"
        )


def at_least(value: int, least: int, name: str) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def positive(value: float, name: str) -> None:
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}")
