"""Every kind of partition: what all promise, and what each promises alone."""

import inspect
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyrofl.data import Dataset
from pyrofl.dealing import proportions, shares
from pyrofl.label_skew import dirichlet, dirichlet_clients
from pyrofl.partition import PARTITIONS, partition
from pyrofl.random import root

FAILURE = 1e-6  # rate at which a distribution test would fail if the seeds were not fixed
NEED_CLASSES = {"dirichlet", "dirichlet_clients", "step", "classes"}


def rng(seed=0):
    return np.random.default_rng(seed)


def options(kind, y, clients):
    """Feasible options of a kind for at least 80 rows a class and at most 8 clients."""
    n_classes = len(np.unique(y))
    return {
        "iid": {},
        "dirichlet": {"alpha": 0.3, "minimum": 10, "retries": 3},
        "dirichlet_clients": {"alpha": 0.3},
        "step": {"majors": min(2, n_classes), "minor": 7},
        "shards": {"per_client": 3},
        "classes": {"per_client": max(2, -(-n_classes // clients))},
        "quantity": {"alpha": 0.5, "minimum": 3},
        "site": {"site": np.arange(len(y)) * 7 % clients},
    }[kind]


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(80, 160), min_size=2, max_size=6))
    y = np.repeat(np.arange(len(sizes)), sizes)
    return rng(draw(st.integers(0, 99))).permutation(y), draw(st.integers(1, 8)), draw(st.integers(0, 2**32))


def sizes_of(parts):
    return np.array([len(p) for p in parts])


def counts_of(parts, y):
    return np.array([np.bincount(y[p], minlength=y.max() + 1) for p in parts])


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(p, q) for p, q in zip(a, b))


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_parts_are_disjoint_exhaustive_sorted_and_deterministic(kind, problem):
    y, clients, seed = problem
    given_y, made = y.copy(), options(kind, y, clients)
    parts = PARTITIONS[kind](y, clients, rng(seed), **made)
    assert len(parts) == clients
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    if kind == "step":
        assert len(together) <= len(y)
    else:
        assert np.array_equal(np.sort(together), np.arange(len(y)))
    assert all(np.array_equal(p, np.sort(p)) for p in parts)
    assert same(parts, PARTITIONS[kind](y, clients, rng(seed), **made))
    assert np.array_equal(y, given_y)
    if kind in ("iid", "dirichlet_clients", "shards", "step"):
        assert np.ptp(sizes_of(parts)) <= 1
    if kind == "dirichlet":
        assert sizes_of(parts).min() >= 10
    if kind == "quantity":
        assert sizes_of(parts).min() >= 3


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_labels_may_be_any_numbers(kind):
    y = rng(1).permutation(np.repeat([0, 1, 2], 100))
    renamed = np.array([3, 7, 9])[y]
    made = options(kind, y, 4)
    assert same(PARTITIONS[kind](y, 4, rng(5), **made), PARTITIONS[kind](renamed, 4, rng(5), **made))


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_global_generators_neither_matter_nor_move(kind):
    y = np.repeat([0, 1, 2], 100)
    made = options(kind, y, 4)
    found = []
    for seed in (1, 2):
        random.seed(seed), torch.manual_seed(seed), np.random.seed(seed)  # noqa: NPY002
        before = np.random.get_state()[1].copy(), torch.get_rng_state(), random.getstate()  # noqa: NPY002
        found.append(PARTITIONS[kind](y, 4, rng(3), **made))
        assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
        assert torch.equal(before[1], torch.get_rng_state()) and before[2] == random.getstate()
    assert same(*found)


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - {"site"}))
def test_another_seed_gives_another_partition(kind):
    y = np.repeat([0, 1, 2], 100)
    made = options(kind, y, 4)
    assert not same(PARTITIONS[kind](y, 4, rng(3), **made), PARTITIONS[kind](y, 4, rng(4), **made))


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_no_kind_knows_a_batch_size(kind):
    assert not [name for name in inspect.signature(PARTITIONS[kind]).parameters if "batch" in name]


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_continuous_targets_work_or_are_refused_with_a_reason(kind):
    y = rng().normal(size=200).astype(np.float32)
    made = options(kind, np.repeat([0, 1], 100), 4)
    if kind in NEED_CLASSES:
        with pytest.raises(ValueError, match=f"'{kind}' needs classes, and the targets are float32: use iid"):
            PARTITIONS[kind](y, 4, rng(), **made)
    else:
        assert sizes_of(PARTITIONS[kind](y, 4, rng(), **made)).sum() == 200


