"""PFNM: permuted networks, units that are not in use, and networks that it cannot match."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.compare import close
from torch import nn

from pyrofl.bayesian import Bayesian
from pyrofl.method import Cohort
from pyrofl.methods import PFNM, FedAvg
from pyrofl.optim import Adam
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import Tree, stack

X = build.rows(20, seed=7).x


def lifted(net: nn.Module, kind: str = "flat") -> Program:
    x, y, _ = build.rows(2)
    return Program(Bayesian(net.double(), PRIORS[kind]()), x, y, guide=build.GUIDES["delta"])


class Net(nn.Module):
    def __init__(self, hidden: int, *, activation: type[nn.Module] = nn.ReLU, layers: int = 1, bias: bool = True):
        super().__init__()
        blocks: list[nn.Module] = []
        for i in range(layers):
            blocks += [nn.Linear(hidden if i else build.FEATURES, hidden, bias=bias), activation()]
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(hidden, build.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.fixture(scope="module")
def program() -> Program:
    return lifted(Net(6))


def narrowed(method: PFNM, key: torch.Tensor) -> Tree:
    return method.hidden.narrow(method.program.init(key), method.width)


def permuted(method: PFNM, theta: Tree, order: list[int]) -> Tree:
    v = method.hidden.vectors(theta)
    return {**theta, **method.hidden.network(torch.cat([v[order], v[len(order) :]]))}


def test_permuted_copies_of_one_network_are_matched_back_to_it(program: Program) -> None:
    method = PFNM(program, units=3, noise=1e-4, spread=100.0)
    theta = narrowed(method, root(3))
    ups = stack([permuted(method, theta, order) for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2])])
    cohort = Cohort(torch.arange(3), torch.tensor([9, 5, 7]), root(5), 1)
    new = method.aggregate(method.init(root(1)), ups, cohort)
    assert float(new["report/units"]) == 3
    torch.testing.assert_close(program.predict(new, X, None), program.predict(theta, X, None), atol=1e-4, rtol=0)
    plain = FedAvg(program).aggregate({}, ups, cohort)
    assert not torch.allclose(program.predict(plain, X, None), program.predict(theta, X, None), atol=1e-2)


def test_the_matched_network_may_be_wider_and_never_wider_than_its_room(program: Program) -> None:
    method = PFNM(program, units=2, noise=1e-6, spread=1.0)
    ups = stack([narrowed(method, root(s)) for s in (1, 2, 3, 4)])
    cohort = Cohort(torch.arange(4), torch.tensor([9, 5, 7, 7]), root(5), 1)
    new = method.aggregate(method.init(root(1)), ups, cohort)
    assert float(new["report/units"]) == 6, "four times two unlike units, in a network of six"
    two = PFNM(program, units=2, noise=1e-6, spread=1.0).aggregate(
        method.init(root(1)), {k: v[:2] for k, v in ups.items()}, Cohort(cohort.ids[:2], cohort.n[:2], root(5), 1)
    )
    assert float(two["report/units"]) == 4
    vectors = method.hidden.vectors(two)
    assert (vectors[:4] != 0).all() and (vectors[4:] == 0).all()


def test_a_network_with_units_at_zero_trains_as_a_narrower_one(program: Program) -> None:
    method = PFNM(program, Adam(0.05), units=2, epochs=5, size=4)
    narrow = lifted(Net(2))
    small = FedAvg(narrow, Adam(0.05), epochs=5, size=4)
    own = method.join(method.down(method.init(root(1)), 0))
    D = build.FEATURES
    v = method.hidden.vectors(own)[:2]
    names = ("net.body.0.weight", "net.body.0.bias", "net.head.weight", "net.head.bias")
    parts = (v[:, :D], v[:, D], v[:, D + 1 :].T, own[method.hidden.names[3]])
    start = {narrow.loc_name(n): p.clone() for n, p in zip(names, parts, strict=True)}
    data = build.rows(11)
    wide = method.local({}, own, data, root(2)).up
    expected = small.local(start, {}, data, root(2)).up
    torch.testing.assert_close(program.predict(wide, X, None), narrow.predict(expected, X, None))
    assert (method.hidden.vectors(wide)[2:] == 0).all()
    assert (method.fit(program.parts, own, data, root(2))[0][method.hidden.names[1]][2:] == 0).all(), (
        "without narrowing"
    )


def test_every_client_starts_from_its_own_network_and_trains_on(program: Program) -> None:
    method = PFNM(program, units=3, seed=4)
    server = method.init(root(1))
    starts = [method.join(method.down(server, i)) for i in range(2)]
    assert not torch.equal(starts[0][method.hidden.names[0]], starts[1][method.hidden.names[0]])
    close(starts[0], narrowed(method, fold(root(4), "pfnm", 0)), tolerance=0)
    reply = method.local(method.down(server, 0), starts[1], build.rows(9), root(2))
    expected, _ = method.fit(program.parts, starts[1], build.rows(9), root(2))
    close(reply.own, expected, tolerance=0)
    close(reply.up, expected, tolerance=0)


def test_clients_predict_with_the_matched_network(program: Program) -> None:
    method = PFNM(program)
    down = method.down(method.init(root(1)), 0)
    theta = method.personal(down, method.join(down), build.rows(9), root(2))
    close(theta, {k: down[k] for k in program.theta0}, tolerance=0)


def test_output_biases_are_averaged_by_rows(program: Program) -> None:
    method = PFNM(program, units=3)
    ups = stack([narrowed(method, root(s)) for s in (1, 2)])
    ups[method.hidden.names[3]] = torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]], dtype=torch.float64)
    new = method.aggregate(method.init(root(1)), ups, Cohort(torch.arange(2), torch.tensor([3, 1]), root(5), 1))
    torch.testing.assert_close(new[method.hidden.names[3]], torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": 0}, r"method\.units must be from 1 to the network's 6 units, got 0"),
        ({"units": 7}, r"method\.units must be from 1 to the network's 6 units, got 7"),
        ({"noise": 0.0}, r"method\.noise must be positive"),
        ({"spread": -1.0}, r"method\.spread must be positive"),
        ({"gamma": 0.0}, r"method\.gamma must be positive"),
        ({"sweeps": 0}, r"method\.sweeps must be at least 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(program: Program, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PFNM(program, **arguments)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Net(4, layers=2), "pfnm matches the units of one hidden layer .* it has 6 tensors"),
        (Net(4, bias=False), "pfnm matches the units of one hidden layer .* it has 3 tensors"),
        (build.Net(batch_norm=True), "pfnm matches the units of one hidden layer"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), "pfnm matches the units of one hidden layer"),
        (Net(4, activation=nn.Sigmoid), "pfnm needs a hidden unit without weights to give 0"),
    ],
)
def test_other_networks_are_refused_with_the_reason(net: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PFNM(lifted(net))


def test_a_normal_guide_is_refused() -> None:
    with pytest.raises(ValueError, match="PFNM matches points: use guide = 'delta'"):
        PFNM(build.program())
