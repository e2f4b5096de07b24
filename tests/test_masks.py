"""Masks: their derivative, how they are thinned out and merged, and that packing is numpy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import vmap

from pyrofl.masks import Wire, all_inputs, merged, mirrored, pack_bits, strongest_inputs, switched, unpack_bits
from pyrofl.tree import nbytes


@pytest.mark.parametrize("sigmoid", [True, False])
def test_a_mask_is_exactly_binary_and_its_derivative_goes_straight_through(sigmoid: bool) -> None:
    s = torch.tensor([-2.0, 0.3, 0.4, 5.0], dtype=torch.float64, requires_grad=True)
    m = switched(s, 0.35, sigmoid=sigmoid)
    assert m.tolist() == [0, 0, 1, 1]
    (g,) = torch.autograd.grad((m * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(), s)
    p = torch.sigmoid(s.detach())
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64) * (p * (1 - p) if sigmoid else 1)
    torch.testing.assert_close(g, expected)


def test_scores_are_mirrored_only_where_the_mask_says_otherwise() -> None:
    s = torch.tensor([-1.0, 0.5, 2.0, 3.0])
    on = torch.tensor([True, False, True, False])
    assert mirrored(s, 1.0, on).tolist() == [3.0, 0.5, 2.0, -1.0]


def test_the_strongest_inputs_are_those_of_highest_mean_score() -> None:
    s = torch.zeros(2, 4, 3)
    s[:, :, 0] = torch.tensor([[1.0, 9.0, 3.0, 0.0], [2.0, -9.0, 3.0, 5.0]])  # column sums 3, 0, 6, 5
    assert strongest_inputs(s, 0.5).flatten().tolist() == [False, False, True, True]
    assert strongest_inputs(s, 0.75).flatten().tolist() == [True, False, True, True]
    assert strongest_inputs(s, 0.01).sum() == 1 and strongest_inputs(s, 1.0).all()
    assert strongest_inputs(torch.zeros(3, 10), 0.3).flatten().tolist() == [True] * 3 + [False] * 7
    assert strongest_inputs(s, 0.5).shape == (1, 4, 1) == all_inputs(s).shape and all_inputs(s).all()


def bools(rows: list[str]) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


def test_an_element_is_decided_by_the_clients_that_use_its_input_and_every_client_gets_another_mask() -> None:
    masks = torch.stack([bools(["110", "010"]), bools(["110", "110"]), bools(["010", "001"]), bools(["100", "101"])])
    # input 0 is used by the first, second and fourth (votes 3 and 2), 1 by the first three, 2 by the last two (0 and 2)
    got = merged(masks, torch.ones(4, dtype=torch.bool))
    expected = [["110", "110"], ["110", "110"], ["010", "011"], ["100", "101"]]
    assert torch.equal(got, torch.stack([bools(rows) for rows in expected]))


def test_an_input_of_one_client_keeps_its_mask_and_a_tie_each_clients_own() -> None:
    masks = torch.stack([bools(["101", "100"]), bools(["010", "110"])])
    # input 0: both use it, row 0 is a tie, row 1 is not; inputs 1 and 2 have one user each
    assert torch.equal(merged(masks, torch.ones(2, dtype=torch.bool)), masks)
    three = torch.stack([*masks, bools(["100", "010"])])
    assert torch.equal(merged(three, torch.tensor([True, True, False]))[:2], masks), "the third has no vote"
    expected = torch.stack([bools(["101", "100"]), bools(["110", "110"]), bools(["100", "110"])])
    assert torch.equal(merged(three, torch.ones(3, dtype=torch.bool)), expected)


def test_all_ones_have_no_say_where_nobody_was_heard_of() -> None:
    masks = torch.ones(3, 2, 4, 3, 3, dtype=torch.bool)
    assert merged(masks, torch.zeros(3, dtype=torch.bool)).all()
    masks[0, :, 1] = False
    out = merged(masks, torch.tensor([True, False, False]))
    assert not out[0, :, 1].any() and out[1:, :, 1].all() and out[:, :, 0].all()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_bits_are_packed_as_numpy_does_and_come_back(count: int) -> None:
    bits = torch.tensor(np.random.default_rng(count).random((3, count)) < 0.5)
    packed = pack_bits(bits)
    assert packed.dtype == torch.uint8 and packed.shape == (3, -(-count // 8))
    np.testing.assert_array_equal(packed, np.packbits(bits.numpy(), axis=-1))
    assert torch.equal(unpack_bits(packed, count), bits)
    if count:
        assert torch.equal(vmap(pack_bits)(bits), packed)
        assert torch.equal(vmap(lambda b: unpack_bits(b, count))(packed), bits)


def test_masks_of_several_tensors_travel_as_one_bit_a_weight() -> None:
    like = {"a": torch.zeros(3, 5), "b": torch.zeros(2, 3, 2)}
    masks = {k: torch.tensor(np.random.default_rng(1).random((4, *v.shape)) < 0.5) for k, v in like.items()}
    wire = Wire(like)
    packed = wire.pack(masks)
    assert nbytes({"mask": packed[0]}) == 4  # 27 bits
    back = wire.unpack(packed)
    assert all(torch.equal(back[k], v) for k, v in masks.items())
    assert torch.equal(wire.pack({k: v[2] for k, v in masks.items()}), packed[2])
