"""Noise: its size, the splits it touches, and that a row's noise is fixed."""

import pytest
import torch

from pyrofl.data import Data, Dataset
from pyrofl.federation import federate
from pyrofl.noise import Noise
from pyrofl.random import root

KEY = root(5)
GREY = Data.of(torch.full((400, 1, 16, 16), 0.5), torch.arange(400) % 4)  # 102,400 pixels


@pytest.mark.parametrize(("kind", "deviation"), [("pixel_std", 0.01), ("pixel_variance", 0.1)])
def test_the_level_is_a_standard_deviation_or_a_variance(kind, deviation):
    """The standard deviation of n normals has a relative error of 1/sqrt(2n) = 0.22%: 6 of them fail 2e-9."""
    drawn = Noise(kind, 0.01, clip=False)(GREY, 4, KEY).x - GREY.x
    assert drawn.std().item() == pytest.approx(deviation, rel=6 * 0.0022)
    assert abs(drawn.mean().item()) < 6 * deviation / 102_400**0.5


def test_labels_flip_with_the_given_probability_to_each_other_class_alike():
    """20,000 labels: counts lie within 6 standard deviations, which fails 2e-9 a count."""
    y = torch.zeros(20_000, dtype=torch.int64) + 2
    flipped = Noise("label_flip", 0.3)(Data.of(torch.zeros(20_000, 1), y), 4, KEY).y
    n = torch.bincount(flipped, minlength=4).tolist()
    assert abs(n[2] - 14_000) < 6 * (20_000 * 0.3 * 0.7) ** 0.5
    for other in (0, 1, 3):
        assert abs(n[other] - 2000) < 6 * (20_000 * 0.1 * 0.9) ** 0.5


@pytest.mark.parametrize("kind", ["pixel_std", "pixel_variance", "label_flip"])
def test_level_zero_changes_nothing_and_the_input_is_never_changed(kind):
    x, y = GREY.x.clone(), GREY.y.clone()
    same = Noise(kind, 0.0)(GREY, 4, KEY)
    Noise(kind, 0.5)(GREY, 4, KEY)
    assert torch.equal(same.x, x) and torch.equal(same.y, y)
    assert torch.equal(GREY.x, x) and torch.equal(GREY.y, y)


def test_every_label_flips_at_level_one():
    assert not (Noise("label_flip", 1.0)(GREY, 4, KEY).y == GREY.y).any()


def test_clipping_keeps_pixels_in_range_and_refuses_tables():
    loud = Noise("pixel_std", 2.0)(GREY, 4, KEY).x
    assert loud.min() == 0 and loud.max() == 1
    with pytest.raises(ValueError, match=r"span -1 to 3: set clip = false"):
        Noise("pixel_std", 0.1)(Data.of(torch.tensor([[-1.0], [3.0]]), torch.zeros(2)), 0, KEY)


@pytest.mark.parametrize("splits", [["train"], ["test"], ["train", "common"]])
def test_noise_touches_the_named_splits_only(splits):
    x = torch.full((60, 3), 0.5)
    data = Dataset(x, torch.arange(60) % 2, "categorical", ("a", "b"), test=(x[:5], torch.zeros(5).long()))
    noise = {"kind": "pixel_std", "level": 0.1, "splits": splits}
    made = federate(data, key=KEY, clients=3, noise=noise)
    for client in made.clients:
        assert bool((client.train.x != 0.5).any()) == ("train" in splits)
        assert bool((client.test.x != 0.5).any()) == ("test" in splits)
    assert bool((made.common.x != 0.5).any()) == ("common" in splits)
    assert not torch.equal(made.clients[0].train.x, made.clients[1].train.x) or "train" not in splits


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "pixel_sd", "level": 0.1}, 'did you mean "pixel_std"'),
        ({"kind": "pixel_std", "level": -0.1}, r"must lie in \[0, inf\]"),
        ({"kind": "label_flip", "level": 1.1}, r"must lie in \[0, 1\]"),
        ({"kind": "pixel_std", "level": float("nan")}, "must lie in"),
        ({"kind": "pixel_std", "level": 0.1, "splits": ["trian"]}, 'did you mean "train"'),
        ({"kind": "pixel_std", "level": 0.1, "splits": "train"}, "noise.splits = 'train'"),
        ({"kind": "pixel_std", "levels": 0.1}, 'did you mean "level"'),
        ({"kind": "pixel_std"}, "noise.level is missing"),
    ],
)
def test_a_wrong_table_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        Noise.of(table)


def test_flipping_targets_that_are_no_classes_is_refused():
    with pytest.raises(ValueError, match="needs classes"):
        Noise("label_flip", 0.1)(Data.of(torch.zeros(3, 1), torch.zeros(3)), 0, KEY)
