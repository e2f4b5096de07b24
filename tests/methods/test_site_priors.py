"""NPEB, VANEB and AdaMix: the federated estimate is the stand-alone one, and what a client does with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.compare import close, same
from torch import Tensor

from models.logistic import Logistic
from pyrofl.bayesian import Bayesian
from pyrofl.config import Evaluation
from pyrofl.data import Data, Federation
from pyrofl.datasets.synthetic import coefficients, synthetic
from pyrofl.empirical_bayes.adamix import adamix
from pyrofl.empirical_bayes.exchange import alternating
from pyrofl.empirical_bayes.npmle import npmle
from pyrofl.empirical_bayes.regression import Regression
from pyrofl.engines import Engine, Sequential, Vectorised
from pyrofl.federation import federate
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import Gaussian
from pyrofl.method import Cohort
from pyrofl.methods import NPEB, VANEB, AdaMix
from pyrofl.methods.site_prior import SitePrior
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Participation, Run
from pyrofl.tree import stack

METHODS = [NPEB, VANEB, AdaMix]
SITES = 12


def clients(sites: int = SITES, rows: int = 16, likelihood: Any = "bernoulli", spread: float = 0.7) -> Federation:
    data = synthetic(likelihood=likelihood, sites=sites, rows=rows, features=2, spread=spread, seed=3)
    data = replace(data, x=data.x.double())
    federation = federate(data, key=root(3), test=0.25)
    cast = lambda d: d._replace(y=d.y.double())
    return replace(
        federation,
        clients=tuple(replace(c, train=cast(c.train), test=cast(c.test)) for c in federation.clients),
    )


def program(likelihood: Any = "bernoulli", prior: str = "flat", guide: str = "delta") -> Program:
    with torch.random.fork_rng(devices=[]):
        net = Logistic((2,), 1).double()
    x = torch.zeros(2, 2, dtype=torch.float64)
    kind = Gaussian(1.0) if likelihood == "gaussian" else likelihood
    return Program(Bayesian(net, PRIORS[prior](), kind), x, x[:, 0], guide=GUIDES[guide])


def run_of(
    kind: type[SitePrior],
    *,
    rounds: int = 1,
    engine: Engine | None = None,
    federation: Federation | None = None,
    **more: Any,
) -> Run:
    federation = federation or clients()
    likelihood = federation.likelihood
    return Run(
        kind(program(likelihood), clients=len(federation), **more.pop("arguments", {})),
        federation,
        engine=engine or Sequential(),
        rounds=rounds,
        seed=1,
        evaluation=Evaluation(every=10, draws=2, final_draws=4),
        **more,
    )


def by_hand(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """z (K, d) and V (K, d, d) of all clients, computed outside of the run."""
    method: Any = run.method
    pairs = []
    for data in run.train:
        e = method.estimator({}, data)
        z = e.fit(torch.zeros(3, dtype=torch.float64), steps=50)
        pairs.append((z.numpy(), torch.linalg.inv(e.precision(z)).numpy()))
    return np.array([z for z, _ in pairs]), np.array([v for _, v in pairs])


def means(run: Run) -> np.ndarray:
    """Posterior means of all clients as the federation has them, (K, d)."""
    method: Any = run.method
    return np.array([method.ravel.flat(run.personal(i)).numpy() for i in range(len(run.train))])


def log_marginals(run: Run) -> np.ndarray:
    """log f_k(G) of all clients under the run's prior, (K,) in nats."""
    method: Any = run.method
    atoms, weights = (run.server[f"prior/{k}"] for k in ("atoms", "weights"))
    each = (method.log_kernel(method.estimator({}, data), atoms) for data in run.train)
    return torch.stack([torch.logsumexp(weights.log() + log_phi, 0) for log_phi in each]).numpy()


def test_npeb_is_the_stand_alone_solver_on_the_same_estimates() -> None:
    run = run_of(NPEB)
    run.step()
    z, V = by_hand(run)
    expected = npmle(z, (V + V.swapaxes(1, 2)) / 2, tolerance=1e-4)
    np.testing.assert_allclose(means(run), expected.sites.mean, atol=1e-7)
    assert float(run.server["report/log_likelihood"]) == pytest.approx(expected.log_likelihood, abs=1e-9)
    centre = run.method.common(run.server) or {}
    np.testing.assert_allclose(run.method.ravel.flat(centre), expected.mean, atol=1e-9)  # type: ignore[attr-defined]


