"""A client's rows: batches, epochs, padding and held-out parts."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import build
from torch.func import vmap

from pyrofl.data import Batch, Client, Data, Dataset, Federation
from pyrofl.random import fold, root


def numbered(n: int, padding: int = 0) -> Data:
    """Row i holds the number i; padding holds NaN."""
    x = torch.full((n + padding, 1), torch.nan)
    x[:n, 0] = torch.arange(n)
    return Data(x, torch.arange(n + padding), torch.tensor(n))


def live_rows(batch: Batch) -> list[int]:
    return batch.x[batch.live, 0].long().tolist()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 9))
@settings(deadline=None)
def test_an_epoch_visits_every_row_once(n: int, size: int, epochs: int, padding: int) -> None:
    data = numbered(n, padding)
    batches = [b for live, b in build.steps(data, root(1), epochs, size) if live]
    per_epoch = math.ceil(n / size)
    assert len(batches) == epochs * per_epoch == int(data.steps(epochs, size))
    for e in range(epochs):
        seen = Counter(i for b in batches[e * per_epoch : (e + 1) * per_epoch] for i in live_rows(b))
        assert seen == Counter(range(n))
    for b in batches:
        assert torch.isfinite(b.x).all(), "padding is never seen"
        assert float(b.weight.sum()) == pytest.approx(1)
        assert len(b.x) == size
        distinct = b.x[b.distinct, 0].tolist()
        assert len(distinct) == len(set(distinct)) == min(size, n)
        assert float(b.n) == n


def test_every_epoch_and_every_key_has_its_own_order() -> None:
    data = numbered(30)
    one = [live_rows(b) for _, b in build.steps(data, root(1), 2, 30)]
    other = [live_rows(b) for _, b in build.steps(data, root(2), 2, 30)]
    assert one[0] != one[1] and one[0] != other[0]
    assert one == [live_rows(b) for _, b in build.steps(data, root(1), 2, 30)]


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 500))
def test_fractional_epochs_are_whole_batches_rounded_up(n: int, size: int, hundredths: int) -> None:
    epochs = hundredths / 100
    exact = math.ceil(Fraction(hundredths, 100) * math.ceil(Fraction(n, size)))
    data = numbered(n)
    assert data.max_steps(epochs, size) == exact
    assert int(data.steps(epochs, size)) == exact


def test_half_an_epoch_takes_half_the_batches() -> None:
    batches = [live_rows(b) for live, b in build.steps(numbered(40), root(1), 0.5, 10) if live]
    assert [len(b) for b in batches] == [10, 10]
    assert len({i for b in batches for i in b}) == 20


@pytest.mark.parametrize(("n", "size"), [(100, 97), (103, 100), (7, 32), (1, 8), (64, 64)])
def test_the_kl_of_an_epoch_adds_up_to_one_whatever_the_last_batch_holds(n: int, size: int) -> None:
    """A step minimises nll + kl / n; weighted by its rows, an epoch counts every row's loss and the KL once."""
    data = numbered(n)
    steps = [b for live, b in build.steps(data, root(3), 1, size) if live]
    rows = [int(b.live.sum()) for b in steps]
    assert sum(rows) == n
    assert sum(r / float(b.n) for r, b in zip(rows, steps, strict=True)) == pytest.approx(1)


def test_the_kl_weight_in_the_loss_does_not_depend_on_the_batch() -> None:
    program, data = build.program(), build.rows(103)
    theta = program.init(root(1))
    kls = [
        float(program.parts(theta, b, fold(root(2), t))[1]["kl"])
        for t, (_, b) in enumerate(build.steps(data, root(3), 1, 100))
    ]
    assert len(kls) == 2 and kls[0] > 0 and kls[0] == pytest.approx(kls[1], rel=1e-12)
    few = data._replace(n=torch.tensor(50))
    (_, batch), *_ = build.steps(few, root(3), 1, 100)
    assert float(program.parts(theta, batch, root(2))[1]["kl"]) == pytest.approx(kls[0] * 103 / 50, rel=1e-12)


def test_a_batch_larger_than_the_client_holds_every_row() -> None:
    ((live, batch),) = build.steps(numbered(5), root(1), 1, 32)
    assert live and sorted(live_rows(batch)) == [0, 1, 2, 3, 4]


def test_a_client_without_rows_takes_no_step() -> None:
    assert int(numbered(0, 4).steps(3, 2)) == 0
    assert not any(live for live, _ in build.steps(numbered(0, 4), root(1), 3, 2))
    assert build.steps(Data.of(torch.zeros(0, 1), torch.zeros(0)), root(1), 3, 2) == []