def test_shards_of_continuous_targets_are_runs_of_sorted_values():
    y = rng().permutation(np.linspace(0, 1, 120))
    parts = PARTITIONS["shards"](y, 6, rng(), per_client=1)
    spans = sorted((y[p].min(), y[p].max()) for p in parts)
    assert all(a[1] < b[0] for a, b in pairwise(spans))


# Dirichlet


def test_an_infeasible_minimum_names_the_largest_feasible_one_at_once():
    y, generator = np.arange(39_999) % 10, rng()
    before = generator.bit_generator.state
    with pytest.raises(ValueError, match="need 40000 rows and there are 39999: the largest feasible minimum is 39"):
        dirichlet(y, 1000, generator, alpha=0.1, minimum=40)
    assert generator.bit_generator.state == before  # nothing was drawn


def test_a_barely_feasible_minimum_is_reached_by_repair():
    parts = dirichlet(np.arange(40_000) % 10, 1000, rng(), alpha=0.1, minimum=40, retries=2)
    assert (sizes_of(parts) == 40).all()


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e6])
@pytest.mark.parametrize("balance", [True, False])
def test_extreme_concentrations_stay_finite(alpha, balance):
    parts = dirichlet(np.arange(300) % 3, 7, rng(), alpha=alpha, minimum=0, balance=balance)
    assert sizes_of(parts).sum() == 300


def test_a_large_concentration_is_even_and_a_small_one_gives_classes_away_whole():
    y = np.arange(4000) % 4
    even = counts_of(dirichlet(y, 4, rng(), alpha=1e9, minimum=0, balance=False), y)
    whole = counts_of(dirichlet(y, 4, rng(), alpha=1e-9, minimum=0, balance=False), y)
    assert (abs(even - 250) <= 1).all()
    assert (np.sort(whole, axis=0) == [[0] * 4] * 3 + [[1000] * 4]).all()


def test_balance_closes_full_clients():
    y = np.arange(10_000) % 10
    free = dirichlet(y, 5, rng(7), alpha=0.1, minimum=0, balance=False)
    tied = dirichlet(y, 5, rng(7), alpha=0.1, minimum=0, balance=True)
    assert sizes_of(tied).max() < 2000 + 1000  # open below N/K = 2000, and then at most one class more
    assert sizes_of(free).max() > 3000


def test_class_proportions_follow_the_dirichlet_marginal():
    """The share of a class at one of K = 4 clients is Beta(alpha, 3 alpha)."""
    y = np.zeros(20_000, dtype=int)
    shares = [len(dirichlet(y, 4, rng(s), alpha=1.0, minimum=0, balance=False)[2]) / 20_000 for s in range(400)]
    assert stats.kstest(shares, stats.beta(1, 3).cdf).pvalue > FAILURE


def test_client_proportions_follow_the_dirichlet_multinomial():
    """Two equal classes and alpha = 2: a first client of 40 rows has a uniform number 0..40 of class 0."""
    y = np.arange(400) % 2
    ranks = []
    for s in range(400):
        n = (y[dirichlet_clients(y, 10, rng(s), alpha=2.0)[0]] == 0).sum()
        ranks.append((n + rng(s + 10_000).random()) / 41)
    assert stats.kstest(ranks, "uniform").pvalue > FAILURE


def test_the_two_dirichlet_kinds_differ_at_the_same_alpha():
    """Client-wise the concentrations sum to alpha: with ten classes a client holds about one."""
    y = np.arange(10_000) % 10
    kept = counts_of(dirichlet_clients(y, 100, rng(), alpha=0.1), y)[:20]  # before classes run out
    split = counts_of(dirichlet(y, 100, rng(), alpha=0.1, minimum=0, balance=False), y)
    assert np.median((kept > 0).sum(1)) <= 2 < np.median((split > 0).sum(1))


