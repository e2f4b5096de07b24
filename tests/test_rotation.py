"""Rotation of every client's images: angles, the rows that turn, and what shared rows look like to a client."""

import pytest
import torch
from support import build

from pyrofl import assemble
from pyrofl.config import ConfigError, config_of
from pyrofl.data import Data, Dataset, Rotation
from pyrofl.federation import federate
from pyrofl.methods import FedAvg
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.rotation import rotated
from pyrofl.shared_rows import SharedRows, shared_rows

KEY = root(5)


def images(n: int = 60, **more: object) -> Dataset:
    x = torch.rand(n, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    return Dataset(x, torch.arange(n) % 3, "categorical", ("a", "b", "c"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
@pytest.mark.parametrize("side", [5, 6])
def test_quarter_turns_are_exact(quarters: int, side: int) -> None:
    x = torch.rand(4, 2, side, side)
    torch.testing.assert_close(rotated(x, 90 * quarters), torch.rot90(x, quarters, (2, 3)), atol=1e-7, rtol=0)


def test_half_a_turn_of_an_oblong_image_is_exact() -> None:
    x = torch.rand(4, 1, 3, 8)
    torch.testing.assert_close(rotated(x, 180), x.flip(2, 3), atol=1e-7, rtol=0)


def test_an_oblong_image_is_not_sheared() -> None:
    """A quarter turn of the middle square of a wide image: pixels stay square, and the outside is 0."""
    x = torch.rand(3, 1, 4, 8)
    turned = rotated(x, 90)
    torch.testing.assert_close(turned[..., 2:6], torch.rot90(x[..., 2:6], 1, (2, 3)), atol=1e-7, rtol=0)
    assert turned[..., :2].abs().max() < 1e-7 and turned[..., 6:].abs().max() < 1e-7


def test_an_eighth_of_a_turn_takes_the_mean_of_the_pixels_around() -> None:
    """Of a 2 x 2 image: a centre comes from sqrt(1/2) off the middle, sqrt(1/2) - 1/2 beyond the centre of a side."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
    sides = torch.tensor([[(1 + 2) / 2, (2 + 4) / 2], [(1 + 3) / 2, (3 + 4) / 2]])  # counter-clockwise: right to top
    expected = sides * (1 - (0.5**0.5 - 0.5))  # the rest of the weight is that of zeros
    torch.testing.assert_close(rotated(x, 45)[0, 0], expected)


def test_no_turn_leaves_every_bit_and_no_rows_stay_none() -> None:
    x = torch.rand(4, 1, 7, 7)
    assert rotated(x, 0) is x and rotated(x, 360) is x
    assert rotated(x[:0], 30).shape == (0, 1, 7, 7)


def test_every_client_turns_all_its_rows_by_its_own_angle() -> None:
    common = (torch.rand(5, 2, 6, 6), torch.zeros(5).long())
    split = {"kind": "iid"}
    plain, turned = (
        federate(images(test=common), key=KEY, clients=4, split=split, validation=0.25, rotation=angle, unlabelled=6)
        for angle in (None, 180)
    )
    for k, (before, after) in enumerate(zip(plain.clients, turned.clients, strict=True)):
        assert before.transform is None and after.transform == Rotation(45.0 * k)
        assert before.valid is not None and after.valid is not None
        for a, b in ((before.train, after.train), (before.test, after.test), (before.valid, after.valid)):
            assert a.rows > 0 and torch.equal(a.y, b.y)
            assert torch.equal(b.x, rotated(a.x, 45.0 * k))
    assert torch.equal(plain.clients[0].train.x, turned.clients[0].train.x)
    torch.testing.assert_close(turned.clients[2].test.x, torch.rot90(plain.clients[2].test.x, 1, (2, 3)))
    assert turned.common is not None and torch.equal(turned.common.x, common[0]), "upright"
    assert plain.unlabelled is not None and turned.unlabelled is not None
    assert torch.equal(plain.unlabelled, turned.unlabelled), "upright"
    assert "images of client k = 0, ..., 3 turned by 45 k degrees" in turned.notes
    assert not any("turned" in note for note in plain.notes)


def test_noise_falls_on_the_turned_image() -> None:
    noise = {"kind": "pixel_std", "level": 0.1, "clip": False}
    quiet, loud, flat = (
        federate(images(), key=KEY, clients=4, rotation=angle, noise=n)
        for angle, n in ((180, None), (180, noise), (None, noise))
    )
    clean = federate(images(), key=KEY, clients=4)
    one, two, three, four = (made.clients[1].train.x for made in (loud, quiet, flat, clean))
    torch.testing.assert_close(one - two, three - four, atol=1e-6, rtol=0)


def test_tables_and_angles_out_of_range_are_refused() -> None:
    table = Dataset(torch.zeros(9, 3), torch.zeros(9).long(), "categorical", ("a",))
    with pytest.raises(ValueError, match=r"rotation is for images .* here x has shape \(9, 3\)"):
        federate(table, key=KEY, clients=3, rotation=90)
    for bad in (-1, 361, float("nan")):
        with pytest.raises(ValueError, match="in degrees, in \\[0, 360\\], got"):
            federate(images(), key=KEY, clients=3, rotation=bad)


@pytest.mark.parametrize("own", [True, False], ids=["the set's own test rows", "all clients' test rows"])
def test_each_client_sees_the_shared_rows_turned_as_its_own(own: bool) -> None:
    common = (torch.rand(8, 2, 6, 6), torch.arange(8) % 3) if own else None
    made = federate(images(test=common), key=KEY, clients=4, rotation=360)  # 0, 90, 180, 270: turning back is exact
    plain = federate(images(test=common), key=KEY, clients=4)
    together = shared_rows(plain)
    torch.testing.assert_close(shared_rows(made).x, together.x, atol=1e-6, rtol=0)

    seen: list[torch.Tensor] = []

    class Looking(FedAvg):
        def predict(self, theta, x, key):  # type: ignore[no-untyped-def]
            seen.append(x)
            return super().predict(theta, x[:, 0, 0, :3], key)

    method = Looking(build.program(guide="delta", prior="flat", dtype=torch.float32), SGD(0.1), size=4)
    visitor = SharedRows(method, made, ("balanced",), key=root(0), draws=1, together=False)
    for k in range(4):
        visitor.see(k, method.init(root(1)))
        torch.testing.assert_close(torch.cat(seen), torch.rot90(together.x, k, (2, 3)), atol=1e-6, rtol=0)
        seen.clear()


def test_the_key_reaches_the_clients_and_the_identity_of_a_run() -> None:
    table = {
        "rounds": 1,
        "data": {"name": "digits", "images": True, "limit": 6, "clients": 3},
        "model": {"name": "models.mlp:MLP", "hidden": 3},
        "method": {"name": "fedavg"},
    }
    upright, turned, more = (
        assemble(config_of({**table, "data": {**table["data"], **way}}))  # type: ignore[dict-item]
        for way in ({}, {"rotation": 90}, {"rotation": 60})
    )
    assert [c.transform for c in turned.federation.clients] == [Rotation(0.0), Rotation(30.0), Rotation(60.0)]
    assert turned.config.data["rotation"] == 90 and "rotation" not in upright.config.data
    assert len({a.config.identity() for a in (upright, turned, more)}) == 3
    with pytest.raises(ConfigError, match="data: rotation is for images"):
        assemble(config_of({**table, "data": {"name": "digits", "clients": 3, "rotation": 90}}))


def test_turning_back_is_close_inside() -> None:
    """A smooth image, away from the corners that were cut."""
    grid = torch.linspace(-1, 1, 40)
    x = torch.exp(-4 * (grid[:, None] - 0.2) ** 2 - 4 * grid[None] ** 2)[None, None]
    data = Data.of(x, torch.zeros(1))
    back = Rotation(30.0).undo(Rotation(30.0).apply(data)).x
    assert (Rotation(30.0).apply(data).x - x).abs().max() > 0.1
    torch.testing.assert_close(back[..., 10:30, 10:30], x[..., 10:30, 10:30], atol=0.01, rtol=0)
