"""FedPop on linear-Gaussian mixed models, where the law of the chain and the EM step have closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import build, conjugate
from support.compare import close
from torch import nn
from torch.func import grad, vmap

from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Data
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.method import Cohort
from pyrofl.methods import FedPop
from pyrofl.optim import SGD
from pyrofl.priors import Flat
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import Tree, part, stack

SIGMA, RATE, N = conjugate.SIGMA, 0.1, 8


class Mixed(nn.Module):
    """y = z_1 (phi x) + z_0: one weight shared, two personal."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def rows() -> Data:
    draw = np.random.default_rng(4)
    x = np.linspace(-1.5, 1.5, N)
    return Data.of(torch.from_numpy(x[:, None]), torch.from_numpy(1.0 + 2.0 * x + SIGMA * draw.normal(size=N)))


def mixed(**arguments: Any) -> tuple[FedPop, Tree]:
    """The method, and what a client receives: phi = 1, mu = (0.5, -1), v = (0.3, 2)."""
    x, y, _ = rows()
    program = Program(Bayesian(Mixed().double(), Flat(), Noise(SIGMA)), x, y, guide=GUIDES["delta"])
    method = FedPop(program, SGD(RATE), size=N, **arguments)
    weight, bias = (program.loc_name(f"net.head.{k}") for k in ("weight", "bias"))
    values = {
        program.loc_name("net.body.weight"): 1.0,
        f"mu/{weight}": 0.5,
        f"mu/{bias}": -1.0,
        f"v/{weight}": 0.3,
        f"v/{bias}": 2.0,
    }
    down = method.down(method.init(root(0)), 0)
    return method, {k: torch.full_like(t, values[k]) for k, t in down.items()}


def part_of(tree: Tree, head: str) -> Tree:
    return {k: v for k, v in tree.items() if k.startswith(head)}


def test_the_chain_draws_from_the_exact_conditional_of_a_mixed_model() -> None:
    """64 chains of 60 steps, the last 25 kept. Full batches, so the chain's own stationary law is known: an
    eigenvalue e of the precision per row has variance 1 / (n e (1 - RATE e / 2))."""
    method, down = mixed(samples=25, epochs=60)
    data, own = rows(), method.join(down)
    keys = fold(root(1), torch.arange(64))
    chains = part(vmap(lambda k: method.local(down, own, data, k).own)(keys), "chain")
    z = torch.cat([c.reshape(64 * 25, 1) for c in chains.values()], 1)
    order = ["weight" in name for name in chains]
    X = np.column_stack([rows().x[:, 0].numpy() if w else np.ones(N) for w in order])
    mu, v = (np.array([a if w else b for w in order]) for a, b in ((0.5, -1.0), (0.3, 2.0)))
    precision = X.T @ X / SIGMA**2 + np.diag(1 / v)
    mean = np.linalg.solve(precision, X.T @ data.y.numpy() / SIGMA**2 + mu / v)
    e, U = np.linalg.eigh(precision / N)
    covariance = U @ np.diag(1 / (N * e * (1 - RATE * e / 2))) @ U.T
    sd = np.diag(covariance) ** 0.5
    assert (np.abs(z.mean(0).numpy() - mean) < 0.2 * sd).all()
    np.testing.assert_allclose(z.std(0).numpy(), sd, rtol=0.12)
    correlation = covariance[0, 1] / sd.prod()
    assert abs(np.corrcoef(z.T.numpy())[0, 1] - correlation) < 0.15


def test_what_is_sent_are_means_over_the_states_that_are_kept() -> None:
    method, down = mixed(samples=3, epochs=7)
    data = rows()
    reply = method.local(down, method.join(down), data, root(2))
    chain = part(reply.own, "chain")
    body = method.program.loc_name("net.body.weight")

    def cost(phi: torch.Tensor, z: Tree) -> torch.Tensor:
        theta = {k: t for k, t in down.items() if k in method.program.theta0} | z
        return method.program.loss({**theta, body: phi}, Batch.of(data.x, data.y), root(0))

    states = [{k: c[s] for k, c in chain.items()} for s in range(3)]
    assert len({float(s[body.replace("body", "head")]) for s in states}) == 3, "three different states"
    expected = torch.stack([grad(cost)(down[body], s) for s in states]).mean(0)
    torch.testing.assert_close(reply.up[f"gradient/{body}"], expected, rtol=1e-9, atol=1e-12)
    for k, c in chain.items():
        torch.testing.assert_close(reply.up[f"first/{k}"], (c - down[f"mu/{k}"]).mean(0))
        torch.testing.assert_close(reply.up[f"second/{k}"], (c - down[f"mu/{k}"]).square().mean(0))