def test_turns_spare_the_last_clients():
    """One after the other, the last clients get what is left; in turns, more of the class they prefer."""
    y, p = np.arange(2000) % 10, np.full(10, 0.01)

    def of_preferred(rotate, seed):
        first = rng(seed)
        preferred = [proportions(p, first).argmax() for _ in range(20)]
        counts = counts_of(dirichlet_clients(y, 20, rng(seed), alpha=0.1, rotate=rotate), y)
        return np.mean([counts[k, preferred[k]] for k in range(16, 20)])

    assert sum(of_preferred(True, s) for s in range(20)) > 1.5 * sum(of_preferred(False, s) for s in range(20))


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"alpha": float("inf")}, {"alpha": 1.0, "minimum": -1}])
def test_senseless_dirichlet_options_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        dirichlet(np.arange(100) % 2, 2, rng(), **bad)


# step, shards, classes, quantity, site


def test_step_is_the_published_design_on_cifar10_sizes():
    y = np.arange(50_000) % 10
    parts = PARTITIONS["step"](y, 10, rng(), major=1960)
    counts = counts_of(parts, y)
    assert (np.sort(counts, axis=1) == [10] * 8 + [1960] * 2).all()  # 80 + 3920 = 4000 a client
    assert (counts.sum(0) == 4000).all() and (counts.sum(1) == 4000).all()
    assert all(set(np.flatnonzero(row == 1960)) == {k, (k + 1) % 10} for k, row in enumerate(counts))


@settings(max_examples=60, deadline=None)
@given(problem=problems(), majors=st.integers(1, 6), minor=st.integers(0, 10))
def test_step_takes_the_most_that_every_class_can_supply(problem, majors, minor):
    y, clients, seed = problem
    totals = np.bincount(y)
    majors = min(majors, len(totals))
    counts = counts_of(PARTITIONS["step"](y, clients, rng(seed), majors=majors, minor=minor), y)
    major = counts.max()
    assert ((counts == major) | (counts == minor)).all()
    if major > minor:
        assert ((counts == major).sum(1) == majors).all()
        owners = (counts == major).sum(0)
        assert np.ptp(owners) <= 1
        assert (totals < owners * (major + 1) + (clients - owners) * minor).any()  # one more does not fit


def test_step_names_what_is_feasible():
    y = np.arange(1000) % 10
    with pytest.raises(ValueError, match="the largest feasible minor is 10"):
        PARTITIONS["step"](y, 10, rng(), minor=11)
    with pytest.raises(ValueError, match="choose 5 to 30, the largest feasible major"):
        PARTITIONS["step"](y, 10, rng(), minor=5, major=31)
    with pytest.raises(ValueError, match="has 10 classes: choose 1 to 10"):
        PARTITIONS["step"](y, 10, rng(), majors=11)
    with pytest.raises(ValueError, match="use fewer clients"):
        PARTITIONS["step"](y, 1000, rng(), minor=0)


def test_shards_of_mnist_sizes_hold_two_labels_or_few_more():
    y = rng().permutation(np.arange(60_000) % 10)
    parts = PARTITIONS["shards"](y, 100, rng())
    counts = counts_of(parts, y)
    assert (counts.sum(1) == 600).all()
    assert ((counts > 0).sum(1) <= 2).all()  # 200 shards of 300 fit into ten classes of 6000: none straddles


def test_leftovers_of_shards_do_not_land_on_one_client():
    sizes = sizes_of(PARTITIONS["shards"](np.arange(1003) % 7, 9, rng(), per_client=4))
    assert sorted(sizes) == [111] * 5 + [112] * 4