def test_adamix_is_the_stand_alone_fit_on_the_same_estimates() -> None:
    run = run_of(AdaMix, arguments={"components": 3})
    run.step()
    z, V = by_hand(run)
    key = fold(run.key, "round", 1, "server")
    expected = adamix(z, (V + V.swapaxes(1, 2)) / 2, components=3, key=key)
    np.testing.assert_allclose(means(run), expected.sites.mean, atol=1e-6)
    theta, posterior = run.personal(4), expected.sites
    m, r, roots = (theta[f"posterior/{k}"] for k in ("atoms", "weights", "roots"))
    within = torch.einsum("l,lab,lcb->ac", r, roots, roots)
    gap = m - r @ m
    covariance = within + torch.einsum("l,la,lb->ab", r, gap, gap)
    np.testing.assert_allclose(covariance, posterior.covariance[4], atol=1e-6)


def kernel(run: Run) -> Regression:
    """The clients' working likelihoods for the stand-alone solver, with the parameters in the run's order."""
    z, _ = by_hand(run)
    bias_first = run.method.ravel.names[0].endswith("bias_unconstrained")  # type: ignore[attr-defined]
    one = lambda x: torch.cat([torch.ones(len(x), 1), x] if bias_first else [x, torch.ones(len(x), 1)], 1).numpy()
    rows = np.array([one(data.x) for data in run.train])

    def curvature(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = 1 / (1 + np.exp(-eta))
        return p * (1 - p), p * (1 - p) * (1 - 2 * p)

    return Regression(z, rows, curvature, ridge=0.1)


def test_vaneb_climbs_from_npeb_towards_the_certified_optimum() -> None:
    run = run_of(VANEB, rounds=8)
    moving, values = kernel(run), []
    for now in run:
        values.append(now.report["log_likelihood"])
    first = run_of(NPEB)
    first.step()
    atoms, weights = (first.server[f"prior/{k}"].numpy() for k in ("atoms", "weights"))
    log_phi = moving.evaluate(atoms, slice(None))[0]
    start = float(np.log(np.exp(log_phi) @ weights).mean())
    best = npmle(moving, tolerance=1e-6)
    assert all(b >= a - 1e-9 for a, b in pairwise(values[1:])), values
    assert start + 1e-3 < values[-1] <= best.log_likelihood + 1e-6
    assert values[-1] > alternating(moving).log_likelihood + 0.03, "which stops where its atoms no longer move"
    assert best.log_likelihood - values[-1] < 0.06
    atoms, weights = (run.server[f"prior/{k}"].numpy() for k in ("atoms", "weights"))
    assert float(np.log(np.exp(moving.evaluate(atoms, slice(None))[0]) @ weights).mean()) == pytest.approx(values[-1])


def test_a_constant_covariance_makes_vaneb_equal_npeb() -> None:
    federation = clients(likelihood="gaussian")
    plain = run_of(NPEB, federation=federation, arguments={"tolerance": 1e-8})
    moving = run_of(VANEB, federation=federation, arguments={"tolerance": 1e-8}, rounds=3)
    plain.step()
    list(moving)
    assert float(moving.server["report/log_likelihood"]) == pytest.approx(
        float(plain.server["report/log_likelihood"]), abs=2e-8
    )
    np.testing.assert_allclose(log_marginals(moving), log_marginals(plain), atol=2e-3)  # which are unique, G is not
    e = moving.method.estimator({}, moving.train[0])  # type: ignore[attr-defined]
    atoms = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_phi = [r.method.log_kernel(e, atoms) for r in (plain, moving)]  # type: ignore[attr-defined]
    torch.testing.assert_close(*log_phi)


def test_the_papers_moves_ignore_how_the_covariance_moves() -> None:
    method = VANEB(program(), clients=2, move="fixed")
    down, data = method.down(method.init(root(1)), 0), clients(2).clients[0].train
    up = method.local(down, {}, data, root(2)).up
    e = method.estimator(down, data)
    gap = up["estimate"] - down["points"][0]
    torch.testing.assert_close(up["slope"][0], e.precision(down["points"][0]) @ gap)
    true = VANEB(program(), clients=2).local(down, {}, data, root(2)).up["slope"][0]
    h = 1e-6 * torch.eye(3, dtype=torch.float64)
    at = torch.cat([down["points"][:1] + h, down["points"][:1] - h])
    log_phi = method.log_kernel(e, at)
    torch.testing.assert_close(true, (log_phi[:3] - log_phi[3:]) / 2e-6, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(true, up["slope"][0], atol=1e-2)


@pytest.mark.parametrize("kind", METHODS)
def test_both_engines_give_the_same(kind: type[SitePrior]) -> None:
    runs = [run_of(kind, rounds=3, engine=e, federation=clients(6)) for e in (Sequential(), Vectorised(ragged=100.0))]
    one, together = ([now.report for now in run] for run in runs)
    assert runs[1].engine.fallback is None  # type: ignore[attr-defined]
    for a, b in zip(one, together, strict=True):
        assert a == pytest.approx(b, abs=1e-8)
    close(runs[0].server, runs[1].server, tolerance=1e-6)


@pytest.mark.parametrize("kind", METHODS)
def test_no_row_is_in_what_a_client_sends(kind: type[SitePrior]) -> None:
    method = kind(program(), clients=4)
    down = method.down(method.init(root(1)), 0)
    sent = {}
    for n in (5, 9):
        rng = np.random.default_rng(n)
        data = Data.of(torch.tensor(rng.normal(size=(n, 2))), torch.tensor(rng.integers(0, 2, n)).double())
        reply = method.local(down, method.join(down), data, root(2))
        sent[n] = {k: v.shape for k, v in reply.up.items()}
        assert reply.own == {}
        numbers = torch.cat([v.flatten() for v in reply.up.values()])
        assert not bool(torch.isin(data.x, numbers).any())
    assert sent[5] == sent[9], "the message does not grow with the rows"
    assert not any(k.startswith("heard/") for k in down), "the server's memory is not sent around"


@pytest.mark.parametrize("kind", METHODS)
def test_a_client_without_rows_predicts_with_the_prior(kind: type[SitePrior]) -> None:
    run = run_of(kind)
    run.step()
    down = run.method.down(run.server, 0)
    empty = run.train[0]._replace(n=torch.tensor(0))
    theta = run.method.personal(down, {}, empty, root(1))
    close({"": theta["posterior/weights"]}, {"": down["prior/weights"]}, tolerance=1e-12)
    close({"": theta["posterior/atoms"]}, {"": down["prior/atoms"]}, tolerance=1e-12)
    if kind is AdaMix:
        roots = theta["posterior/roots"]
        torch.testing.assert_close(roots @ roots.mT, down["prior/spreads"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", [NPEB, VANEB])
def test_draws_visit_the_atoms_by_their_weights(kind: type[SitePrior]) -> None:
    method = kind(program(), clients=3)
    atoms = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    weights = torch.tensor([0.2, 0.0, 0.8], dtype=torch.float64)
    theta = {**method.ravel.tree(weights @ atoms), "posterior/atoms": atoms, "posterior/weights": weights}
    x = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    each = torch.stack([method.program.predict(dict(method.ravel.tree(a)), x, None).squeeze() for a in atoms])
    drawn = torch.stack([method.predict(theta, x, root(s)).squeeze() for s in range(400)])
    together = torch.func.vmap(lambda k: method.predict(theta, x, k).squeeze())(
        torch.stack([root(s) for s in range(400)])
    )
    torch.testing.assert_close(drawn, together)
    counts = [int((drawn == v).sum()) for v in each]
    assert sum(counts) == 400 and counts[1] == 0
    assert abs(counts[0] - 80) < 4 * np.sqrt(400 * 0.2 * 0.8)


def test_draws_of_a_mixture_have_its_moments() -> None:
    method = AdaMix(program("gaussian"), clients=2, components=2)
    atoms = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    roots = torch.stack([0.3 * torch.eye(3, dtype=torch.float64)] * 2)
    theta = {
        "posterior/atoms": atoms,
        "posterior/weights": torch.tensor([0.5, 0.5], dtype=torch.float64),
        "posterior/roots": roots,
    }
    draws = torch.stack(
        [
            method.draw({k.removeprefix("posterior/"): v for k, v in theta.items()}, torch.tensor([s % 2]), root(s))
            for s in range(2000)
        ]
    )
    torch.testing.assert_close(draws.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.09)
    torch.testing.assert_close(draws.var(0), torch.tensor([1.09, 0.09, 0.09], dtype=torch.float64), rtol=0.15, atol=0)


@pytest.mark.parametrize("kind", [NPEB, AdaMix])
def test_clients_heard_before_still_count(kind: type[SitePrior]) -> None:
    federation = clients(6)
    whole = run_of(kind, federation=federation)
    whole.step()
    parts = run_of(kind, federation=federation, rounds=30, cohort=Participation(clients=2))
    while not parts.done and not bool(parts.server["heard/yes"].all()):
        parts.step()
    for k in ("estimate", "covariance"):
        close({k: parts.server[f"heard/{k}"]}, {k: whole.server[f"heard/{k}"]}, tolerance=1e-12)
    if kind is NPEB:
        same(parts.method.common(parts.server) or {}, whole.method.common(whole.server) or {})


@pytest.mark.parametrize("kind", METHODS)
def test_shrunken_models_are_nearer_to_the_truth_than_each_clients_own(kind: type[SitePrior]) -> None:
    federation = clients(40, rows=16, spread=0.4)
    run = run_of(kind, rounds=3, federation=federation, engine=Vectorised())
    list(run)
    truth = coefficients(sites=40, features=2, spread=0.4, seed=3).numpy()
    if run.method.ravel.names[0].endswith("weight_unconstrained"):  # type: ignore[attr-defined]
        truth = truth[:, [1, 2, 0]]
    error = lambda estimate: float(((estimate - truth) ** 2).sum(1).mean())
    assert error(means(run)) < 0.5 * error(by_hand(run)[0])


def test_a_worse_prior_does_not_replace_a_better_one() -> None:
    run = run_of(VANEB, rounds=2, federation=clients(6))
    run.step()
    method: Any = run.method
    downs = [method.down(run.server, i) for i in range(6)]
    ups = stack([method.local(d, {}, run.train[i], root(i)).up for i, d in enumerate(downs)])
    cohort = Cohort(torch.arange(6), torch.stack([d.n for d in run.train]), root(0), 2)
    better = method.aggregate(run.server, {**ups, "log_marginal": ups["log_marginal"] + 100}, cohort)
    for k in ("prior/atoms", "prior/weights", "report/log_likelihood"):
        assert torch.equal(better[k], run.server[k])
    assert not torch.equal(better["points"], run.server["points"]), "the atoms move on all the same"


@pytest.mark.parametrize("kind", METHODS)
def test_what_makes_no_sense_is_refused(kind: type[SitePrior]) -> None:
    for bad, text in (({"ridge": 0.0}, r"method\.ridge must be positive"), ({"newton": 0}, r"method\.newton must be")):
        with pytest.raises(ValueError, match=text):
            kind(program(), **bad)
    with pytest.raises(ValueError, match="use guide = 'delta' and prior = 'flat'"):
        kind(program(prior="gaussian"))
    with pytest.raises(ValueError, match=r"estimates the prior itself, .* under prior = 'flat': use guide = 'delta'"):
        kind(program(prior="gaussian", guide="normal"))
    for name in ("optimizer", "epochs", "size", "weighting", "pooling", "finetune", "finetune_epochs", "finetune_part"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            kind(program(), **{name: 1})


def test_large_models_are_refused() -> None:
    with torch.random.fork_rng(devices=[]):
        net = Logistic((40, 30), 1)
    x: Tensor = torch.zeros(2, 40, 30)
    large = Program(Bayesian(net, PRIORS["flat"](), "bernoulli"), x, torch.zeros(2), guide=GUIDES["delta"])
    with pytest.raises(ValueError, match="the model has 1201 parameters"):
        NPEB(large)


def test_adamix_needs_components_runs_and_steps() -> None:
    for name in ("components", "restarts", "em"):
        with pytest.raises(ValueError, match=rf"method\.{name} must be at least 1, got 0"):
            AdaMix(program(), **{name: 0})