def test_the_chain_goes_on_where_it_was() -> None:
    """With steps too small to move, every kept state is the last one of the round before."""
    method, down = mixed(samples=2, epochs=3)
    own = {k: torch.stack([torch.zeros_like(c[0]), torch.ones_like(c[0])]) for k, c in method.join(down).items()}
    still = FedPop(method.program, SGD(1e-14), samples=2, epochs=3, size=N)
    after = still.local(down, own, rows(), root(1)).own
    close(after, {k: torch.ones_like(c) for k, c in own.items()})


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.0])
def test_the_population_moves_to_the_moments_of_the_draws(rate: float) -> None:
    """mu = 1 and v = 0.5; two clients whose draws are 2 +- 0.4 and 3 +- 0.2: moments 2.5, and 6.6 about 0."""
    method, down = mixed(prior_rate=rate)
    server = {**method.init(root(0)), **{k: torch.full_like(t, 1.0 if "mu/" in k else 0.5) for k, t in down.items()}}
    ups = []
    for centre, spread in ((2.0, 0.4), (3.0, 0.2)):
        first, second = centre - 1, spread**2 + (centre - 1) ** 2
        sent = {"first": first, "second": second, "gradient": 0.0}
        ups.append({k: torch.full_like(t, sent[k.partition("/")[0]]) for k, t in method.message(down).items()})
    new = method.aggregate(server, stack(ups), Cohort(torch.arange(2), torch.tensor([30, 1]), root(0), 1))
    mu = 1 + rate * 1.5
    about_zero = (1 - rate) * (0.5 + 1) + rate * 6.6
    for name in method.mine:
        assert new[f"mu/{name}"].flatten().tolist() == pytest.approx([mu])
        assert new[f"v/{name}"].flatten().tolist() == pytest.approx([about_zero - mu**2])


def test_the_server_steps_on_the_body_by_the_gradients_weighted_by_rows() -> None:
    method, down = mixed(server=SGD(0.2))
    server, body = method.init(root(0)), method.program.loc_name("net.body.weight")
    ups = stack([{k: torch.full_like(t, g) for k, t in method.message(down).items()} for g in (1.0, 5.0)])
    new = method.aggregate(server, ups, Cohort(torch.arange(2), torch.tensor([3, 1]), root(0), 1))
    torch.testing.assert_close(new[body], server[body] - 0.2 * 2.0)


def test_predictions_use_every_kept_state() -> None:
    method, down = mixed(samples=3)
    own = {
        k: torch.arange(3.0, dtype=torch.float64).reshape(3, *[1] * (c.dim() - 1)) for k, c in method.join(down).items()
    }
    theta = method.personal(down, own, rows(), root(0))
    x = torch.zeros(1, 1, dtype=torch.float64)  # so that the prediction is z_0
    drawn = [float(method.predict(theta, x, fold(root(1), i))[0, 0]) for i in range(60)]
    assert set(drawn) == {0.0, 1.0, 2.0}
    assert min(drawn.count(v) for v in (0.0, 1.0, 2.0)) > 8


def test_a_client_that_never_trained_predicts_with_the_middle_of_the_population() -> None:
    """mu = (0.5, -1) and phi = 1: z_1 (phi x) + z_0 = 0 at x = 2, whatever is drawn."""
    method, down = mixed(samples=3)
    theta = method.personal(down, method.join(down), rows(), root(0))
    x = torch.full((1, 1), 2.0, dtype=torch.float64)
    assert {round(float(method.predict(theta, x, root(i))[0, 0]), 12) for i in range(9)} == {0.0}


def test_a_client_that_was_away_goes_on_with_the_body_and_the_population_of_now() -> None:
    """Its chain is its own; what it is sent is not kept."""
    method, down = mixed(samples=2)
    own = method.join(down)
    assert all(name.startswith("chain/") for name in own)
    later = {k: v + 1.0 for k, v in down.items() if not k.startswith("v/")} | part_of(down, "v/")
    theta, data = method.personal(later, own, rows(), root(0)), rows()
    body = method.program.loc_name("net.body.weight")
    assert torch.equal(theta[body], later[body])
    reply = method.local(later, own, data, root(1))
    for k, c in part(reply.own, "chain").items():
        torch.testing.assert_close(reply.up[f"first/{k}"], (c - later[f"mu/{k}"]).mean(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"samples": 0}, "samples"), ({"prior_rate": 1.5}, "prior_rate"), ({"first_variance": 0.0}, "first_variance")],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.{message}"):
        FedPop(build.program(guide="delta", prior="flat"), **arguments)


def test_a_guide_with_scales_is_refused() -> None:
    with pytest.raises(ValueError, match="use guide = 'delta'"):
        FedPop(build.program())
