"""Matching: permuted copies, hand-made scores, and an exhaustive search of small problems."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from pyrofl.matching import Array, match


def log_density(groups: list[list[Array]], J: int, noise: float, spread: float, gamma: float) -> float:
    """Largest log N(a; 0, spread) + sum log N(w; a, noise) over a, for each atom, up to a constant."""
    total = 0.0
    for w in groups:
        a = np.sum(w, axis=0) / noise / (1 / spread + len(w) / noise)
        total -= 0.5 * (a @ a) / spread + 0.5 * sum(((v - a) ** 2).sum() for v in w) / noise
    return total


def best_of_two(first: Array, second: Array, noise: float, spread: float, gamma: float) -> tuple[int, ...]:
    """For two clients, the pairing of the second's vectors with the first's (or -1: with none) that is likeliest."""
    L, J = len(first), 2
    slots = [*range(L), *[-1] * len(second)]
    found = {}
    for choice in set(permutations(slots, len(second))):
        groups = [[w] + [second[l] for l, i in enumerate(choice) if i == k] for k, w in enumerate(first)]
        new = [[second[l]] for l, i in enumerate(choice) if i < 0]
        value = log_density(groups + new, J, noise, spread, gamma)
        value += sum(np.log(1 / (J - 1)) for i in choice if i >= 0)
        value += sum(np.log(gamma / J) - np.log(r) for r in range(1, len(new) + 1))
        found[choice] = value
    return max(found, key=found.__getitem__)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("noise", "spread", "gamma"), [(1.0, 1.0, 1.0), (0.2, 2.0, 0.5), (2.0, 1.0, 20.0)])
def test_two_clients_are_matched_as_an_exhaustive_search_does(
    seed: int, noise: float, spread: float, gamma: float
) -> None:
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(3, 2)) * 2
    second = first[rng.permutation(3)[:2]] + rng.normal(size=(2, 2)) * 1.2
    # the last client to be assigned is the one that the search assigns: either way the pairs must agree in one sweep
    order = list(np.random.default_rng(seed + 100).permutation(2))
    found = match([first, second], np.random.default_rng(seed + 100), noise=noise, spread=spread, gamma=gamma, sweeps=1)
    last, other = (second, first) if order[-1] == 1 else (first, second)
    expected = best_of_two(other, last, noise, spread, gamma)
    own, theirs = found.owner[order[-1]], found.owner[order[0]].tolist()
    assert tuple(theirs.index(a) if a in theirs else -1 for a in own.tolist()) == expected


@pytest.mark.parametrize("clients", [2, 5])
def test_permuted_copies_are_matched_back(clients: int) -> None:
    rng = np.random.default_rng(0)
    w = 3 * rng.normal(size=(12, 6))
    orders = [rng.permutation(12) for _ in range(clients)]
    found = match([w[o] for o in orders], rng)
    assert len(found.atoms) == 12
    for o, own in zip(orders, found.owner, strict=True):
        np.testing.assert_allclose(found.atoms[own], w[o] * clients / (clients + 1))
    noisy = match([w[o] + 0.1 * rng.normal(size=w.shape) for o in orders], rng, noise=0.1, spread=9.0)
    assert len(noisy.atoms) == 12
    for o, own in zip(orders, noisy.owner, strict=True):
        np.testing.assert_allclose(noisy.atoms[own], w[o], atol=0.5)


def test_vectors_of_no_other_client_get_atoms_of_their_own() -> None:
    rng = np.random.default_rng(1)
    shared, own = 4 * rng.normal(size=(3, 5)), 4 * rng.normal(size=(2, 2, 5))
    found = match([np.concatenate([shared, o]) for o in own], rng, noise=0.1, spread=16.0)
    assert len(found.atoms) == 7
    assert found.owner[0][:3].tolist() == found.owner[1][:3].tolist()
    assert not set(found.owner[0][3:]) & set(found.owner[1][3:])


def test_no_client_has_an_atom_twice_and_every_atom_has_somebody() -> None:
    rng = np.random.default_rng(2)
    vectors = [np.ones((4, 3)) + 0.01 * rng.normal(size=(4, 3)) for _ in range(3)]
    found = match(vectors, rng, most=6)
    assert all(len(set(own.tolist())) == 4 for own in found.owner)
    assert set(np.concatenate(found.owner)) == set(range(len(found.atoms)))
    assert len(found.atoms) <= 6


@pytest.mark.parametrize("most", [4, 5, 9])
def test_there_are_at_most_so_many_atoms(most: int) -> None:
    rng = np.random.default_rng(3)
    vectors = [10 * rng.normal(size=(4, 3)) for _ in range(3)]  # nothing in common
    assert len(match(vectors, rng, noise=0.01, spread=100.0).atoms) == 12
    assert len(match(vectors, rng, noise=0.01, spread=100.0, most=most).atoms) == most
    with pytest.raises(ValueError, match="most = 3 atoms are fewer than the vectors of one client"):
        match(vectors, rng, most=3)


def test_one_client_keeps_its_vectors_shrunk_to_the_prior() -> None:
    w = np.array([[1.0, 2.0], [3.0, -1.0]])
    found = match([w], np.random.default_rng(0), noise=0.5, spread=2.0)
    np.testing.assert_allclose(found.atoms[found.owner[0]], w * (1 / 0.5) / (1 / 2 + 1 / 0.5))


def test_a_wide_new_atom_mass_keeps_everything_apart() -> None:
    rng = np.random.default_rng(4)
    vectors = [0.1 * rng.normal(size=(3, 2)) for _ in range(2)]
    assert len(match(vectors, rng, gamma=1e9).atoms) == 6
    assert len(match(vectors, rng, gamma=1e-9).atoms) == 3
