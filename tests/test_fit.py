"""The local training loop: steps, frozen names, shifts, what is logged, and losses that are not finite."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.compare import close, same
from torch import Tensor
from torch.func import vmap

from pyrofl.data import Batch, Data
from pyrofl.engines import Failure, Job, Vectorised
from pyrofl.fit import NonFinite, descend, fit, slope, with_gradient
from pyrofl.method import Reply
from pyrofl.optim import SGD, Adam, Optimizer
from pyrofl.random import fold, root
from pyrofl.tree import Tree


def numbers(*values: float) -> Data:
    x = torch.tensor(values, dtype=torch.float64).reshape(-1, 1)
    return Data.of(x, torch.zeros(len(values), dtype=torch.int64))


def square(theta: Tree, batch: Batch, key: Tensor) -> Tensor:
    """Mean over live rows of (w + v - x)^2 / 2."""
    gap = theta["w"] + theta["v"] - batch.x[:, 0]
    return torch.where(batch.live, gap * gap / 2, 0.0).sum() / batch.live.sum()


START = {"w": torch.tensor(3.0, dtype=torch.float64), "v": torch.tensor(0.0, dtype=torch.float64)}


def test_steps_are_those_of_gradient_descent_by_hand() -> None:
    theta, info = fit(square, START, numbers(1.0, 2.0), root(1), optimizer=SGD(0.1), epochs=2, size=2)
    s = 3.0  # w + v, which moves by twice the rate
    losses = []
    for _ in range(2):
        losses.append(((s - 1) ** 2 + (s - 2) ** 2) / 4)
        s -= 0.2 * (s - 1.5)
    assert float(theta["w"] + theta["v"]) == pytest.approx(s, rel=1e-12)
    assert float(theta["w"] - theta["v"]) == pytest.approx(3.0, rel=1e-12)
    assert float(info["steps"]) == 2
    assert float(info["loss"]) == pytest.approx(losses[-1], rel=1e-12), "the mean over the last epoch"


def test_every_row_weighs_the_same_in_the_logged_loss() -> None:
    _, info = fit(square, START, numbers(1.0, 1.0, 9.0), root(1), optimizer=SGD(1e-12), epochs=1, size=2)
    assert float(info["loss"]) == pytest.approx((4 + 4 + 36) / 6, rel=1e-6), "the last batch holds one row"


def test_scalars_of_the_loss_are_logged_and_not_minimised() -> None:
    def loss(theta: Tree, batch: Batch, key: Tensor) -> tuple[Tensor, Tree]:
        return square(theta, batch, key), {"mean": batch.x.mean(), "twice": 2 * theta["w"].detach()}

    theta, info = fit(loss, START, numbers(1.0, 2.0), root(1), optimizer=SGD(0.1), epochs=1, size=2)
    plain, _ = fit(square, START, numbers(1.0, 2.0), root(1), optimizer=SGD(0.1), epochs=1, size=2)
    same(theta, plain)
    assert float(info["mean"]) == 1.5 and float(info["twice"]) == 6


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9, decay=0.5), Adam(0.1, decay=0.5)], ids=["sgd", "adam"])
@pytest.mark.parametrize("mapped", [False, True])
def test_names_that_are_not_trained_keep_their_bits(optimizer: Optimizer, mapped: bool) -> None:
    def run(key: Tensor) -> Tree:
        return fit(square, START, numbers(1.0, 2.0), key, optimizer=optimizer, epochs=3, size=1, names={"w"})[0]

    theta = {k: v[0] for k, v in vmap(run)(root(1).reshape(1)).items()} if mapped else run(root(1))
    same({"v": theta["v"]}, {"v": START["v"]})
    assert float(theta["w"]) != 3.0
    assert list(theta) and theta.keys() == START.keys()


def test_a_shift_is_added_to_every_gradient() -> None:
    shift = {
        "w": torch.tensor(0.5, dtype=torch.float64),
        "v": torch.tensor(-0.5, dtype=torch.float64),
        "other": torch.ones(2),
    }
    theta, _ = fit(square, START, numbers(1.0), root(1), optimizer=SGD(0.1), epochs=1, size=1, shift=shift)
    assert float(theta["w"]) == pytest.approx(3 - 0.1 * (2 + 0.5))
    assert float(theta["v"]) == pytest.approx(0 - 0.1 * (2 - 0.5))


def test_a_pull_is_the_gradient_of_half_the_squared_distance_and_is_not_logged() -> None:
    anchor = {"w": torch.tensor(1.0, dtype=torch.float64), "v": torch.tensor(0.0, dtype=torch.float64)}
    at = {"optimizer": SGD(0.1), "epochs": 1, "size": 1}
    theta, info = fit(square, START, numbers(1.0), root(1), pull=(0.7, anchor), **at)
    assert float(theta["w"]) == pytest.approx(3 - 0.1 * (2 + 0.7 * (3 - 1)))
    assert float(theta["v"]) == pytest.approx(0 - 0.1 * 2)
    assert float(info["loss"]) == pytest.approx(2.0)
    assert float(anchor["w"]) == 1.0


def test_a_tree_of_one_tensor_is_not_changed_in_place() -> None:
    start = {"w": torch.tensor([1.0, 2.0])}
    loss = lambda theta, batch, key: (theta["w"] ** 2).sum()
    theta, _ = fit(loss, start, build.rows(4), root(1), optimizer=Adam(0.1), epochs=2, size=2)
    assert start["w"].tolist() == [1, 2] and theta["w"].tolist() != [1, 2]


def test_every_step_draws_from_its_own_key() -> None:
    seen: list[int] = []

    def loss(theta: Tree, batch: Batch, key: Tensor) -> Tensor:
        seen.append(int(key))
        return square(theta, batch, key)

    fit(loss, START, numbers(1.0, 2.0, 3.0), root(1), optimizer=SGD(0.1), epochs=4, size=1)
    assert len(set(seen)) == 12


def test_fit_is_the_same_under_vmap_with_clients_of_other_sizes() -> None:
    data = [numbers(1.0, 2.0, 3.0, 4.0, 5.0), numbers(9.0), numbers(-1.0, 4.0)]
    padded = [torch.cat([d.x, torch.full((5 - d.rows, 1), torch.nan, dtype=torch.float64)]) for d in data]
    keys = fold(root(2), torch.arange(3))
    for optimizer in (SGD(0.1, momentum=0.5), Adam(0.1)):

        def run(x: Tensor, n: Tensor, key: Tensor, optimizer: Optimizer = optimizer) -> tuple[Tree, Tree]:
            rows = Data(x, torch.zeros(5, dtype=torch.int64), n)
            return fit(square, START, rows, key, optimizer=optimizer, epochs=1.5, size=2)

        thetas, infos = vmap(run)(torch.stack(padded), torch.stack([d.n for d in data]), keys)
        for i, d in enumerate(data):
            theta, info = fit(square, START, d, keys[i], optimizer=optimizer, epochs=1.5, size=2)
            close({k: v[i] for k, v in thetas.items()}, theta, tolerance=1e-12)
            close({k: v[i] for k, v in infos.items()}, info, tolerance=1e-12)


def poisoned(at: float, tensor: str) -> object:
    """`square`, whose gradient in `tensor` is NaN on the batch that holds the row `at`."""

    def loss(theta: Tree, batch: Batch, key: Tensor) -> Tensor:
        bad = torch.where((batch.x[:, 0] == at).any(), torch.nan, 0.0)
        return (
            square(theta, batch, key)
            + (theta[tensor] - theta[tensor].detach()) * bad.nan_to_num(0)
            + theta[tensor] * bad
        )

    return loss


def test_a_loss_that_is_not_finite_is_found_at_its_step() -> None:
    values = [float(i) for i in range(6)]
    order = [float(b.x[0, 0]) for _, b in build.steps(numbers(*values), fold(root(1), "order"), 1, 1)]
    with pytest.raises(NonFinite) as error:
        fit(poisoned(order[4], "v"), START, numbers(*values), root(1), optimizer=SGD(0.1), epochs=1, size=1)  # type: ignore[arg-type]
    assert (error.value.step, error.value.tensor) == (4, "v")
    assert str(error.value) == "step 4: the loss is nan and the gradient of 'v' is not finite"


def test_an_infinite_loss_without_a_bad_gradient_is_found_too() -> None:
    loss = lambda theta, batch, key: square(theta, batch, key) + torch.inf
    with pytest.raises(NonFinite, match="step 0: the loss is inf") as error:
        fit(loss, START, numbers(1.0), root(1), optimizer=SGD(0.1), epochs=1, size=1)
    assert "'no tensor'" not in str(error.value)


def test_under_vmap_the_engine_names_client_step_and_tensor_and_the_others_go_on() -> None:
    order = [float(b.x[0, 0]) for _, b in build.steps(numbers(1.0, 2.0), fold(fold(root(7), 1), "order"), 1, 1)]
    loss = poisoned(order[1], "w")

    def local(down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        up, info = fit(loss, down, data, key, optimizer=SGD(0.1), epochs=1, size=1)  # type: ignore[arg-type]
        return Reply(up, own, info)

    rows = {0: numbers(5.0, 6.0), 1: numbers(1.0, 2.0), 2: numbers(7.0, 8.0)}
    jobs = [Job(i, START, {}, data, fold(root(7), i)) for i, data in rows.items()]
    engine = Vectorised()
    out = dict(engine.map(local, jobs))
    assert engine.fallback is None
    failure = out[1]
    assert isinstance(failure, Failure)
    assert (failure.client, failure.reason) == (1, "step 1: the loss is nan and the gradient of 'w' is not finite")
    assert "Traceback" in failure.details and "NonFinite" in failure.details
    for i in (0, 2):
        close(out[i].up, local(*jobs[i][1:]).up, tolerance=1e-12)


def test_a_client_without_rows_keeps_its_parameters() -> None:
    data = numbers(1.0)._replace(n=torch.tensor(0))
    theta, info = fit(square, START, data, root(1), optimizer=SGD(0.1), epochs=2, size=2)
    same(dict(theta), START)
    assert float(info["steps"]) == 0


def test_the_slope_is_the_gradient_of_the_named_tensors_beside_the_loss() -> None:
    batch = Batch.of(torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.zeros(2))
    loss = lambda theta, batch, key: (square(theta, batch, key), {"twice": 2 * theta["w"].detach()})
    g, (value, scalars) = slope(loss, START, batch, root(1), {"w"})
    assert g.keys() == {"w"} and float(g["w"]) == pytest.approx(1.5)
    assert float(value) == pytest.approx((4 + 1) / 4) and float(scalars["twice"]) == 6


def test_descending_repeats_one_batch_with_its_pull() -> None:
    batch = Batch.of(torch.tensor([[1.0]], dtype=torch.float64), torch.zeros(1))
    anchor = {"w": torch.tensor(5.0, dtype=torch.float64), "v": torch.tensor(9.0)}
    w = 3.0
    for _ in range(4):
        w -= 0.1 * ((w - 1) + 0.5 * (w - 5))
    got = descend(square, START, batch, root(1), rate=0.1, steps=4, names={"w"}, pull=(0.5, anchor))
    assert float(got["w"]) == pytest.approx(w, rel=1e-12) and float(got["v"]) == 0
    assert float(START["w"]) == 3.0
    seen: list[int] = []
    descend(lambda t, b, k: (seen.append(int(k)), square(t, b, k))[1], START, batch, root(1), rate=0.1, steps=3)
    assert len(set(seen)) == 3, "each step draws its own noise"


def test_a_given_gradient_takes_the_place_of_the_losss_own() -> None:
    def loss(theta: Tree, batch: Batch, key: Tensor) -> Tensor:
        value = square(theta, batch, key) + 7 * theta["v"] ** 2
        return with_gradient(value, theta, {"w": torch.tensor(2.0), "v": 0.5 * theta["w"]})

    theta, info = fit(loss, START, numbers(1.0), root(1), optimizer=SGD(0.1), epochs=1, size=1)
    assert float(theta["w"]) == pytest.approx(3 - 0.2) and float(theta["v"]) == pytest.approx(-0.15)
    assert float(info["loss"]) == pytest.approx(2.0)
    mapped, _ = vmap(lambda k: fit(loss, START, numbers(1.0), k, optimizer=SGD(0.1), epochs=1, size=1))(
        root(1).reshape(1)
    )
    close({k: v[0] for k, v in mapped.items()}, dict(theta), tolerance=1e-12)


@pytest.mark.parametrize("mapped", [False, True])
def test_what_follows_a_step_changes_only_what_is_not_trained_and_only_while_the_client_trains(mapped: bool) -> None:
    def run(data: Data, key: Tensor) -> Tree:
        follow = lambda t, theta, batch, k: {"v": 0.5 * theta["v"] + theta["w"], "last": torch.full_like(theta["v"], t)}
        start = {**START, "last": torch.tensor(-1.0, dtype=torch.float64)}
        return fit(square, start, data, key, optimizer=SGD(0.1), epochs=2, size=2, names={"w"}, after=follow)[0]

    data = Data(*numbers(1.0, 2.0, 0.0, 0.0)[:2], torch.tensor(2))  # two steps, of the four that its shape allows
    alike = {k: v.unsqueeze(0) for k, v in data._asdict().items()}
    one = lambda x, y, n, key: run(Data(x, y, n), key)
    theta = (
        {k: v[0] for k, v in vmap(one)(*alike.values(), root(1).reshape(1)).items()} if mapped else run(data, root(1))
    )
    w, v = 3.0, 0.0
    for _ in range(2):
        w -= 0.1 * (w + v - 1.5)
        v = 0.5 * v + w
    assert [float(theta[k]) for k in ("w", "v", "last")] == pytest.approx([w, v, 1.0], rel=1e-12)
