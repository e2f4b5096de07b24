"""pFedBayes: the scale of its KL and of its noise, its turns, and what it is where zeta is 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import build, conjugate
from support.compare import close, distance
from support.conjugate import SITE

from pyrofl.data import Data
from pyrofl.method import Cohort
from pyrofl.methods import BayFL, PFedBayes
from pyrofl.optim import SGD, Adam
from pyrofl.random import root
from pyrofl.tree import Tree, part, stack


def with_q(program: Any, down: Tree, loc: float, scale: float) -> Tree:
    like = torch.full((1, 1), 1.0, dtype=torch.float64)
    return {**down, **program.guide_of({SITE: (loc * like, scale * like)})}


@pytest.mark.parametrize("zeta", [0.5, 4.0])
def test_the_personal_posterior_is_the_exact_one_under_the_global_as_prior(zeta: float) -> None:
    """min E[-log p(rows | mu)] + zeta KL(q || N(m, s^2)): precision 1 / s^2 + n / (zeta SIGMA^2). With the KL divided
    by steps instead of rows, or with noise of another scale than 1, it would be another one."""
    program, (client,) = conjugate.program(particles=4), conjugate.federation((4,)).clients
    method = PFedBayes(program, zeta=zeta, inner=10**6, size=4)
    down = with_q(program, method.init(root(0)), -0.5, 0.6)
    own = method.join(down)
    for optimizer, epochs in ((Adam(0.05), 40), (SGD(0.02), 80)):
        own = replace(method, optimizer=optimizer, epochs=epochs).local(down, own, client.train, root(epochs)).own
    h, J = conjugate.likelihood(client.train)
    J, h = J / zeta + 0.6**-2, h / zeta - 0.5 * 0.6**-2
    loc, scale = program.posterior({**down, **part(own, "personal")})[SITE]
    assert abs(loc.item() - h / J) < 0.25 * J**-0.5
    assert scale.item() == pytest.approx(J**-0.5, rel=0.12)


def test_a_step_on_the_global_copy_follows_every_inner_steps_and_the_last() -> None:
    """One row a batch and plain gradient descent: by hand, with the gradient of the KL in (loc, rho)."""
    program, (client,) = conjugate.program(), conjugate.federation((7,)).clients
    seen: list[Tree] = []

    class Watched(SGD):
        def update(self, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
            if "" not in theta:
                seen.append(theta)
            return super().update(gradient, state, theta)

    method = PFedBayes(program, Watched(0.01), zeta=0.5, inner=3, size=1)
    down = method.init(root(0))
    sent = method.local(down, method.join(down), client.train, root(1)).up
    moved = [i for i in range(6) if distance(seen[i], seen[i + 1]) > 0]  # before step i and before step i + 1
    assert moved == [2, 5]
    assert distance(seen[6], {k: sent[k] for k in seen[6]}) > 0, "the seventh step is the last"


def test_the_step_on_the_global_copy_lowers_the_kl_by_its_gradient() -> None:
    """KL(N(m, s^2) || N(a, b^2)) has derivatives (a - m) / b^2 in a and (1 - (s^2 + (a - m)^2) / b^2) / b in b."""
    program, (client,) = conjugate.program(), conjugate.federation((4,)).clients
    method = PFedBayes(program, SGD(0.02), zeta=0.5, inner=5, size=4)
    down = with_q(program, method.init(root(0)), 0.3, 0.5)
    reply = method.local(down, method.join(down), client.train, root(1))  # one step on q, then one on w
    m, s = (v.item() for v in program.posterior({**down, **part(reply.own, "personal")})[SITE])
    rate, a, b = 0.02 * 0.5 / 4, 0.3, 0.5
    rho = down[program.scale_name(SITE)].item()
    slope = 1 / (1 + torch.exp(torch.tensor(-rho)).item())  # d softplus / d rho
    assert reply.up[program.loc_name(SITE)].item() == pytest.approx(a - rate * (a - m) / b**2, rel=1e-9)
    expected = rho - rate * slope * (1 - (s**2 + (a - m) ** 2) / b**2) / b
    assert reply.up[program.scale_name(SITE)].item() == pytest.approx(expected, rel=1e-6)


def test_the_local_copy_starts_at_the_global_posterior_in_each_round_and_the_personal_one_where_it_was() -> None:
    """With steps too small to move; a client keeps its own posterior and no copy of the global one."""
    program, (client,) = conjugate.program(), conjugate.federation((4,)).clients
    method = PFedBayes(program, SGD(1e-14), zeta=1.0, size=4)
    own = {f"personal/{k}": v for k, v in with_q(program, {}, 1.0, 0.2).items()}
    for loc, scale in ((-0.7, 0.9), (0.4, 0.3)):
        down = with_q(program, method.init(root(0)), loc, scale)
        reply = method.local(down, own, client.train, root(1))
        close({k: reply.up[k] for k in program.posterior_names}, with_q(program, {}, loc, scale))
        close(reply.own, own)
        assert reply.own.keys() == own.keys()
        own = reply.own


def test_without_the_kl_it_is_training_alone_and_the_global_model_stays() -> None:
    program, data = build.program(beta=1.0), build.rows(9)
    method = PFedBayes(program, SGD(0.05), zeta=0.0, epochs=2, size=4)
    down = method.init(root(0))
    reply = method.local(down, method.join(down), data, root(1))
    likelihood_only = BayFL(build.program(beta=0.0), SGD(0.05), epochs=2, size=4).local(down, {}, data, root(1)).up
    close(part(reply.own, "personal"), likelihood_only, tolerance=1e-12)
    close({k: reply.up[k] for k in program.posterior_names}, {k: down[k] for k in program.posterior_names})


def test_ten_times_the_rows_weigh_the_kl_less() -> None:
    """The pull to w at the start is zeta (loc - m) / (s^2 n): it is seen in the first step of gradient descent."""
    program, moved = conjugate.program(), []
    for n in (4, 40):
        x = torch.ones(n, 1, dtype=torch.float64)
        data = Data.of(x, x[:, 0])
        down = with_q(program, PFedBayes(program).init(root(0)), 0.0, 0.5)
        own = {f"personal/{k}": v for k, v in with_q(program, {}, 1.0, 0.5).items()}
        ends = []
        for zeta in (0.0, 2.0):
            method = PFedBayes(program, SGD(0.01), zeta=zeta, size=n)
            ends.append(method.local(down, own, data, root(1)).own[f"personal/{program.loc_name(SITE)}"].item())
        moved.append(ends[0] - ends[1])
    assert moved == pytest.approx([0.01 * 2 / (0.25 * 4), 0.01 * 2 / (0.25 * 40)], rel=1e-9)


def test_the_server_moves_by_its_rate_to_the_mean_of_locations_and_scales() -> None:
    program = conjugate.program()
    method = PFedBayes(program, server_rate=0.5, weighting="uniform")
    server = with_q(program, method.init(root(0)), 0.0, 1.0)
    ups = stack([with_q(program, server, 1.0, 0.2), with_q(program, server, 3.0, 0.6)])
    new = method.aggregate(server, ups, Cohort(torch.arange(2), torch.tensor([9, 1]), root(1), 1))
    loc, scale = program.posterior(new)[SITE]
    assert (loc.item(), scale.item()) == pytest.approx((1.0, 0.7), rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"zeta": -1.0}, "zeta"), ({"inner": 0}, "inner"), ({"server_rate": 0.0}, "server_rate")],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.{message}"):
        PFedBayes(build.program(), **arguments)


def test_a_point_has_no_posterior() -> None:
    with pytest.raises(ValueError, match="use guide = 'normal'"):
        PFedBayes(build.program(guide="delta"))
