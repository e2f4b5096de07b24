"""FedMask: a network that never changes, masks of one bit a weight, and another aggregate for each client."""

from __future__ import annotations

import math

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import same
from torch import Tensor

from pyrofl.data import Batch
from pyrofl.masks import Wire
from pyrofl.method import Cohort
from pyrofl.methods import FedMask
from pyrofl.optim import SGD
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.tree import Tree, nbytes, only, pack, part

WEIGHTS = ("guide.net.body.0.weight_unconstrained", "guide.net.head.weight_unconstrained")  # (4, 3) and (3, 4)


def method_of(program: Program | None = None, **options: object) -> FedMask:
    return FedMask(program or build.program(guide="delta", prior="flat"), **options)  # type: ignore[arg-type]


def begun(method: FedMask) -> tuple[Tree, Tree]:
    down = method.down(method.init(root(1)), 0)
    return down, method.join(down)


def test_all_ones_are_the_frozen_network_of_the_runs_seed() -> None:
    method = method_of(seed=7)
    down, own = begun(method)
    W0 = method.program.init(root(7))
    same(method.personal(down, own, build.rows(4), root(3)), W0)
    other = method_of(seed=8)
    assert not torch.equal(other.personal(*begun(other), build.rows(4), root(3))[WEIGHTS[0]], W0[WEIGHTS[0]])


def test_one_bit_a_weight_travels_each_way() -> None:
    method = method_of(clients=5)
    down, own = begun(method)
    reply = method.local(down, own, build.rows(9), root(2))
    assert reply.up.keys() == {"mask"} == down.keys() and reply.up["mask"].dtype == torch.uint8
    assert nbytes(reply.up) == nbytes(down) == 3  # 24 masked weights
    now = Case("fedmask").run(rounds=1).step()
    assert now.bytes_up == now.bytes_down == 3 * 4 and now.left_out.keys() == {"site4"}


def test_after_a_round_the_network_is_the_frozen_one_or_zero() -> None:
    method = method_of(optimizer=SGD(50.0), size=4, epochs=5, keep=0.5)
    down, own = begun(method)
    reply = method.local(down, own, build.rows(17), root(2))
    W0, theta = method.frozen(), method.personal(down, reply.own, build.rows(4), root(3))
    m = Wire(method.shapes).unpack(reply.up["mask"])
    assert m.keys() == set(WEIGHTS)
    for k, v in theta.items():
        assert torch.equal(v, W0[k] * m[k] if k in m else W0[k]), k
    share = torch.cat([v.flatten() for v in m.values()]).double().mean()
    assert 0.1 < float(share) <= 0.6 and float(reply.info["switched_on"]) == pytest.approx(float(share))


@pytest.mark.parametrize("through", ["sigmoid", "identity"])
def test_a_step_on_the_scores_goes_straight_through_the_threshold(through: str) -> None:
    method = method_of(optimizer=SGD(0.3), size=9, through=through, first=0.4, tau=0.6)
    data, (down, own) = build.rows(9), begun(method)
    W = {k: v.clone().requires_grad_() for k, v in method.frozen().items()}
    loss = method.program.loss(W, Batch.of(data.x, data.y), root(0))
    start = math.log(0.6 / 0.4) + 0.4
    p = 1 / (1 + math.exp(-start))
    scores = part(method.local(down, own, data, root(2)).own, "score")
    for k in WEIGHTS:
        dm = torch.autograd.grad(loss, W[k], retain_graph=True)[0] * W[k].detach()
        expected = start - 0.3 * dm * (p * (1 - p) if through == "sigmoid" else 1)
        torch.testing.assert_close(scores[k], expected, rtol=1e-10, atol=1e-12)


def test_inputs_are_dropped_once_after_the_first_round_and_stay_dropped() -> None:
    method = method_of(optimizer=SGD(20.0), size=4, epochs=2, keep=0.5)
    down, own = begun(method)
    first = method.local(down, own, build.rows(9), root(2))
    used = part(first.own, "used")
    assert [int(used[k].sum()) for k in WEIGHTS] == [2, 2] and used[WEIGHTS[0]].shape == (1, 3)
    again = method.local(down, first.own, build.rows(9, seed=5), root(3))  # the message has ones everywhere
    same(part(again.own, "used"), used)
    m = Wire(method.shapes).unpack(again.up["mask"])
    assert not any(bool((m[k] & ~used[k]).any()) for k in WEIGHTS)