@settings(max_examples=60, deadline=None)
@given(problem=problems(), per_client=st.integers(1, 6))
def test_classes_gives_every_client_exactly_its_number(problem, per_client):
    y, clients, seed = problem
    n_classes = y.max() + 1
    per_client = min(max(per_client, -(-n_classes // clients)), n_classes)
    counts = counts_of(PARTITIONS["classes"](y, clients, rng(seed), per_client=per_client), y)
    assert ((counts > 0).sum(1) == per_client).all()
    assert np.ptp((counts > 0).sum(0)) <= 1
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)


def test_classes_refuses_what_cannot_be():
    y = np.arange(100) % 10
    with pytest.raises(ValueError, match="per_client must be at least 4"):
        PARTITIONS["classes"](y, 3, rng(), per_client=2)
    with pytest.raises(ValueError, match="a class of 10 rows would have 20 owners"):
        PARTITIONS["classes"](y, 100, rng(), per_client=2)


def test_quantity_takes_shares():
    sizes = sizes_of(PARTITIONS["quantity"](np.zeros(12_500), 10, rng(), sizes=[4] * 5 + [1] * 5))
    assert sizes.tolist() == [2000] * 5 + [500] * 5
    with pytest.raises(ValueError, match="sizes must be 3 shares"):
        PARTITIONS["quantity"](np.zeros(10), 3, rng(), sizes=[1, 2])


def test_quantity_names_the_largest_feasible_minimum():
    with pytest.raises(ValueError, match="the largest feasible minimum is 3"):
        PARTITIONS["quantity"](np.zeros(10), 3, rng(), minimum=4)


def test_site_keeps_rows_at_home_and_clients_without_rows():
    parts = PARTITIONS["site"](np.zeros(5), 4, rng(), site=np.array([3, 0, 3, 1, 0]))
    assert [p.tolist() for p in parts] == [[1, 4], [3], [], [0, 2]]
    with pytest.raises(ValueError, match="do not fit 3 clients"):
        PARTITIONS["site"](np.zeros(5), 3, rng(), site=np.array([3, 0, 3, 1, 0]))


# the table of a configuration

DATA = Dataset(torch.zeros(90, 1), torch.arange(90) % 3, "categorical", ("a", "b", "c"))
SITES = Dataset(torch.zeros(3, 1), torch.zeros(3).long(), "categorical", ("a",), torch.tensor([1, 0, 1]), ("p", "q"))


def test_a_table_names_the_kind_and_its_options():
    split = {"kind": "dirichlet", "alpha": 0.1, "minimum": 10}
    parts = partition(DATA, key=root(1), clients=4, split=split)
    assert sizes_of(parts).sum() == 90 and sizes_of(parts).min() >= 10
    assert same(parts, partition(DATA, key=root(1), clients=4, split=split))
    assert not same(parts, partition(DATA, key=root(2), clients=4, split=split))


def test_sites_need_no_number_of_clients():
    assert [p.tolist() for p in partition(SITES, key=root(0), clients=None, split={"kind": "site"})] == [
        [1],
        [0, 2],
    ]


@pytest.mark.parametrize(
    ("data", "clients", "split", "message"),
    [
        (DATA, 4, {"kind": "dirichlett", "alpha": 1}, 'did you mean "dirichlet"'),
        (DATA, 4, {"kind": "dirichlet", "alpa": 1}, 'did you mean "alpha"'),
        (DATA, 4, {"kind": "dirichlet"}, "split.alpha is missing"),
        (DATA, 4, {"kind": "iid", "clients": 3}, "split.clients is known"),
        (DATA, 4, {"kind": "dirichlet", "alpha": "0.1"}, "split.alpha = '0.1'"),
        (DATA, 4, {}, "names no kind"),
        (DATA, None, {"kind": "iid"}, "needs a number of clients"),
        (DATA, 0, {"kind": "iid"}, "needs a number of clients"),
        (DATA, None, {"kind": "site"}, "needs natural clients"),
        (SITES, 3, {"kind": "site"}, "there are 2 natural clients"),
        (SITES, None, {"kind": "site", "site": [0, 0, 0]}, "split.site is known"),
    ],
)
def test_a_wrong_table_is_refused(data, clients, split, message):
    with pytest.raises(ValueError, match=message):
        partition(data, key=root(0), clients=clients, split=split)


# arithmetic


@pytest.mark.parametrize(
    ("share", "n", "expected"),
    [
        ([1, 1, 1], 10, [3, 4, 3]),
        ([0.5, 0.25, 0.25], 8, [4, 2, 2]),
        ([0.1] * 10 + [0.0], 1000, [100] * 10 + [0]),  # the tenths sum to less than 1: nobody gets the rest
        ([0, 2, 0], 5, [0, 5, 0]),
        ([1, 3], 0, [0, 0]),
    ],
)
def test_whole_numbers_in_proportion(share, n, expected):
    assert shares(np.array(share), n).tolist() == expected
