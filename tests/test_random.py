"""Keys and draws: distinct streams, the right distributions, and nothing that depends on where they are drawn.

Every goodness-of-fit test fails with probability `FAILURE` for a fresh set of keys; the keys here are fixed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.process import process_state
from torch.func import vmap

from pyrofl.random import (
    bernoulli,
    bits,
    fold,
    generator,
    hashed_normal,
    is_mapped,
    normal,
    permutation,
    root,
    uniform,
)

FAILURE = 1e-5
DRAWS = 20_000
float_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
normals = pytest.mark.parametrize("draw", [normal, hashed_normal])


def test_keys_of_clients_rounds_and_purposes_are_distinct() -> None:
    purposes = ("order", "draws", "try", "score", "weights", "dropout", "server", "cohort")
    paths = list(itertools.product(range(3), range(10), range(50), purposes))
    keys = {int(fold(root(seed), "round", r, "client", c, what)) for seed, r, c, what in paths}
    assert len(keys) == len(paths)


def test_the_path_is_an_order_not_a_set() -> None:
    key = root(0)
    assert int(fold(key, 1, 2)) != int(fold(key, 2, 1))
    assert int(fold(key, 1, 2)) == int(fold(fold(key, 1), 2))
    assert int(fold(key)) == int(key)
    assert int(fold(key, 0)) != int(key) and int(fold(key, "")) != int(key)


@given(st.integers(-(2**31), 2**31), st.text(max_size=5))
def test_names_and_integers_do_not_collide(number: int, name: str) -> None:
    key = root(3)
    assert int(fold(key, number)) != int(fold(key, str(number)))
    assert int(fold(key, name)) != int(fold(key, number))


@given(st.integers(0, 2**40), st.lists(st.integers(0, 2**20), min_size=1, max_size=5))
def test_a_tensor_of_steps_gives_the_keys_of_its_entries(seed: int, steps: list[int]) -> None:
    key = root(seed)
    assert fold(key, torch.tensor(steps)).tolist() == [int(fold(key, s)) for s in steps]


def test_many_small_seeds_give_distinct_keys() -> None:
    assert len({int(root(s)) for s in range(-1000, 10_000)}) == 11_000


@float_types
def test_uniforms_are_uniform(dtype: torch.dtype) -> None:
    u = uniform(fold(root(0), "uniform"), (DRAWS,), dtype)
    assert u.dtype == dtype
    assert stats.kstest(u.double().numpy(), "uniform").pvalue > FAILURE
    assert u.min() > 0 and u.max() < 1


@float_types
def test_uniforms_never_touch_the_ends(dtype: torch.dtype) -> None:
    u = uniform(root(1), (2_000_000,), dtype)
    assert 0 < u.min() < 1e-5 and 1 - 1e-5 < u.max() < 1


@float_types
@normals
def test_normals_are_standard_normal(draw: object, dtype: torch.dtype) -> None:
    z = draw(fold(root(0), "normal"), (DRAWS,), dtype)  # type: ignore[operator]
    assert z.dtype == dtype and bool(torch.isfinite(z).all())
    z = z.double().numpy()
    assert stats.kstest(z, "norm").pvalue > FAILURE
    bound = stats.norm.isf(FAILURE / 2) / math.sqrt(DRAWS)
    for power, variance in ((1, 1), (2, 2), (3, 15), (4, 96)):  # of z^power under the standard normal
        expected = (0, 1, 0, 3)[power - 1]
        assert abs((z**power).mean() - expected) < bound * math.sqrt(variance), f"moment {power}"


@normals
def test_first_draws_of_neighbouring_keys_are_independent(draw: object) -> None:
    first = np.array([draw(fold(root(7), "client", i), (2,)).numpy() for i in range(4000)])  # type: ignore[operator]
    for column in first.T:
        assert stats.kstest(column, "norm").pvalue > FAILURE
    for a, b in ((first[:-1, 0], first[1:, 0]), (first[:, 0], first[:, 1])):
        assert stats.pearsonr(a, b).pvalue > FAILURE


@normals
def test_streams_of_two_purposes_are_uncorrelated(draw: object) -> None:
    a, b = (draw(fold(root(7), 0, what), (DRAWS,)).numpy() for what in ("weights", "dropout"))  # type: ignore[operator]
    assert stats.pearsonr(a, b).pvalue > FAILURE
    assert stats.pearsonr(a[:-1], a[1:]).pvalue > FAILURE


def test_the_first_draws_do_not_depend_on_how_many_are_asked_for() -> None:
    key = root(2)
    assert torch.equal(bits(key, 5), bits(key, 500)[:5])
    assert torch.equal(uniform(key, (7,)), uniform(key, (70,))[:7])
    n = torch.tensor(6)
    assert torch.equal(permutation(key, 6, n), permutation(key, 60, n)[:6])


def test_shapes() -> None:
    for draw in (uniform, normal, hashed_normal):
        assert draw(root(0), (2, 0, 3)).shape == (2, 0, 3)
        assert draw(root(0), ()).shape == ()
        assert draw(root(0), (3, 5)).shape == (3, 5)


@float_types
def test_the_same_numbers_come_out_under_vmap(dtype: torch.dtype) -> None:
    keys = fold(root(5), torch.arange(4))
    draws = {
        "uniform": lambda k: uniform(k, (3, 5), dtype),
        "normal": lambda k: normal(k, (3, 5), dtype),
        "hashed": lambda k: hashed_normal(k, (3, 5), dtype),
        "folded": lambda k: normal(fold(k, "a", 1), (5,), dtype),
        "bernoulli": lambda k: bernoulli(k, 0.3, (50,)),
        "order": lambda k: permutation(k, 9, torch.tensor(7)),
        "twice": lambda k: vmap(lambda j: normal(fold(j, "x"), (4,), dtype))(fold(k, torch.arange(3))),
    }
    for name, draw in draws.items():
        assert torch.equal(vmap(draw)(keys), torch.stack([draw(k) for k in keys])), name


def test_draws_pass_through_gradients() -> None:
    keys = fold(root(5), torch.arange(3))
    slope = vmap(torch.func.grad(lambda w, k: (w * normal(k, (4,))).sum()), in_dims=(None, 0))(torch.ones(4), keys)
    assert torch.equal(slope, torch.stack([normal(k, (4,)) for k in keys]))


def test_is_mapped_tells_inside_from_outside() -> None:
    seen = []
    vmap(lambda k: (seen.append(is_mapped(k)), k)[1])(fold(root(0), torch.arange(2)))
    assert seen == [True] and not is_mapped(root(0))


@pytest.mark.parametrize("p", [0.0, 0.03, 0.5, 1.0])
def test_bernoulli_is_true_with_probability_p(p: float) -> None:
    hits = int(bernoulli(root(4), p, (DRAWS,)).sum())
    assert stats.binomtest(hits, DRAWS, p).pvalue > FAILURE


@given(st.integers(0, 2**40), st.integers(1, 30), st.integers(0, 10))
def test_a_permutation_holds_the_real_rows_first(seed: int, n: int, padding: int) -> None:
    order = permutation(root(seed), n + padding, torch.tensor(n)).tolist()
    assert sorted(order[:n]) == list(range(n))
    assert sorted(order) == list(range(n + padding))


def test_all_orders_are_equally_likely() -> None:
    orders = Counter(tuple(permutation(fold(root(6), i), 3, torch.tensor(3)).tolist()) for i in range(3000))
    assert len(orders) == 6
    assert stats.chisquare(list(orders.values())).pvalue > FAILURE


def test_nothing_is_drawn_from_the_process_wide_generators() -> None:
    before = process_state()
    key = fold(root(1), "x", 3)
    normal(key, (100,)), uniform(key, (100,)), permutation(key, 9, torch.tensor(9)), generator(key).random()
    assert process_state() == before


def test_numpy_generators_are_functions_of_the_key() -> None:
    a, b, c = (generator(fold(root(1), k)).random(3).tolist() for k in (0, 0, 1))
    assert a == b != c


def test_the_numbers_of_a_key_never_change() -> None:
    """A run of an old version resumes exactly only while these stand."""
    assert int(fold(root(1), "round", 2, "client", 3)) == KEY
    assert bits(root(1), 2).tolist() == BITS


KEY = -4660517247557966440
BITS = [-8675236160134566309, 3534243657434133056]