def test_everything_is_kept_where_all_of_it_is_asked_for() -> None:
    method = method_of(size=4, keep=1.0)
    down, own = begun(method)
    assert all(v.all() for v in part(method.local(down, own, build.rows(9), root(2)).own, "used").values())


def wire_of(method: FedMask, first: Tensor, second: Tensor) -> Tensor:
    return Wire(method.shapes).pack({WEIGHTS[0]: first, WEIGHTS[1]: second})


def test_every_client_is_sent_another_mask() -> None:
    method, ones = method_of(clients=4), torch.ones(3, 4, dtype=torch.bool)
    body = torch.ones(3, 4, 3, dtype=torch.bool)
    body[0, :, 2] = False  # the first client has dropped input 2
    body[1:, 0, 2] = False  # the two others agree on its first weight
    body[1, 1, 0] = False  # and one of three is outvoted
    ups = {"mask": torch.stack([wire_of(method, b, ones) for b in body])}
    server = method.aggregate(
        method.init(root(1)), ups, Cohort(torch.tensor([0, 1, 3]), torch.tensor([5, 5, 5]), root(0), 1)
    )
    sent = [Wire(method.shapes).unpack(method.down(server, i)["mask"])[WEIGHTS[0]] for i in range(4)]
    agreed = torch.ones(4, 3, dtype=torch.bool)
    agreed[0, 2] = False
    narrow = agreed.clone()
    narrow[:, 2] = False
    for got, expected in zip(sent, (narrow, agreed, agreed, agreed), strict=True):
        assert torch.equal(got, expected), "client 2 was not heard of: it gets what the others agree on"


def test_a_score_is_mirrored_where_the_message_differs_from_the_own_mask() -> None:
    method = method_of(optimizer=SGD(1e-12), size=9, tau=0.6, keep=1.0)
    t = math.log(0.6 / 0.4)
    own = begun(method)[1]
    own |= pack(score={k: torch.full_like(v, t - 0.7) for k, v in method.shapes.items()})
    sent = torch.ones(4, 3, dtype=torch.bool)
    sent[1, 1] = False
    reply = method.local(
        {"mask": wire_of(method, sent, torch.zeros(3, 4, dtype=torch.bool))}, own, build.rows(9), root(2)
    )
    scores = part(reply.own, "score")
    expected = torch.full((4, 3), t + 0.7, dtype=torch.float64)
    expected[1, 1] = t - 0.7
    torch.testing.assert_close(scores[WEIGHTS[0]], expected)
    torch.testing.assert_close(scores[WEIGHTS[1]], torch.full((3, 4), t - 0.7, dtype=torch.float64))


def test_masks_learn_while_weights_do_not() -> None:
    method, data = method_of(size=17, epochs=60, keep=1.0, seed=3), build.rows(17)
    down, own = begun(method)
    loss = lambda own: float(
        method.program.loss(method.network(method.frozen(), own), Batch.of(data.x, data.y), root(0))
    )
    assert loss(method.local(down, own, data, root(2)).own) < loss(own) - 0.02


def test_statistics_of_normalisation_are_the_clients_and_its_scales_stay() -> None:
    program, data = build.program(guide="delta", batch_norm=True), build.rows(12)
    method = method_of(program, size=4, epochs=2)
    down, own = begun(method)
    new = method.local(down, own, data, root(2)).own
    theta, W0 = method.personal(down, new, data, root(3)), method.frozen()
    same(only(theta, program.buffers), only(program.refresh(theta, data), program.buffers))
    scale = "model.net.body.1.weight"
    assert torch.equal(theta[scale], W0[scale]) and not torch.equal(
        own[f"score/{WEIGHTS[0]}"], new[f"score/{WEIGHTS[0]}"]
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep": 0.0}, "keep must be above 0 and at most 1"),
        ({"tau": 1.0}, "tau must be between 0 and 1"),
        ({"first": 0.0}, "first must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.{text}"):
        method_of(**options)


def test_a_posterior_is_refused() -> None:
    with pytest.raises(ValueError, match="use guide = 'delta'"):
        FedMask(build.program())
