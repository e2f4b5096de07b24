"""The gate: what is refused, with which words, and which replies stand out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrofl.gate import Contract, Outliers, norm
from pyrofl.tree import Tree

GOOD: Tree = {"w": torch.zeros(2, 3), "scale": torch.ones(3), "n": torch.tensor(4)}
CONTRACT = Contract.of(GOOD, positive=frozenset({"scale"}))


def changed(name: str, value: Any) -> dict[Any, Any]:
    return {**GOOD, name: value}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "the reply is a NoneType, not named tensors"),
        ([torch.zeros(2, 3)], "the reply is a list, not named tensors"),
        (torch.zeros(2), "the reply is a Tensor, not named tensors"),
        ({}, "tensor 'n' is missing (and 2 more)"),
        ({"w": GOOD["w"], "scale": GOOD["scale"]}, "tensor 'n' is missing"),
        (changed("extra", torch.zeros(1)), "tensor 'extra' is not expected"),
        (changed(7, torch.zeros(1)), "tensor '7' is not expected"),  # type: ignore[arg-type]
        (changed("w", [[0.0] * 3] * 2), "'w' is a list, not a tensor"),
        (changed("w", None), "'w' is a NoneType, not a tensor"),
        (changed("w", torch.zeros(3, 2)), "tensor 'w' has shape (3, 2), expected (2, 3)"),
        (changed("w", torch.zeros(6)), "tensor 'w' has shape (6,), expected (2, 3)"),
        (changed("n", torch.tensor([4])), "tensor 'n' has shape (1,), expected ()"),
        (
            changed("w", torch.zeros(2, 3, dtype=torch.float64)),
            "tensor 'w' has dtype torch.float64, expected torch.float32",
        ),
        (changed("n", torch.tensor(4.0)), "tensor 'n' has dtype torch.float32, expected torch.int64"),
        (changed("w", torch.tensor([[0.0, torch.nan, 0.0]] * 2)), "tensor 'w' holds NaN"),
        (changed("w", torch.tensor([[0.0, -torch.inf, 0.0]] * 2)), "tensor 'w' holds an infinite value"),
        (changed("w", torch.full((2, 3), torch.nan).fill_(torch.nan)), "tensor 'w' holds NaN"),
        (changed("scale", torch.tensor([1.0, 0.0, 1.0])), "tensor 'scale' must be positive, its smallest value is 0"),
        (
            changed("scale", torch.tensor([1.0, -2.5, 1.0])),
            "tensor 'scale' must be positive, its smallest value is -2.5",
        ),
    ],
)
def test_a_malformed_reply_is_refused_by_name_and_reason(reply: Any, reason: str) -> None:
    assert CONTRACT.reason(reply) == reason


def test_a_good_reply_passes() -> None:
    assert CONTRACT.reason(GOOD) is None
    assert CONTRACT.reason({k: GOOD[k] for k in reversed(GOOD)}) is None, "in any order"
    assert Contract.of({}).reason({}) is None


anything = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.floats(),
    st.binary(max_size=3),
    st.builds(torch.full, st.lists(st.integers(0, 3), max_size=3), st.floats(width=32)),
    st.sampled_from(
        [torch.zeros(2, 3), torch.ones(3), torch.tensor(4), torch.tensor(True), torch.zeros(2, 3).to_sparse()]
    ),
)


@given(
    st.one_of(
        anything,
        st.dictionaries(st.one_of(st.sampled_from(["w", "scale", "n"]), st.text(max_size=2), st.integers()), anything),
    )
)
def test_whatever_arrives_is_refused_with_a_reason_or_passes_whole(reply: Any) -> None:
    reason = CONTRACT.reason(reply)
    if reason is not None:
        assert reason
        return
    assert reply.keys() == GOOD.keys()
    for name, like in GOOD.items():
        assert reply[name].shape == like.shape and reply[name].dtype == like.dtype
        assert torch.isfinite(reply[name]).all()
    assert (reply["scale"] > 0).all()


def ups(*sizes: float) -> dict[int, Tree]:
    return {i: {"w": torch.full((4,), s / 2)} for i, s in enumerate(sizes)}


def test_norms_are_of_all_floating_tensors_in_float64() -> None:
    assert norm({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]]), "n": torch.tensor(1000)}) == 5
    assert norm({"a": torch.full((4,), 1e30)}) == pytest.approx(2e30), "no overflow of float32"
    assert norm({}) == 0


def test_a_reply_far_beyond_the_median_stands_out() -> None:
    found = Outliers(factor=100.0).find(ups(1.0, 2.0, 3.0, 1e30))
    assert list(found) == [3]
    assert found[3] == "its norm 1e+30 is 4e+29 times the cohort's median 2.5"
    assert Outliers(factor=100.0).find(ups(1.0, 2.0, 200.0)) == {}, "100 times the median is allowed"
    assert list(Outliers(factor=100.0).find(ups(1.0, 2.0, 201.0))) == [2]


def test_policies() -> None:
    wild = ups(1.0, 1.0, 1e30)
    assert Outliers("flag").find(wild).keys() == Outliers("reject").find(wild).keys() == {2}
    assert Outliers("ignore").find(wild) == {}
    assert Outliers().policy == "flag"


def test_small_cohorts_and_zero_medians_have_nothing_to_compare_with() -> None:
    assert Outliers().find(ups(1.0, 1e30)) == {}
    assert Outliers().find(ups(0.0, 0.0, 1.0)) == {}
    assert Outliers().find({i: {} for i in range(4)}) == {}


@pytest.mark.parametrize("factor", [1.0, 0.0, -5.0, float("nan")])
def test_a_factor_that_flags_everything_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"outliers\.factor must be above 1"):
        Outliers(factor=factor)
