"""FedMAP: both levels against closed forms, its weights, and what it becomes at the ends of its settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from support import build, quadratic
from support.cases import Case
from support.compare import close, distance
from support.quadratic import vector
from torch import Tensor

from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.empirical_bayes.fedmap import log_weights, upper_level
from pyrofl.likelihoods import distribution
from pyrofl.method import Cohort
from pyrofl.methods import Alone, FedMAP, FedProx
from pyrofl.optim import SGD
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.run import rows_of
from pyrofl.store import Row
from pyrofl.tree import Tree, stack

WEIGHT, BIAS = "net.head.weight", "net.head.bias"


def regression(guide: str = "delta") -> Program:
    """y ~ N(x w + b, 0.5^2) under a Gaussian prior: a quadratic loss, and a posterior in closed form."""
    return quadratic.regression(guide, "gaussian")


def lines(n: int, seed: int = 0) -> Data:
    rng = np.random.default_rng([seed, n])
    x = torch.tensor(rng.normal(size=(n, 2)))
    return Data.of(x, x @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.3 + 0.5 * torch.tensor(rng.normal(size=n)))


def ridge(data: Data, mu: Tensor, variance: float, *, strength: float = 1.0) -> Tensor:
    """argmin sum (y - X b)^2 / (2 0.5^2) + strength |b - mu|^2 / (2 variance), (3,): weights, then bias."""
    X = torch.cat([data.x, torch.ones(data.rows, 1, dtype=torch.float64)], 1)
    precision = X.T @ X / 0.25 + strength * torch.eye(3, dtype=torch.float64) / variance
    return torch.linalg.solve(precision, X.T @ data.y / 0.25 + strength * mu / variance)


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("variance", [4.0, 0.05, 1e-3])
def test_the_lower_level_on_a_quadratic_loss_is_ridge_regression(literal: bool, variance: float) -> None:
    program, data = regression(), lines(12)
    method = FedMAP(program, SGD(0.05), epochs=500, size=12, fixed_variance=variance, literal=literal)
    server = method.init(root(1))
    down = method.down(server, 0)
    got = vector(program, method.local(down, method.join(down), data, root(2)).own)
    expected = ridge(data, vector(program, down), variance, strength=12.0 if literal else 1.0)
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


def test_a_tight_prior_does_not_make_the_steps_diverge() -> None:
    program, data = regression(), lines(1)
    method = FedMAP(program, SGD(0.1), epochs=50, size=1, fixed_variance=1e-6)
    down = method.down(method.init(root(1)), 0)
    far = {k: v + 3.0 for k, v in method.join(down).items()}
    got = vector(program, method.local(down, far, data, root(2)).own)
    torch.testing.assert_close(got, ridge(data, vector(program, down), 1e-6), rtol=0, atol=1e-7)


def ups_of(method: FedMAP, count: int = 4) -> Tree:
    """What clients of different models might send."""
    ups = []
    for i in range(count):
        theta = method.program.init(root(i))
        ups.append({**theta, "log_weight": torch.tensor(0.3 * i, dtype=torch.float64)})
    return stack(ups)


COHORT = Cohort(torch.arange(4), torch.tensor([5, 9, 2, 7]), root(0), 1)


@pytest.mark.parametrize("sharing", ["isotropic", "tensor", "coordinate"])
def test_the_upper_level_is_the_closed_form(sharing: Any) -> None:
    program = build.program(guide="delta")
    method = FedMAP(program, variance=sharing, weights="total_loglik")
    server, ups = method.init(root(1)), ups_of(method)
    new = method.aggregate(server, ups, COHORT)
    flat = np.concatenate([ups[program.loc_name(s)].reshape(4, -1).numpy() for s in program.sites], 1)
    sizes = [math.prod(server[program.loc_name(s)].shape) for s in program.sites]
    expected = upper_level(flat, ups["log_weight"].numpy(), sharing=sharing, sizes=sizes, floor=0.01)
    got = {s: (m.flatten(), v.square().flatten()) for s, (m, v) in method.prior_of(new).items()}
    np.testing.assert_allclose(torch.cat([m for m, _ in got.values()]), expected.mean, rtol=1e-12)
    np.testing.assert_allclose(torch.cat([v for _, v in got.values()]), expected.variance, rtol=1e-12)
    assert float(new["report/effective_clients"]) == pytest.approx(expected.effective_clients)


def test_the_upper_level_by_hand() -> None:
    program = regression()
    method = FedMAP(program, variance="isotropic")
    server = method.init(root(1))
    one = lambda w, b, l: {
        program.loc_name(WEIGHT): torch.tensor([w], dtype=torch.float64),
        program.loc_name(BIAS): torch.tensor([b], dtype=torch.float64),
        "log_weight": torch.tensor(l, dtype=torch.float64),
    }
    ups = stack([one([0.0, 2.0], 1.0, math.log(1)), one([4.0, 2.0], 5.0, math.log(3))])
    cohort = Cohort(torch.arange(2), torch.tensor([1, 3]), root(0), 1)
    new = method.aggregate(server, ups, cohort)
    assert vector(program, new).tolist() == pytest.approx([3.0, 2.0, 4.0])
    # deviations (3, 0, 3) with weight 1/4 and (1, 0, 1) with weight 3/4: (18 / 4 + 2 * 3 / 4) / 3 coordinates
    assert float(new[f"variance/{WEIGHT}"]) == pytest.approx(2.0) == float(new[f"variance/{BIAS}"])
    assert float(new["report/effective_clients"]) == pytest.approx(1 / (1 / 16 + 9 / 16))
    assert float(new["report/prior_variance"]) == pytest.approx(2.0)


def test_the_scales_of_a_normal_guide_add_to_the_variance() -> None:
    program = regression("normal")
    method = FedMAP(program, variance="coordinate", weights="mean_loglik")
    ups = []
    for loc, scale in ((1.0, 0.3), (3.0, 0.4)):
        q = {
            s: (torch.full_like(v, loc), torch.full_like(v, scale))
            for s, (v, _) in program.posterior(program.theta0).items()
        }
        ups.append({**program.theta0, **program.guide_of(q), "log_weight": torch.tensor(0.0, dtype=torch.float64)})
    new = method.aggregate(method.init(root(1)), stack(ups), COHORT)
    for s, (loc, scale) in method.prior_of(new).items():
        torch.testing.assert_close(loc, torch.full_like(loc, 2.0))
        torch.testing.assert_close(scale.square(), torch.full_like(scale, 1.0 + (0.09 + 0.16) / 2))
        torch.testing.assert_close(program.posterior(new)[s][1], scale)  # a new client starts with the prior


def test_equal_likelihoods_give_the_plain_mean_and_all_clients_count() -> None:
    method = FedMAP(build.program(guide="delta"), weights="mean_loglik")
    ups = {**ups_of(method), "log_weight": torch.full((4,), -3.7, dtype=torch.float64)}
    new = method.aggregate(method.init(root(1)), ups, COHORT)
    for name in method.program.trainable:
        torch.testing.assert_close(new[name], ups[name].mean(0))
    assert float(new["report/effective_clients"]) == pytest.approx(4)


def test_weights_that_underflow_are_handled_in_log_space() -> None:
    method = FedMAP(build.program(guide="delta"), weights="total_loglik")
    low = torch.tensor([-4000.0, -1000.0 - math.log(3), -1000.0, -9000.0], dtype=torch.float64)
    assert torch.exp(low).sum() == 0
    ups = {**ups_of(method), "log_weight": low}
    new = method.aggregate(method.init(root(1)), ups, COHORT)
    for name in method.program.trainable:
        torch.testing.assert_close(new[name], 0.25 * ups[name][1] + 0.75 * ups[name][2])
    assert float(new["report/effective_clients"]) == pytest.approx(1.6)


@pytest.mark.parametrize("kind", ["rows", "mean_loglik", "total_loglik", "rows_times_likelihood"])
def test_a_client_computes_its_own_log_weight(kind: Any) -> None:
    program, data = build.program(guide="delta"), build.rows(9)
    method = FedMAP(program, size=4, weights=kind)
    down = method.down(method.init(root(1)), 0)
    reply = method.local(down, method.join(down), data, root(2))
    log_p = distribution("categorical", program.predict(reply.own, data.x, None)).log_prob(data.y)
    expected = log_weights(kind, rows=np.array([9.0]), mean_log_likelihood=np.array([float(log_p.mean())]))
    assert float(reply.up["log_weight"]) == pytest.approx(expected[0])
    padded = Data(
        torch.cat([data.x, torch.full((3, 3), torch.nan)]), torch.cat([data.y, torch.tensor([0, 0, 0])]), data.n
    )
    assert float(method.log_weight(reply.own, padded)) == pytest.approx(expected[0])


def test_a_fixed_variance_with_the_literal_weight_is_fedprox_around_personal_models() -> None:
    program, data = build.program(guide="delta"), build.rows(10)
    method = FedMAP(program, SGD(0.2), epochs=3, size=10, fixed_variance=15.0, literal=True)
    down = method.down(method.init(root(1)), 0)
    prox = FedProx(build.program(guide="delta", prior="flat"), SGD(0.2), epochs=3, size=10, mu=1 / 15)
    first = method.local(down, method.join(down), data, root(2))
    expected = prox.local(method.join(down), {}, data, root(2)).up
    close(first.own, expected, tolerance=1e-12)
    again = method.local(down, first.own, data, root(2)).own
    assert distance(again, first.own) > 1e-3, "the second round goes on from the personal model"
    reset = FedMAP(program, SGD(0.2), epochs=3, size=10, fixed_variance=15.0, literal=True, start="global")
    close(reset.local(down, first.own, data, root(2)).own, expected, tolerance=1e-12)


def test_a_fixed_variance_stays_and_a_learned_one_keeps_its_floor() -> None:
    program = build.program(guide="delta")
    fixed = FedMAP(program, fixed_variance=15.0)
    new = fixed.aggregate(fixed.init(root(1)), ups_of(fixed), COHORT)
    assert {float(v) for k, v in new.items() if k.startswith("variance/")} == {15.0}
    floored = FedMAP(program, floor=0.25)
    alike = {k: v[:1].expand(4, *v.shape[1:]) for k, v in ups_of(floored).items()}
    new = floored.aggregate(floored.init(root(1)), alike, COHORT)
    assert {float(v) for k, v in new.items() if k.startswith("variance/")} == {0.25}


def test_a_wide_prior_leaves_a_client_alone() -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(9)
    wide = FedMAP(program, SGD(0.1), epochs=2, size=4, fixed_variance=1e12)
    down, own = wide.down(wide.init(root(1)), 0), program.init(root(2))
    alone = Alone(program, SGD(0.1), epochs=2, size=4).local({}, own, data, root(3)).own
    close(wide.local(down, own, data, root(3)).own, alone, tolerance=1e-9)


def test_the_effective_number_of_clients_is_in_the_rounds_rows() -> None:
    run = Case("fedmap", {"weights": "mean_loglik"}).run()
    now = run.step()
    effective = now.report["effective_clients"]
    assert 3.5 < effective <= 4  # four of five clients have rows
    assert Row(1, "(server)", "run", "effective_clients", effective) in list(rows_of(now))
    assert "report/effective_clients" not in run.method.down(run.server, 0)


def test_a_client_never_seen_predicts_with_the_priors_mean() -> None:
    run = Case("fedmap").run()
    list(run)
    theta = run.personal(4)  # it has no rows
    close(theta, run.method.common(run.server) or {})


@pytest.mark.parametrize(("name", "value"), [("floor", 0.0), ("first_variance", -1.0), ("fixed_variance", math.inf)])
def test_variances_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"method\.{name} must be positive.*, got {value}"):
        FedMAP(build.program(guide="delta"), **{name: value})


def test_other_guides_are_refused() -> None:
    x, y, _ = build.rows(2)
    with torch.random.fork_rng(devices=[]):
        net = build.Net().double()
    program = Program(Bayesian(net, PRIORS["gaussian"]()), x, y, guide=AutoMultivariateNormal)
    with pytest.raises(ValueError, match="use guide = 'delta'"):
        FedMAP(program)


def test_log_likelihood_pools_chunks_and_ignores_padding() -> None:
    program, data = build.program(guide="delta"), build.rows(7)
    theta = program.init(root(1))
    expected = dist.Categorical(logits=program.predict(theta, data.x, None)).log_prob(data.y).mean()
    padded = Data(
        torch.cat([data.x, torch.full((2, 3), torch.nan)]), torch.cat([data.y, torch.tensor([99, 99])]), data.n
    )
    for size in (2, 7, 100):
        torch.testing.assert_close(program.log_likelihood(theta, padded, size=size), expected)
    assert float(program.log_likelihood(theta, data._replace(n=torch.tensor(0)))) == 0