def test_the_schedule_counts_the_rows_of_the_last_epoch() -> None:
    data = numbered(11, 5)
    counted = data.schedule(root(1), 2.5, 4).last_epoch.tolist()
    held = [int(b.live.sum()) for live, b in build.steps(data, root(1), 2.5, 4) if live]
    assert held == [4, 4, 3, 4, 4, 3, 4, 4]
    assert counted[: len(held)] == [0] * 5 + held[5:], "the last three of eight steps, an epoch's worth"
    assert not any(counted[len(held) :])


def test_padding_does_not_change_the_batches() -> None:
    plain = [live_rows(b) for live, b in build.steps(numbered(11), root(1), 2, 4) if live]
    padded = [live_rows(b) for live, b in build.steps(numbered(11, 9), root(1), 2, 4) if live]
    assert plain == padded


def test_batches_are_the_same_under_vmap() -> None:
    data = [numbered(6, 3), numbered(9, 0)]
    both = Data(*(torch.stack([d[i] for d in data]) for i in range(3)))
    keys = fold(root(4), torch.arange(2))
    mapped = vmap(lambda x, y, n, k: build.steps(Data(x, y, n), k, 1, 4))(*both, keys)
    for c in range(2):
        alone = build.steps(data[c], keys[c], 1, 4)
        assert len(alone) == len(mapped) == 3
        for (live, batch), (lives, batches) in zip(alone, mapped, strict=True):
            assert bool(live) == bool(lives[c])
            for a, b in zip(batch, batches, strict=True):
                assert torch.equal(a, b[c])


def test_chunks_are_all_rows_once_in_order() -> None:
    data = numbered(7, 3)
    assert [i for b in data.chunks(4) for i in live_rows(b)] == list(range(7))
    assert all(torch.isfinite(b.x).all() for b in data.chunks(4))


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.integers(0, 8))
def test_split_holds_out_the_last_rows(n: int, part: float, padding: int) -> None:
    data = numbered(n, padding)
    first, last = data.split(part)
    a, b = first.x[: first.rows, 0].tolist(), last.x[: last.rows, 0].tolist()
    assert a + b == list(range(n)), "disjoint, exhaustive and in order"
    if n >= 2:
        assert a and b
        expected = min(max(round(n * part), 1), n - 1)
        assert abs(len(b) - expected) <= 1
    else:
        assert a and not b


def test_split_is_the_same_under_vmap() -> None:
    data = [numbered(n, 12 - n) for n in (12, 5, 2, 1)]
    both = Data(*(torch.stack([d[i] for d in data]) for i in range(3)))
    first, last = vmap(lambda x, y, n: Data(x, y, n).split(0.25))(*both)
    for c, d in enumerate(data):
        for together, alone in ((first, d.split(0.25)[0]), (last, d.split(0.25)[1])):
            n = alone.rows
            assert int(together.n[c]) == n
            assert torch.equal(together.y[c, :n], alone.y[:n])


def test_rows_of_x_and_y_must_match() -> None:
    with pytest.raises(ValueError, match="x has 3 rows and y has 2"):
        Data.of(torch.zeros(3, 1), torch.zeros(2))


def test_a_federation_knows_its_shapes() -> None:
    f = build.federation()
    assert (len(f), f.shape, f.outputs) == (5, (build.FEATURES,), 3)
    assert Federation(f.clients, "gaussian").outputs == 1
    assert Dataset(torch.zeros(2, 1), torch.zeros(2), "poisson").classes == ()


@pytest.mark.parametrize("n", [0, 1, 3, 12])
def test_a_sample_is_different_real_rows_drawn_at_random(n: int) -> None:
    data, padded = numbered(n, 1), numbered(n, 6)
    drawn = [live_rows(data.sample(fold(root(3), i), 4)) for i in range(200)]
    assert all(len(set(rows)) == len(rows) == min(n, 4) for rows in drawn)
    assert drawn == [live_rows(padded.sample(fold(root(3), i), 4)) for i in range(200)]
    counts = Counter(i for rows in drawn for i in rows)
    assert counts.keys() == set(range(n))
    if n == 12:  # each row in a third of the samples, give or take four standard errors
        assert all(abs(c - 200 / 3) < 4 * math.sqrt(200 * 2 / 9) for c in counts.values())


def test_names_that_stand_for_no_single_client_are_refused() -> None:
    rows = Data.of(torch.zeros(2, 1), torch.zeros(2))
    Federation((Client("a (b)", rows, rows),), "gaussian")
    with pytest.raises(ValueError, match=r"client '\(pooled\)': names in parentheses .* rename it"):
        Federation((Client("a", rows, rows), Client("(pooled)", rows, rows)), "gaussian")
