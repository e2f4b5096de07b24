"""VANEB for network heads: variances by hand, what shrinks and what does not, and the methods it reduces to."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from support import build
from support.compare import close, same
from torch.func import grad

from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Data
from pyrofl.empirical_bayes import npmle, npmle_lines
from pyrofl.engines import Sequential
from pyrofl.method import Cohort, Reply
from pyrofl.methods import VANEBFT, FedAvg, VANEBHead
from pyrofl.methods.head_prior import shrink
from pyrofl.methods.partial import Partial
from pyrofl.optim import SGD
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.tree import Tree, only, stack, without

TRAIN = (17, 9, 8)


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program(guide="delta", prior="flat")


def run_of(method: FedAvg, *, rounds: int = 2, train: tuple[int, ...] = TRAIN, **more: Any) -> Run:
    return Run(method, build.federation(train), engine=Sequential(), rounds=rounds, seed=1, **more)


# ------------------------------------------------------------------ variances


def squared_scores(program: Program, theta: Tree, data: Data, names: tuple[str, ...]) -> torch.Tensor:
    """Mean over rows of the squared gradient of -log p(y_i | x_i), one row at a time."""
    total: torch.Tensor | float = 0.0
    for i in range(data.rows):
        row = Batch.of(data.x[i : i + 1], data.y[i : i + 1])
        g = grad(lambda t, row=row: program.loss(t, row, root(0)))(theta)
        total = total + torch.cat([g[k].flatten() for k in names]).square()
    return torch.as_tensor(total) / data.rows


@pytest.mark.parametrize("outputs", [3, 1], ids=["softmax", "logistic"])
def test_the_variance_comes_from_the_squared_score_of_each_row(outputs: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        net = build.Net(outputs=outputs).double()
    data = build.rows(13, classes=3 if outputs == 3 else 2)
    kind = "categorical" if outputs == 3 else "bernoulli"
    data = data if outputs == 3 else data._replace(y=data.y.double())
    p = Program(Bayesian(net, PRIORS["flat"](), kind), data.x[:2], data.y[:2], guide=build.GUIDES["delta"])
    method = VANEBHead(p, damping=0.25)
    theta = p.init(root(4))
    F = squared_scores(p, theta, data, method.ravel.names)
    torch.testing.assert_close(method.variance(theta, data), 1 / (13 * (F + 0.25)))
    assert not torch.allclose(F, squared_of_the_mean(p, theta, data, method.ravel.names), rtol=0.1)


def squared_of_the_mean(program: Program, theta: Tree, data: Data, names: tuple[str, ...]) -> torch.Tensor:
    g = grad(lambda t: program.loss(t, Batch.of(data.x, data.y), root(0)))(theta)
    return torch.cat([g[k].flatten() for k in names]).square()


def test_features_are_what_the_head_receives() -> None:
    p = build.program(guide="delta", prior="flat", batch_norm=True)
    theta, data = p.refresh(p.init(root(4)), build.rows(9)), build.rows(6)
    weight, bias = (theta[p.loc_name(f"net.head.{k}")] for k in ("weight", "bias"))
    out = torch.log_softmax(p.features(theta, data.x) @ weight.T + bias, 1)
    torch.testing.assert_close(out, p.predict(theta, data.x, None))


def test_the_damping_bounds_the_variance_and_a_missing_class_reaches_the_bound(program: Program) -> None:
    data = build.rows(16)
    data = data._replace(y=data.y.clamp(max=1))  # class 2 never occurs
    bias = program.loc_name("net.head.bias")
    never = torch.tensor([0.0, 0.0, -40.0], dtype=torch.float64)  # and is never predicted
    V = VANEBHead(program, damping=0.01).variance({**program.init(root(4)), bias: never}, data)
    head = VANEBHead(program).ravel.tree(V)[bias]
    torch.testing.assert_close(head[2], torch.tensor(1 / (16 * 0.01), dtype=torch.float64))
    assert float(head[:2].max()) < 1.0


# ------------------------------------------------------------------ the step


def test_coordinates_have_a_prior_each_and_the_whole_head_has_one() -> None:
    rng = np.random.default_rng(0)
    z, V = rng.normal(size=(6, 3)), rng.uniform(0.1, 0.5, size=(6, 3))
    means, center, fitted, gap = shrink(z, V, "coordinate", 1e-6)
    lines = npmle_lines(z.T, V.T, tolerance=1e-6, workers=1)
    np.testing.assert_allclose(means, lines.mean.T)
    assert gap <= 1e-6 and fitted == pytest.approx(lines.log_likelihood.sum())
    assert (center >= z.min(0)).all() and (center <= z.max(0)).all()
    means, center, _, _ = shrink(z, V, "direct", 1e-6)
    prior = npmle(z, V, tolerance=1e-6, workers=1)
    np.testing.assert_allclose(means, prior.posterior(z, V).mean)
    np.testing.assert_allclose(center, prior.weights @ prior.atoms)


@pytest.mark.parametrize("how", ["coordinate", "direct"])
def test_what_shrinks(how: Any) -> None:
    z = np.array([[-4.0, 1.0], [0.0, 1.0], [5.0, 1.0]])
    surely, _, _, _ = shrink(z, np.full_like(z, 1e-4), how, 1e-6)
    np.testing.assert_allclose(surely, z, atol=1e-6)
    hardly, center, _, _ = shrink(z, np.full_like(z, 1e3), how, 1e-8)
    np.testing.assert_allclose(hardly, np.broadcast_to(z.mean(0), z.shape), atol=0.05)
    np.testing.assert_allclose(center, z.mean(0), atol=0.05)


def test_an_unsure_coordinate_takes_the_value_of_the_others() -> None:
    """The client that lacks a class borrows its row from the clients that have it."""
    z, V = np.array([[2.0], [2.1], [1.9], [-7.0]]), np.array([[0.01], [0.01], [0.01], [500.0]])
    means, _, _, _ = shrink(z, V, "coordinate", 1e-6)
    assert means[3, 0] == pytest.approx(2.0, abs=0.1)
    np.testing.assert_allclose(means[:3], z[:3], atol=0.11)


def test_with_many_coordinates_the_direct_step_leaves_heads_alone() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(5, 100))
    means, _, _, _ = shrink(z, np.full_like(z, 0.05), "direct", 1e-4)
    np.testing.assert_allclose(means, z, atol=1e-6)


# ------------------------------------------------------------------ VANEB-Head


@dataclasses.dataclass(frozen=True)
class PersonalHead(Partial):
    """FedPer, as far as this test needs it: from the same initial head."""

    @property
    def mine(self) -> frozenset[str]:
        return self.program.names("head")

    def join(self, down: Tree) -> Tree:
        return only(self.program.init(fold(root(1), "init")), self.mine)


def test_before_its_first_step_it_is_a_shared_body_with_personal_heads(program: Program) -> None:
    ours, plain = run_of(VANEBHead(program, size=4, clients=3, every=3)), run_of(PersonalHead(program, size=4))
    list(ours), list(plain)
    close(only(ours.server, plain.server), plain.server, tolerance=1e-12)
    for i in range(3):
        close(ours.personal(i), plain.personal(i), f"client {i}", tolerance=1e-12)


def test_heads_shrink_in_every_fifth_round_and_clients_go_on_from_there(program: Program) -> None:
    method = VANEBHead(program, size=4, clients=3)
    run = run_of(method, rounds=6)
    for _ in range(4):
        run.step()
    assert not run.server["heads/waits"].any()
    run.step()
    assert run.server["heads/waits"].all()
    z, V = (run.server[f"heads/{k}"].numpy() for k in ("estimate", "variance"))
    expected = shrink(z, V, "coordinate", method.tolerance)[0]
    for i in range(3):
        torch.testing.assert_close(method.ravel.flat(run.personal(i)), torch.as_tensor(expected[i]))
    key = fold(run.key, "round", 6)
    down = method.down(run.server, 0)
    expected_start = {**only(down, program.theta0), **method.ravel.tree(torch.as_tensor(expected[0]))}
    plain = FedAvg(program, size=4).local(expected_start, {}, run.train[0], fold(key, "client", 0)).up
    run.step()
    close(run.states.get(0) or {}, only(plain, method.mine), tolerance=1e-12)


def test_a_client_that_was_away_takes_its_shrunken_head_when_it_comes_back(program: Program) -> None:
    method = VANEBHead(program, size=4, clients=3, every=2)
    server = method.init(root(1))
    downs = [method.down(server, i) for i in range(2)]
    data = [build.rows(n, seed=n) for n in (9, 8)]
    replies = [method.local(down, method.join(down), d, root(i)) for i, (down, d) in enumerate(zip(downs, data))]
    ups = stack([r.up for r in replies])
    server = method.aggregate(server, ups, Cohort(torch.arange(2), torch.tensor([9, 8]), root(0), 2))
    shrunken = server["heads/posterior"].clone()
    assert not torch.allclose(shrunken[:2], server["heads/estimate"][:2], atol=1e-4)
    here = Cohort(torch.tensor([0]), torch.tensor([9]), root(0), 3)
    server = method.aggregate(server, stack([replies[0].up]), here)
    assert server["heads/waits"].tolist() == [False, True, True]
    heads = [method.ravel.flat(method.now(method.down(server, i), replies[i].own)) for i in range(2)]
    torch.testing.assert_close(heads[0], method.ravel.flat(replies[0].own))
    torch.testing.assert_close(heads[1], shrunken[1])


def test_a_client_never_heard_predicts_with_the_priors_mean(program: Program) -> None:
    method = VANEBHead(program, size=4, clients=4, every=1)
    run = run_of(method, rounds=1, train=(17, 9, 8, 0))
    run.step()
    z, V = (run.server[f"heads/{k}"][:3].numpy() for k in ("estimate", "variance"))
    torch.testing.assert_close(
        method.ravel.flat(run.personal(3)), torch.as_tensor(shrink(z, V, "coordinate", method.tolerance)[1])
    )


# ------------------------------------------------------------------ VANEB-FT


def test_from_a_fedavg_run_the_body_stays_and_heads_are_tuned_once(program: Program) -> None:
    first = run_of(FedAvg(program, size=4))
    list(first)
    method = VANEBFT(program, SGD(0.2), epochs=2, size=4, clients=3)
    run = run_of(method, rounds=1, start=first.server)
    for i in range(3):
        same(run.personal(i), first.server, "before the step: the global model")
    run.step()
    same(only(run.server, program.theta0), first.server)
    key, heads = fold(run.key, "round", 1), []
    for i in range(3):
        tuned = method.fit(program.parts, first.server, run.train[i], fold(key, "client", i), names=method.mine)[0]
        same(without(tuned, method.mine), without(first.server, method.mine))
        heads.append(tuned)
    z = torch.stack([method.ravel.flat(t) for t in heads])
    V = torch.stack([method.variance(t, d) for t, d in zip(heads, run.train, strict=True)])
    means = shrink(z.numpy(), V.numpy(), "coordinate", method.tolerance)[0]
    for i in range(3):
        expected = {**first.server, **method.ravel.tree(torch.as_tensor(means[i]))}
        close(run.personal(i), expected, f"client {i}", tolerance=1e-9)


def test_nothing_but_the_head_and_its_variances_travels_up(program: Program) -> None:
    method = VANEBFT(program, size=4, clients=3)
    reply: Reply = method.local(method.down(method.init(root(1)), 0), {}, build.rows(9), root(2))
    assert reply.up.keys() == {*method.mine, "variance"} and reply.own == {}


def test_equal_heads_stay_as_they_are(program: Program) -> None:
    method = VANEBFT(program, size=4, clients=3)
    server = method.init(root(1))
    up = method.local(method.down(server, 0), {}, build.rows(9), root(2)).up
    cohort = Cohort(torch.arange(3), torch.tensor([9, 9, 9]), root(0), 1)
    new = method.aggregate(server, stack([up] * 3), cohort)
    for i in range(3):
        close(
            only(method.personal(method.down(new, i), {}, build.rows(9), root(0)), method.mine), only(up, method.mine)
        )


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("network", "arguments", "message"),
    [
        ({}, {"damping": 0.0}, r"method\.damping must be positive, got 0.0"),
        ({}, {"tolerance": -1.0}, r"method\.tolerance must be positive"),
        ({}, {"every": 0}, r"method\.every must be at least 1 round, got 0"),
        ({"guide": "normal", "prior": "gaussian"}, {}, "use guide = 'delta'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(network: dict, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VANEBHead(build.program(**{"guide": "delta", "prior": "flat", **network}), **arguments)


def test_a_network_without_a_linear_head_is_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3)).double()
    x, y, _ = build.rows(2)
    program = Program(Bayesian(net, PRIORS["flat"]()), x, y, guide=build.GUIDES["delta"])
    with pytest.raises(ValueError, match=r"no linear layer \.head"):
        VANEBFT(program)
