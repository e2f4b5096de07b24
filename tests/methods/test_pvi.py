"""Partitioned variational inference: exact on a conjugate model, and its factors always multiply to its posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support import build, conjugate
from support.cases import Case
from support.compare import close
from support.conjugate import SITE
from torch.func import vmap

from pyrofl.data import Data
from pyrofl.engines import Sequential, Vectorised
from pyrofl.meanfield import Posterior, moments, natural
from pyrofl.messages import Messages
from pyrofl.methods import PVI, BayFL
from pyrofl.optim import SGD, Adam
from pyrofl.random import root
from pyrofl.run import Participation, Run
from pyrofl.tree import Tree, add, part

ROWS = (5, 20, 60)


@dataclass(frozen=True)
class Exact(PVI):
    """PVI with the tilted posterior in closed form, to see the messages alone."""

    def refine(self, theta: Tree, cavity: Posterior, data: Data, key: torch.Tensor) -> tuple[Tree, Tree]:
        eta, (h, J) = natural(cavity), conjugate.likelihood(data)
        tilted = {f"{SITE}/h": eta[f"{SITE}/h"] + h, f"{SITE}/J": eta[f"{SITE}/J"] + J}
        return {**theta, **self.program.guide_of(moments(tilted))}, {}


def run_of(method: PVI, rounds: int, *, cohort: Participation | None = None, rows: tuple[int, ...] = ROWS) -> Run:
    run = Run(method, conjugate.federation(rows), engine=Sequential(), rounds=rounds, seed=1, cohort=cohort)
    list(run)
    return run


def q_of(run: Run) -> tuple[float, float]:
    ((loc, scale),) = moments(part(run.server, "q")).values()
    return loc.item(), scale.item()


def test_one_undamped_round_is_exact_on_a_conjugate_model() -> None:
    run = run_of(Exact(conjugate.program(), damping=1.0, clients=3), 1)
    assert q_of(run) == pytest.approx(conjugate.posterior(run.federation.clients), rel=1e-12)
    loc, scale = run.method.program.posterior(run.method.common(run.server))[SITE]
    assert (loc.item(), scale.item()) == pytest.approx(conjugate.posterior(run.federation.clients), rel=1e-12)


def test_one_client_at_a_time_is_exact_when_each_had_a_turn() -> None:
    run = run_of(Exact(conjugate.program(), together=1, clients=3), 12, cohort=Participation(clients=1))
    assert all(run.states.get(i) is not None for i in range(3)), "a client had no turn in twelve rounds"
    assert q_of(run) == pytest.approx(conjugate.posterior(run.federation.clients), rel=1e-12)


def test_damping_takes_that_part_of_the_way_in_each_round() -> None:
    """In natural parameters t_k = (1 - (1 - d)^r) times the likelihood of client k after r rounds; d is 1/K here."""
    for rounds in (1, 4):
        run = run_of(Exact(conjugate.program(), clients=3), rounds)
        for i, client in enumerate(run.federation.clients):
            t = part(run.states.get(i) or {}, "factor")
            expected = [(1 - (2 / 3) ** rounds) * v for v in conjugate.likelihood(client.train)]
            assert [t[f"{SITE}/h"].item(), t[f"{SITE}/J"].item()] == pytest.approx(expected, rel=1e-9)


def test_stochastic_gradients_find_the_exact_posterior() -> None:
    """To 0.3 and 15 % of the posterior's standard deviation; averaging the clients' scales would be 70 % off."""
    federation = conjugate.federation((2, 5))
    method = PVI(conjugate.program(particles=4), Adam(0.05), epochs=30, size=5, damping=1.0, clients=2)
    run = Run(method, federation, engine=Sequential(), rounds=2, seed=1)
    list(run)
    run.method = replace(method, optimizer=SGD(0.05), epochs=150)
    run.messages, run.rounds = Messages.plain(run.method), 4
    list(run)
    mean, sd = conjugate.posterior(federation.clients)
    loc, scale = q_of(run)
    assert abs(loc - mean) < 0.3 * sd
    assert scale == pytest.approx(sd, rel=0.15)


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(ragged=100.0)], ids=lambda e: e.name)
def test_the_posterior_is_the_prior_times_all_factors(engine: Any) -> None:
    """With clients that are absent, and with a network, whose tilted posteriors are not exact."""
    for cohort in (None, Participation(clients=2)):
        run = Case("pvi", {"damping": 0.7}).run(engine=engine, cohort=cohort, rounds=4)
        expected = natural(run.method.program.prior_posterior())
        for _ in range(4):
            run.step()
            total = expected
            for i in range(len(run.train)):
                if own := run.states.get(i):
                    total = add(total, part(own, "factor"))
            close(part(run.server, "q"), total, tolerance=1e-12)


def test_one_client_undamped_is_variational_inference() -> None:
    program, data, key = build.program(), build.rows(9), root(3)
    method = PVI(program, epochs=3, size=4, seed=7)
    down = method.down(method.init(key), 0)
    reply = method.local(down, method.join(down), data, key)
    plain = BayFL(program, epochs=3, size=4).local(program.init(root(7)), {}, data, key).up
    q = add(natural(program.prior_posterior()), part(reply.up, "factor"))
    close(program.guide_of(moments(q)), {k: plain[k] for k in program.posterior_names}, tolerance=1e-9)
    assert float(reply.info["shortened"]) == 0.0


def given(method: PVI, *, factor: tuple[float, float]) -> tuple[Tree, Tree]:
    """(down, own) of a client with the given factor (h, J) in the first round."""
    down = method.down(method.init(root(0)), 0)
    own = method.join(down)
    h, J = (torch.full_like(own[f"factor/{SITE}/J"], v) for v in factor)
    return down, {**own, f"factor/{SITE}/h": h, f"factor/{SITE}/J": J}


def test_a_cavity_without_density_divides_out_a_smaller_power() -> None:
    """q is the prior and t has ten times its precision: dividing it out would leave a precision of -9 / TAU^2."""
    seen: list[Posterior] = []

    @dataclass(frozen=True)
    class Watched(Exact):
        def refine(self, theta: Tree, cavity: Posterior, data: Data, key: torch.Tensor) -> tuple[Tree, Tree]:
            seen.append(cavity)
            return super().refine(theta, cavity, data, key)

    method, (client,) = Watched(conjugate.program()), conjugate.federation((5,)).clients
    down, own = given(method, factor=(2.0, 10 / conjugate.TAU**2))
    reply = method.local(down, own, client.train, root(1))
    eta, power = natural(seen[0]), (1 - 1e-3) / 10
    assert eta[f"{SITE}/J"].item() == pytest.approx(1e-3 / conjugate.TAU**2, rel=1e-9)
    assert eta[f"{SITE}/h"].item() == pytest.approx(-2.0 * power, rel=1e-9)
    assert float(reply.info["shortened"]) == 0.5  # one of: the division, the step
    together = lambda d, o: method.local(d, o, client.train, root(1)).up
    mapped = vmap(together)(*({k: torch.stack([v, v]) for k, v in t.items()} for t in (down, own)))
    close({k: v[1] for k, v in mapped.items()}, reply.up)


def test_steps_that_would_leave_no_precision_are_shortened() -> None:
    """Each of three clients wants to take all of q's precision away, which the sum of their steps must not do."""

    @dataclass(frozen=True)
    class Vague(PVI):
        def refine(self, theta: Tree, cavity: Posterior, data: Data, key: torch.Tensor) -> tuple[Tree, Tree]:
            wide = {s: (m, torch.full_like(v, 1e6)) for s, (m, v) in cavity.items()}
            return {**theta, **self.program.guide_of(wide)}, {}

    run = run_of(Vague(conjugate.program(), damping=1.0, clients=3), 3)
    assert run.round == 3
    _, scale = q_of(run)
    assert scale**-2 == pytest.approx(1e-3 / conjugate.TAU**2, rel=1e-6)


def test_a_round_of_more_clients_than_announced_is_refused() -> None:
    with pytest.raises(ValueError, match=r"method\.together is 2 and the round has 3 clients"):
        run_of(Exact(conjugate.program(), together=2, clients=3), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"damping": 0.0}, r"method\.damping"), ({"damping": 1.5}, r"method\.damping"), ({"together": 0}, "at least 1")],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PVI(build.program(), **arguments)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"guide": "delta"}, "use guide = 'normal'"),
        ({"prior": "laplace"}, "use guide = 'normal' and prior = 'gaussian'"),
    ],
    ids=str,
)
def test_only_normals_have_factors(network: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PVI(build.program(**network))
