"""What a server averages: closed forms of each pooling rule, and refusals where a sum is not enough."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close

from pyrofl.averaged import Averaged, averaged
from pyrofl.meanfield import pool
from pyrofl.random import fold, normal, root
from pyrofl.tree import Tree, mean, stack

PROGRAM = build.program()
ROWS = torch.tensor([1, 2, 5])


def messages() -> list[Tree]:
    some = lambda c, k, v: v + 0.7 * normal(fold(root(3), c, k), v.shape, v.dtype)
    return [{k: some(c, k, v) for k, v in PROGRAM.theta0.items()} for c in range(3)]


@pytest.mark.parametrize("rule", ["scale", "unconstrained", "variance", "mixture"])
@pytest.mark.parametrize("rows", [False, True])
def test_the_mean_of_the_numbers_is_the_pooled_posterior(rule: str, rows: bool) -> None:
    kind = Averaged(PROGRAM, "plain" if rule == "unconstrained" else rule, rows)
    every = messages()
    z = mean(stack([kind.of(m) for m in every]), kind.shares(ROWS))
    found = PROGRAM.posterior(kind.back(z, PROGRAM.theta0))
    weights = ROWS.double() if rows else torch.ones_like(ROWS).double()
    for site, (loc, scale) in pool(PROGRAM.posterior(stack(every)), weights, rule).items():
        close(dict(zip("ls", found[site])), {"l": loc, "s": scale}, tolerance=1e-12)


def test_of_a_product_natural_parameters_are_summed() -> None:
    """By hand: N(1, 0.5^2) is (4, 4), N(2, 1) is (2, 1); their means (3, 2.5) are N(1.2, 0.4)."""
    kind, theta = Averaged(PROGRAM, "product"), PROGRAM.theta0
    site = PROGRAM.sites[0]
    shapes = {k: torch.ones_like(v) for k, (v, _) in PROGRAM.posterior(theta).items()}
    at = lambda m, s: {**theta, **PROGRAM.guide_of({k: (m * v, s * v) for k, v in shapes.items()})}
    z = mean(stack([kind.of(at(1.0, 0.5)), kind.of(at(2.0, 1.0))]), torch.ones(2))
    loc, scale = PROGRAM.posterior(kind.back(z, theta))[site]
    assert torch.allclose(loc, torch.full_like(loc, 1.2)) and torch.allclose(scale.square(), torch.full_like(loc, 0.4))


@pytest.mark.parametrize("rule", ["variance", "mixture", "product"])
def test_what_is_no_posterior_does_not_pass_for_one(rule: str) -> None:
    """A sum that a site has spoilt: the gate refuses what is not finite."""
    kind, like = Averaged(PROGRAM, rule), PROGRAM.theta0
    z = {k: -v if k == PROGRAM.scale_name(PROGRAM.sites[0]) else v for k, v in kind.of(like).items()}
    assert not torch.isfinite(kind.back(z, like)[PROGRAM.scale_name(PROGRAM.sites[0])]).any()


def test_shares_are_the_weights_times_the_number_of_clients() -> None:
    assert Averaged(PROGRAM, rows=True).shares(ROWS).tolist() == [3 / 8, 6 / 8, 15 / 8]
    assert Averaged(PROGRAM).shares(ROWS).tolist() == [1.0, 1.0, 1.0]


UNIFORM = {"weighting": "uniform"}


@pytest.mark.parametrize(
    ("case", "rule", "rows"),
    [
        (Case("fedavg"), "plain", True),
        (Case("fedavg", UNIFORM), "plain", False),
        (Case("fedprox"), "plain", True),
        (Case("scaffold"), "plain", False),
        (Case("bayfl"), "scale", True),
        (Case("bayfl", {**UNIFORM, "pooling": "unconstrained"}), "plain", False),
        (Case("bayfl", {"pooling": "variance"}), "variance", True),
        (Case("bayfl", {**UNIFORM, "pooling": "mixture"}), "mixture", False),
        (Case("bayfl", {"pooling": "product"}), "product", False),  # every likelihood counts once
        (Case("fedmap", {"fixed_variance": 1.0}), "plain", True),
        (Case("fedmap", {}, {"guide": "normal"}), "mixture", True),
    ],
    ids=str,
)
def test_a_methods_numbers_are_found(case: Case, rule: str, rows: bool) -> None:
    method = case.build()
    assert averaged(method, method.init(root(1))) == Averaged(method.program, rule, rows)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("fedmap"), r"secure: FedMAP's server needs more than a sum of the clients' messages, for 'variance/"),
        (Case("fedmap", {"fixed_variance": 1.0, "weights": "mean_loglik"}), "secure: FedMAP's server needs more"),
        (Case("npeb"), "secure: NPEB's server needs more than a sum of messages: site 0"),
        (Case("fedfomo"), "secure: FedFomo sends each client something else"),
        (Case("fedmask"), "secure: 'mask' of FedMask's message is no real number"),
        (Case("alone"), "secure: Alone sends nothing, so there is nothing to sum"),
    ],
    ids=str,
)
def test_a_method_whose_server_needs_more_is_refused(case: Case, reason: str) -> None:
    method = case.build()
    with pytest.raises(ValueError, match=reason):
        averaged(method, method.init(root(1)))
