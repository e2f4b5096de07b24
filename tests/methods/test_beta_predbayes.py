"""Beta-Predictive Bayes: the two ends of the blend, the fit of beta, and what server and clients do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.compare import close, same

from pyrofl.committee import combined, fitted, nll_and_accuracy
from pyrofl.distill import Distillation, distill, ensemble
from pyrofl.langevin import langevin
from pyrofl.method import Cohort
from pyrofl.methods import BetaPredBayes
from pyrofl.optim import SGD, Adam
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import only, stack, unstack

X, HELD = build.rows(20, seed=7).x, build.rows(30, seed=8)
HOW = Distillation(SGD(0.05), epochs=3, size=8, temperature=1.0, average_every=0)
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program(guide="delta")


def made(program: Program, **arguments: Any) -> BetaPredBayes:
    given = {"unlabelled": X, "labelled": HELD, "distillation": HOW, "samples": 2, "size": 4}
    return BetaPredBayes(program, **{**given, **arguments})


def probabilities(seed: int, clients: int = 2, rows: int = 6) -> torch.Tensor:
    draws = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.float64))
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        return draws.sample((clients, rows))


# ------------------------------------------------------------------ the blend


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_clients_that_agree(clients: int) -> None:
    p = probabilities(1, clients=1)
    log_p, share = p.log().expand(clients, -1, -1), torch.full((clients,), 1 / clients, dtype=torch.float64)
    torch.testing.assert_close(combined(log_p, share, 0.0).exp(), p[0])
    power = p[0] ** clients
    torch.testing.assert_close(combined(log_p, share, 1.0).exp(), power / power.sum(1, keepdim=True))
    between = p[0] ** (0.3 * clients + 0.7)
    torch.testing.assert_close(combined(log_p, share, 0.3).exp(), between / between.sum(1, keepdim=True))


def test_the_mixture_is_weighted_and_the_product_is_not() -> None:
    p, share = probabilities(2), torch.tensor([0.8, 0.2], dtype=torch.float64)
    torch.testing.assert_close(combined(p.log(), share, 0.0).exp(), 0.8 * p[0] + 0.2 * p[1])
    product = p[0] * p[1]
    torch.testing.assert_close(combined(p.log(), share, 1.0).exp(), product / product.sum(1, keepdim=True))


def test_certain_clients_do_not_underflow() -> None:
    log_p = torch.log_softmax(torch.tensor([[[0.0, -900.0]], [[-1000.0, 0.0]]], dtype=torch.float64), -1)
    torch.testing.assert_close(combined(log_p, HALF, 1.0), torch.tensor([[-100.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(combined(log_p, HALF, 0.0).exp(), torch.tensor([[0.5, 0.5]], dtype=torch.float64))


def test_beta_is_the_likeliest_in_the_unit_interval() -> None:
    log_p = probabilities(3, rows=300).log()
    true = combined(log_p, HALF, 0.6)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        y = torch.distributions.Categorical(logits=true.repeat(50, 1)).sample()
    wide = log_p.repeat(1, 50, 1)
    beta = fitted(wide, HALF, y)
    assert beta == pytest.approx(0.6, abs=0.1)
    loss = lambda b: nll_and_accuracy(combined(wide, HALF, b), y)[0]
    assert loss(beta) <= min(loss(b / 50) for b in range(51)) + 1e-9


@pytest.mark.parametrize(("always_right", "beta"), [(True, 1.0), (False, 0.0)])
def test_beta_stays_at_the_ends_of_the_interval(always_right: bool, beta: float) -> None:
    """Where every client is right a sharper product is always likelier, and where all are wrong a mixture is."""
    log_p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log().expand(2, 8, 3)
    y = torch.zeros(8).long() if always_right else torch.full((8,), 2)
    assert fitted(log_p, HALF, y) == beta


# ------------------------------------------------------------------ clients and server


def test_a_client_sends_samples_of_one_chain(program: Program) -> None:
    method = made(program, samples=3, epochs=2, between=0.5)
    start, data, key = program.init(root(1)), build.rows(16), root(2)
    up = method.local(start, {}, data, key).up
    theta, _ = method.fit(program.parts, start, data, key)
    energy = langevin(program.parts, method.optimizer, program.trainable)
    for s in range(3):
        theta, _ = method.fit(energy, theta, data, fold(key, "sample", s), epochs=0.5)
        close(unstack(up, s), theta, f"sample {s}", tolerance=1e-12)


def test_the_server_distils_the_blend_and_says_how_good_it_is(program: Program) -> None:
    method = made(program)
    ups = stack([stack([program.init(root(10 * k + s)) for s in range(2)]) for k in range(2)])
    cohort = Cohort(torch.arange(2), torch.tensor([30, 10]), root(5), 1)
    new = method.aggregate(method.init(root(1)), ups, cohort)
    share = torch.tensor([0.75, 0.25], dtype=torch.float64)
    samples = [[unstack(unstack(ups, k), s) for s in range(2)] for k in range(2)]
    at = lambda x: torch.stack([ensemble(program, own, x, root(0)) for own in samples])
    beta = fitted(at(HELD.x), share, HELD.y)
    assert 0 <= beta <= 1 and float(new["report/beta"]) == pytest.approx(beta)
    expected, _ = distill(program, samples[0][1], combined(at(X), share, beta), X, fold(root(5), "distill"), HOW)
    close(only(new, expected), expected, tolerance=1e-12)
    for who, log_p in (
        ("ensemble", combined(at(HELD.x), share, beta)),
        ("student", torch.log_softmax(program.predict(expected, HELD.x, None), -1)),
    ):
        nll, accuracy = nll_and_accuracy(log_p, HELD.y)
        assert float(new[f"report/{who}_nll"]) == pytest.approx(nll), who
        assert float(new[f"report/{who}_accuracy"]) == pytest.approx(accuracy), who


def test_scores_of_a_report_by_hand() -> None:
    log_p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    nll, accuracy = nll_and_accuracy(log_p, torch.tensor([1, 2]))
    assert nll == pytest.approx(-(torch.tensor(0.25).log() + torch.tensor(0.8).log()).item() / 2, rel=1e-6)
    assert accuracy == 0.5


def test_clients_predict_with_the_student(program: Program) -> None:
    method = made(program)
    server = method.init(root(1))
    same(method.personal(method.down(server, 0), {}, build.rows(9), root(2)), only(server, program.theta0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, r"method\.samples must be at least 1"),
        ({"between": 0.0}, r"method\.between must be positive"),
        ({"temperature": -1.0}, r"method\.temperature must be positive"),
        ({"optimizer": Adam(1e-3)}, r"sampling needs steps of SGD"),
        ({"unlabelled": None}, r"beta_predbayes distils on unlabelled rows .* data\.unlabelled = 1000"),
        ({"labelled": None}, r"beta_predbayes fits beta on labelled rows .* data\.labelled = 200"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(program: Program, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(program, **arguments)


def test_a_normal_guide_is_refused() -> None:
    with pytest.raises(ValueError, match="draws samples of the weights themselves: use guide = 'delta'"):
        made(build.program())
