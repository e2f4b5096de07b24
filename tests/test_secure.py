"""Secure aggregation: masks cancel in the sum and nowhere else, and methods that need more than a sum are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.compare import close, same

from pyrofl.secure import Secure, masked, public_key, total
from pyrofl.tree import Tree

DOWN: Tree = {"a": torch.tensor([1.0, -2.0]), "b": torch.zeros(1, 2)}
ROUND = b"round 1"


def ups(count: int) -> list[Tree]:
    rng = np.random.default_rng(1)
    away = lambda v: v + torch.tensor(rng.normal(size=v.shape), dtype=v.dtype)
    return [{k: away(v) for k, v in DOWN.items()} for _ in range(count)]


def sent(codes: list[Tree]) -> list[Tree]:
    pytest.importorskip("cryptography")
    keys = {i: public_key(bytes([i]) * 32, ROUND) for i in range(len(codes))}
    return [masked(q, i, keys, bytes([i]) * 32, ROUND) for i, q in enumerate(codes)]


def test_the_mean_of_masked_updates_is_the_mean_of_the_updates() -> None:
    secure, all_ups = Secure(), ups(5)
    messages = sent([secure.encode(up, DOWN) for up in all_ups])
    got = secure.decode_mean(total(messages), 5, DOWN, DOWN)
    close(got, {k: torch.stack([u[k] for u in all_ups]).mean(0) for k in DOWN}, tolerance=1e-6)


def test_a_single_message_and_a_part_of_the_sum_look_like_noise() -> None:
    pytest.importorskip("cryptography")
    zero = [{"a": torch.zeros(20_000, dtype=torch.int64)} for _ in range(3)]
    messages = sent(zero)
    for some in ([messages[0]], messages[:2]):
        u = total(some)["a"].numpy().view(np.uint64) / 2.0**64
        assert stats.kstest(u, "uniform").pvalue > 1e-4
    same(total(messages), zero[0])


def test_masks_belong_to_one_round_and_one_group() -> None:
    pytest.importorskip("cryptography")
    codes = {"a": torch.zeros(4, dtype=torch.int64)}
    keys = lambda sites, text: {i: public_key(bytes([i]) * 32, text) for i in sites}
    first = masked(codes, 0, keys(range(3), ROUND), bytes(32), ROUND)
    more = masked(codes, 0, keys(range(4), ROUND), bytes(32), ROUND)
    later = masked(codes, 0, keys(range(3), b"round 2"), bytes(32), b"round 2")
    assert len({tuple(m["a"].tolist()) for m in (first, more, later)}) == 3
    with pytest.raises(ValueError, match="a sum of 2 sites gives too much of them away: at least 3"):
        masked(codes, 0, keys(range(2), ROUND), bytes(32), ROUND)
    with pytest.raises(ValueError, match="a sum of 4 sites gives too much of them away: at least 5"):
        masked(codes, 0, keys(range(4), ROUND), bytes(32), ROUND, least=5)
    with pytest.raises(ValueError, match="does not hold this site's own key"):
        masked(codes, 0, keys(range(1, 4), ROUND), bytes(32), ROUND)


@pytest.mark.parametrize("bad", [17.0, -17.0, 1e30, math.nan, math.inf, -math.inf])
def test_each_tensor_is_checked_against_the_range(bad: float) -> None:
    secure = Secure(range=16.0)
    assert secure.reason(secure.encode({**DOWN, "b": torch.full((1, 2), 16.0)}, DOWN)) is None
    reason = secure.reason(secure.encode({**DOWN, "b": torch.tensor([[0.0, bad]])}, DOWN))
    assert reason == "tensor 'b' has moved by more than secure.range = 16, or is not finite"


SENSELESS = [("range", 0.0), ("range", math.inf), ("bits", 7), ("bits", 60), ("least", 2)]


@pytest.mark.parametrize(("field", "value"), SENSELESS)
def test_senseless_numbers_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"secure.{field} must be"):
        Secure(**{field: value})  # type: ignore[arg-type]
