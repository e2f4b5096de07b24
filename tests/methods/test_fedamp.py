"""FedAMP: its attention by hand and at its ends, distances that underflow, and that messages reach the models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from support.quadratic import gradient, lines, regression, tree, vector
from torch import Tensor

from pyrofl.method import Cohort
from pyrofl.methods import Alone, FedAMP
from pyrofl.optim import SGD
from pyrofl.random import root
from pyrofl.run import rows_of
from pyrofl.store import Row
from pyrofl.tree import Tree, part, stack

LINES = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]  # squared distances 1, 4, 5
OTHERS = "report/off_diagonal"


def after(method: FedAMP, *models: list[float] | Tensor, ids: list[int] | None = None) -> Tree:
    """The server after a round in which clients sent these models."""
    ups = [tree(method.program, torch.as_tensor(m, dtype=torch.float64)) for m in models]
    cohort = Cohort(torch.tensor(ids or list(range(len(ups)))), torch.full((len(ups),), 5), root(0), 1)
    return method.aggregate(method.init(root(1)), stack(ups), cohort)


def test_the_papers_weights_by_hand() -> None:
    method = FedAMP(regression(), attention="absolute", sigma=2.0, alpha=0.8, clients=3)
    xi = after(method, *LINES)["attention"]
    a = lambda d: 0.8 * math.exp(-d / 2) / 2
    expected = [[1 - a(1) - a(4), a(1), a(4)], [a(1), 1 - a(1) - a(5), a(5)], [a(4), a(5), 1 - a(4) - a(5)]]
    torch.testing.assert_close(xi, torch.tensor(expected, dtype=torch.float64))


def test_weights_relative_to_the_median_distance_by_hand() -> None:
    method = FedAMP(regression(), sigma=0.5, alpha=0.8, clients=3)
    server = after(method, *LINES)
    a = lambda d: 0.4 * math.exp(-d / (0.5 * 4))
    expected = [[1 - a(1) - a(4), a(1), a(4)], [a(1), 1 - a(1) - a(5), a(5)], [a(4), a(5), 1 - a(4) - a(5)]]
    torch.testing.assert_close(server["attention"], torch.tensor(expected, dtype=torch.float64))
    assert float(server[OTHERS]) == pytest.approx(2 * (a(1) + a(4) + a(5)) / 3)


def test_weights_by_cosine_by_hand() -> None:
    method = FedAMP(regression(), attention="cosine", sigma=2.0, alpha=0.3, clients=3)
    xi = after(method, [1.0, 0.0, 0.0], [3.0, 3.0, 0.0], [0.0, -2.0, 0.0])["attention"]
    e = [math.exp(2 * c) for c in (math.sqrt(0.5), 0.0, -math.sqrt(0.5))]  # cosines of pairs 01, 02, 12
    share = [[0, e[0] / (e[0] + e[1]), e[1] / (e[0] + e[1])], [e[0] / (e[0] + e[2]), 0, e[2] / (e[0] + e[2])]]
    expected = 0.3 * torch.tensor([*share, [e[1] / (e[1] + e[2]), e[2] / (e[1] + e[2]), 0]], dtype=torch.float64)
    torch.testing.assert_close(xi, expected + 0.7 * torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("attention", ["median", "absolute", "cosine"])
def test_a_client_is_sent_its_own_mean_of_all_models(attention: Any) -> None:
    method = FedAMP(regression(), attention=attention, alpha=0.2, clients=3)
    server = after(method, *LINES)
    for i in range(3):
        expected = server["attention"][i] @ torch.tensor(LINES, dtype=torch.float64)
        torch.testing.assert_close(vector(method.program, method.down(server, i)), expected)
    assert not torch.allclose(*(vector(method.program, method.down(server, i)) for i in (0, 1)))


@pytest.mark.parametrize("attention", ["median", "absolute", "cosine"])
@pytest.mark.parametrize("spread", [0.0, 1e-200, 1.0, 1e3])
def test_rows_add_up_to_one_and_no_weight_is_negative(attention: Any, spread: float) -> None:
    K = 6
    alpha = 0.2 if attention == "absolute" else 1.0
    method = FedAMP(regression(), attention=attention, alpha=alpha, clients=K)
    models = spread * torch.randn(K, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    xi = after(method, *models)["attention"]
    torch.testing.assert_close(xi.sum(1), torch.ones(K, dtype=torch.float64))
    assert bool((xi >= -1e-15).all())


def test_a_small_sigma_sends_every_client_its_own_model_back() -> None:
    for attention in ("median", "absolute"):
        method = FedAMP(regression(), attention=attention, sigma=1e-3, alpha=1e-4, clients=3)  # type: ignore[arg-type]
        server = after(method, *LINES)
        torch.testing.assert_close(server["attention"], torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)
        for i, line in enumerate(LINES):
            assert vector(method.program, method.down(server, i)).tolist() == pytest.approx(line, abs=1e-12)


def test_distances_of_deep_networks_do_not_underflow() -> None:
    far = [[100 * v for v in line] for line in LINES]  # squared distances from 10^4
    fixed = after(FedAMP(regression(), attention="absolute", alpha=0.4, clients=3), *far)
    assert float(fixed[OTHERS]) == 0, "what a fixed sigma does to them"
    scaled = after(FedAMP(regression(), alpha=0.4, clients=3), *far)
    assert float(scaled[OTHERS]) > 0.1
    torch.testing.assert_close(
        scaled["attention"], after(FedAMP(regression(), alpha=0.4, clients=3), *LINES)["attention"]
    )


def test_clients_that_were_not_heard_of_attract_nobody_and_get_the_mean_of_the_others() -> None:
    method = FedAMP(regression(), alpha=0.8, clients=4)
    server = after(method, *LINES, ids=[0, 1, 3])
    xi = server["attention"]
    assert xi[:, 2].tolist() == [0, 0, 0, 0] and xi[2].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    torch.testing.assert_close(
        xi[[0, 1, 3]][:, [0, 1, 3]], after(FedAMP(regression(), alpha=0.8, clients=3), *LINES)["attention"]
    )
    only_one = after(method, LINES[1], ids=[2])
    assert only_one["attention"][2].tolist() == [0, 0, 1, 0] and float(only_one[OTHERS]) == 0
    assert vector(method.program, method.down(only_one, 0)).tolist() == pytest.approx(LINES[1])


def test_a_model_is_kept_while_its_client_is_absent() -> None:
    method = FedAMP(regression(), clients=3)
    server = after(method, *LINES)
    new = tree(method.program, torch.full((3,), 7.0, dtype=torch.float64))
    later = method.aggregate(server, stack([new]), Cohort(torch.tensor([1]), torch.tensor([5]), root(0), 2))
    kept = [vector(method.program, {k: v[i] for k, v in part(later, "model").items()}).tolist() for i in range(3)]
    assert kept == [LINES[0], [7.0] * 3, LINES[2]]


def test_the_message_is_where_a_client_starts_and_what_it_is_pulled_to() -> None:
    program, data = regression(), lines(12)
    method = FedAMP(program, SGD(0.05), size=12, epochs=3, mu=0.7)
    u, own = program.init(root(1)), program.init(root(2))
    w = start = vector(program, u)
    for _ in range(3):
        w = w - 0.05 * (gradient(data, w) + 0.7 * (w - start))
    reply = method.local(u, own, data, root(3))
    torch.testing.assert_close(vector(program, reply.up), w, rtol=1e-12, atol=1e-12)
    same(reply.up, reply.own)


def test_messages_reach_the_models() -> None:
    federation = build.federation((9, 9))

    def models(**options: Any) -> list[Tree]:
        run = Case("fedamp", options).run(rounds=2, federation=federation)
        run.method = FedAMP(build.program(guide="delta"), epochs=2, size=4, clients=2, **options)
        list(run)
        return [run.personal(i) for i in range(2)]

    together, apart = models(alpha=1.0, sigma=10.0), models(alpha=1e-9)
    assert distance(*together) < 0.8 * distance(*apart)


def test_without_attraction_and_pull_every_client_is_alone() -> None:
    program = build.program(guide="delta", batch_norm=True)
    method = FedAMP(program, SGD(0.1), epochs=2, size=4, sigma=1e-6, mu=0.0, clients=2)
    alone, data = Alone(program, SGD(0.1), epochs=2, size=4), [build.rows(n, seed=n) for n in (9, 7)]
    server = method.init(root(1))
    own = [method.join(method.down(server, i)) for i in range(2)]
    lonely = list(own)
    for t in range(2):
        keys = [root(10 * t + i) for i in range(2)]
        own = [method.local(method.down(server, i), own[i], data[i], keys[i]).own for i in range(2)]
        lonely = [alone.local({}, lonely[i], data[i], keys[i]).own for i in range(2)]
        server = method.aggregate(server, stack(own), Cohort(torch.arange(2), torch.tensor([9, 7]), root(0), t + 1))
    for a, b in zip(own, lonely, strict=True):
        close(a, b, tolerance=1e-10)


def test_posteriors_are_averaged_by_location_and_scale() -> None:
    program = build.program()
    method = FedAMP(program, alpha=1.0, clients=2)
    ups = []
    for loc, s in ((1.0, 0.1), (3.0, 0.5)):
        q = {
            k: (torch.full_like(v, loc), torch.full_like(v, s))
            for k, (v, _) in program.posterior(program.theta0).items()
        }
        ups.append({**program.theta0, **program.guide_of(q)})
    server = method.aggregate(
        method.init(root(1)), stack(ups), Cohort(torch.arange(2), torch.tensor([5, 5]), root(0), 1)
    )
    share = math.exp(-1)  # alpha / (K - 1) exp(-d / median d)
    for loc, s in program.posterior(method.down(server, 0)).values():
        torch.testing.assert_close(loc, torch.full_like(loc, 1 + 2 * share))
        torch.testing.assert_close(s, torch.full_like(s, 0.1 + 0.4 * share))


def test_what_the_others_weigh_is_in_the_rounds_rows() -> None:
    run = Case("fedamp").run()
    now = run.step()
    assert 0.05 < now.report["off_diagonal"] < 0.5
    assert Row(1, "(server)", "run", "off_diagonal", now.report["off_diagonal"]) in list(rows_of(now))
    assert run.method.common(run.server) is None and set(now.scores) <= {"personal"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": 1.5}, "alpha must be above 0 and at most 1, got 1.5: .*own weight would be negative"),
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"attention": "absolute", "alpha": 0.5, "sigma": 1.0, "clients": 5}, r"alpha must be .* at most 0\.25"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"mu": -1.0}, "mu must be 0 or positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.{text}"):
        FedAMP(build.program(guide="delta"), **options)
