"""From a data set to clients: test rows, less data, noise, scaling, and what the notes and tables say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrofl.data import Dataset
from pyrofl.federation import counts, federate, holdings, thin
from pyrofl.random import root

KEY = root(3)


def numbered(n=200, classes=4, **more):
    """A data set whose x is the row number, so that rows can be followed."""
    return Dataset(
        torch.arange(n).float().unsqueeze(1),
        torch.arange(n) % classes,
        "categorical",
        tuple("abcdefgh"[:classes]),
        **more,
    )


def sites(sizes, **more):
    site = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return numbered(sum(sizes), 2, site=site, sites=tuple(f"s{k}" for k in range(len(sizes))), **more)


def rows(data):
    return data.x[: data.rows, 0].long().tolist()


def equal(a, b):
    return all(
        torch.equal(c.train.x, d.train.x) and torch.equal(c.train.y, d.train.y) and torch.equal(c.test.x, d.test.x)
        for c, d in zip(a.clients, b.clients)
    )


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 60), clients=st.integers(1, 9), test=st.floats(0, 0.99), seed=st.integers(0, 999))
def test_every_row_is_at_one_client_in_one_split(n, clients, test, seed):
    made = federate(numbered(n), key=root(seed), clients=clients, split={"kind": "iid"}, test=test)
    held = [r for c in made.clients for r in rows(c.train) + rows(c.test)]
    assert sorted(held) == list(range(n))
    for c in made.clients:
        size = c.train.rows + c.test.rows
        assert c.train.rows >= min(size, 1)
        if test > 0 and size >= 2:
            assert c.test.rows == min(max(round(test * size), 1), size - 1)
        else:
            assert c.test.rows == 0
        assert [int(y) for y in c.train.y] == [r % 4 for r in rows(c.train)]


def test_the_key_decides_and_global_seeds_do_not():
    torch.manual_seed(1)
    a = federate(numbered(), key=KEY, clients=5, noise={"kind": "label_flip", "level": 0.5}, fraction=0.5)
    torch.manual_seed(2)
    b = federate(numbered(), key=KEY, clients=5, noise={"kind": "label_flip", "level": 0.5}, fraction=0.5)
    assert equal(a, b)
    assert not equal(a, federate(numbered(), key=root(4), clients=5))


def test_train_rows_are_in_random_order():
    """The last rows of a client serve as its validation part: they must not be one class of a sorted file."""
    y = torch.arange(400) // 100
    made = federate(Dataset(torch.zeros(400, 1), y, "categorical", tuple("abcd")), key=KEY, clients=1)
    assert len(set(made.clients[0].train.y[-40:].tolist())) == 4


def test_test_rows_do_not_depend_on_the_fraction_or_the_noise():
    plain = federate(numbered(), key=KEY, clients=5)
    less = federate(
        numbered(), key=KEY, clients=5, fraction=0.3, noise={"kind": "pixel_std", "level": 1.0, "clip": False}
    )
    for a, b in zip(plain.clients, less.clients):
        assert torch.equal(a.test.x, b.test.x) and torch.equal(a.test.y, b.test.y)
        assert b.train.rows == round(0.3 * a.train.rows)


def test_natural_clients_are_the_default_and_keep_their_names():
    made = federate(sites([30, 10, 20]), key=KEY)
    assert [c.name for c in made.clients] == ["s0", "s1", "s2"]
    assert [c.train.rows + c.test.rows for c in made.clients] == [30, 10, 20]
    assert {r for c in made.clients[1:2] for r in rows(c.train) + rows(c.test)} == set(range(30, 40))


def test_a_client_without_rows_is_kept_and_named_or_refused():
    site = torch.tensor([0, 0, 2, 2])
    data = numbered(4, 2, site=site, sites=("north", "empty", "south"))
    made = federate(data, key=KEY)
    assert [c.train.rows for c in made.clients] == [1, 0, 1]
    assert "1 of 3 clients have no training rows: empty" in made.notes
    assert made.clients[1].train.x.shape == (0, 1)
    with pytest.raises(ValueError, match=r"1 of 3 clients have no training rows: empty; use fewer"):
        federate(data, key=KEY, empty="refuse")


def test_shared_test_rows_stay_shared():
    data = numbered(20, test=(torch.ones(3, 1), torch.tensor([0, 1, 2])))
    made = federate(data, key=KEY, clients=2, test=0.0)
    assert made.common is not None and made.common.rows == 3
    assert [c.test.rows for c in made.clients] == [0, 0]


def test_outputs_keep_their_width_where_a_client_lacks_classes():
    made = federate(numbered(80), key=KEY, clients=4, split={"kind": "classes", "per_client": 1})
    assert made.outputs == 4
    assert ((counts(made) > 0).sum(1) == 1).all()


@pytest.mark.parametrize(
    ("likelihood", "y", "dtype"),
    [
        ("categorical", torch.tensor([0, 1, 2, 0]), torch.int64),
        ("bernoulli", torch.tensor([0, 1, 1, 0]), torch.float32),
        ("poisson", torch.tensor([0.0, 3.0, 1.0, 2.0]), torch.float32),
    ],
)
def test_targets_have_the_type_that_the_likelihood_scores(likelihood, y, dtype):
    names = ("a", "b", "c")[: 3 if likelihood == "categorical" else 2] if y.dtype == torch.int64 else ()
    made = federate(Dataset(torch.zeros(4, 2), y, likelihood, names), key=KEY, clients=1, test=0.0)
    assert made.clients[0].train.y.dtype == dtype
    assert sorted(made.clients[0].train.y.tolist()) == sorted(y.tolist())


def test_left_over_rows_are_said():
    made = federate(numbered(100), key=KEY, clients=4, split={"kind": "step", "minor": 1, "majors": 1, "major": 5})
    assert "68 rows are left over and belong to no client" in made.notes  # 100 - 4 x (5 + 3 x 1)


def test_notes_say_what_was_done_after_what_loading_said():
    data = numbered(40, notes=("loaded",))
    noise = {"kind": "pixel_variance", "level": 0.01, "splits": ["train", "test"], "clip": False}
    made = federate(data, key=KEY, clients=2, split={"kind": "dirichlet", "alpha": 9.0, "minimum": 1}, noise=noise)
    assert made.notes == (
        "loaded",
        "40 rows over 2 clients by dirichlet (alpha = 9.0, minimum = 1)",
        "test rows: 20% of each client's rows, at random after the split",
        "noise (pixel_variance) on train and test rows: x + N(0, 0.01), a standard deviation of 0.1; fixed per row",
    )


# thinning


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    fractions=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    seed=st.integers(0, 999),
)
def test_thinning_keeps_class_proportions_and_is_nested(sizes, fractions, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    less, more = sorted(fractions)
    kept = {f: thin(y, f, np.random.default_rng(seed)) for f in (less, more)}
    for f, chosen in kept.items():
        assert len(chosen) == max(round(f * len(y)), 1)
        share = len(chosen) / len(y)
        assert (abs(np.bincount(y[chosen], minlength=len(sizes)) - share * np.array(sizes)) < 2).all()
    assert set(kept[less]) <= set(kept[more])


def test_a_rare_class_is_kept_as_often_as_the_fraction_says():
    """One row of 100 at 50%, 400 times: 200 of them within 6 standard deviations, which fails 2e-9."""
    y = np.array([1] + [0] * 99)
    kept = sum(0 in thin(y, 0.5, np.random.default_rng(s)) for s in range(400))
    assert abs(kept - 200) < 6 * 10


def test_thinning_all_keeps_all_and_continuous_targets_are_thinned_at_random():
    y = np.linspace(0, 1, 50)
    assert thin(y, 1.0, np.random.default_rng(0)).tolist() == list(range(50))
    assert len(thin(y, 0.3, np.random.default_rng(0))) == 15
    assert thin(y[:0], 0.5, np.random.default_rng(0)).tolist() == []


# standardisation


def test_each_client_is_scaled_by_its_own_training_rows():
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [100.0, 7.0], [300.0, 9.0]])
    data = Dataset(x, torch.zeros(4), "gaussian", (), torch.tensor([0, 0, 1, 1]), ("a", "b"))
    made = federate(data, key=KEY, test=0.0, standardise="client")
    for client in made.clients:
        assert sorted(client.train.x[:, 0].tolist()) == [-1.0, 1.0]
    assert made.clients[0].train.x[:, 1].tolist() == [0.0, 0.0]  # a constant feature is centred
    assert sorted(made.clients[1].train.x[:, 1].tolist()) == [-1.0, 1.0]


def test_test_rows_are_scaled_by_the_training_rows():
    data = Dataset(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(50), "gaussian")
    raw, scaled = (federate(data, key=KEY, clients=1, standardise=s).clients[0] for s in ("none", "client"))
    expected = (raw.test.x - raw.train.x.mean(0)) / raw.train.x.std(0, correction=0)
    assert torch.allclose(scaled.test.x, expected, atol=1e-5)


def test_standardising_images_or_beside_shared_test_rows_is_refused():
    images = Dataset(torch.zeros(4, 1, 2, 2), torch.zeros(4), "gaussian")
    for data in (images, numbered(test=(torch.ones(1, 1), torch.tensor([0])))):
        with pytest.raises(ValueError, match="for tables"):
            federate(data, key=KEY, clients=1, standardise="client")


# tables


def test_counts_and_holdings():
    made = federate(sites([20, 10]), key=KEY, test=0.5)
    assert counts(made, split="all").tolist() == [[10, 10], [5, 5]]
    assert (counts(made) + counts(made, split="test") == counts(made, split="all")).all()
    first = holdings(made)[0]
    assert (first.name, first.train, first.test) == ("s0", 10, 10)
    assert list(first.classes) == counts(made)[0].tolist()


def test_counts_of_two_classes_scored_as_bernoulli():
    data = Dataset(torch.zeros(6, 1), torch.tensor([0, 1, 1, 1, 0, 1]), "bernoulli", ("no", "yes"))
    assert counts(federate(data, key=KEY, clients=1, test=0.0)).tolist() == [[2, 4]]


def test_regression_has_rows_and_no_classes():
    made = federate(Dataset(torch.zeros(10, 1), torch.randn(10), "gaussian"), key=KEY, clients=2)
    assert [(h.train, h.test, h.classes) for h in holdings(made)] == [(4, 1, ()), (4, 1, ())]
    with pytest.raises(ValueError, match="no classes to count"):
        counts(made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "0 <= test < 1"),
        ({"test": -0.1}, "0 <= test < 1"),
        ({"fraction": 0.0}, r"in \(0, 1\]"),
        ({"fraction": 1.5}, r"in \(0, 1\]"),
        ({"standardise": "clients"}, 'did you mean "client"'),
        ({"empty": "refuze"}, 'did you mean "refuse"'),
    ],
)
def test_senseless_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        federate(numbered(), key=KEY, clients=2, **options)
