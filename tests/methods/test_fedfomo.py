"""FedFomo: its weights by hand, which rows and models they come from, and whose models the server sends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from support import build
from support.compare import close, same
from support.quadratic import lines, regression, tree, vector
from torch import Tensor

from pyrofl.data import Data
from pyrofl.method import Cohort
from pyrofl.methods import Alone, FedFomo
from pyrofl.optim import SGD
from pyrofl.random import fold, root
from pyrofl.tree import Tree, pack, part, stack, unstack

Z, MINE, OTHERS = [0.0, 0.0, 0.0], [0.3, -0.1, 0.2], [[0.9, -0.4, 0.3], [-2.0, 3.0, 1.0], [0.1, -0.9, 0.1]]
ROWS = Data.of(lines(12).x, lines(12).x @ torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.3 * lines(12).y)


def given(
    method: FedFomo, others: list[list[float]], *, z: list[float] = Z, mine: list[float] = MINE
) -> tuple[Tree, Tree]:
    """(down, own) of a client with these models."""
    theta = lambda b: tree(method.program, torch.tensor(b, dtype=torch.float64))
    known = torch.ones(len(others), dtype=torch.bool)
    return {**pack(other=stack([theta(b) for b in others])), "known": known}, {**theta(mine), **pack(before=theta(z))}


def held_loss(data: Data, b: list[float], holdout: float = 0.25) -> float:
    """Mean negative log-likelihood of the last rows, up to a constant."""
    n = round(data.rows * holdout)
    x, y = data.x[-n:], data.y[-n:]
    at = torch.tensor(b, dtype=torch.float64)
    return float((y - x @ at[:2] - at[2]).square().mean() / (2 * 0.25))


def ratios(data: Data, z: list[float], models: list[list[float]]) -> np.ndarray:
    return np.array([(held_loss(data, z) - held_loss(data, m)) / np.linalg.norm(np.subtract(m, z)) for m in models])


def test_weights_are_improvements_on_held_out_rows_for_each_unit_of_distance() -> None:
    program, data = regression(), ROWS
    method = FedFomo(program, holdout=0.25, clients=4, models=3)
    r = ratios(data, Z, [MINE, *OTHERS])
    assert (r > 0).any() and (r < 0).any()
    expected = np.maximum(r, 0) / np.maximum(r, 0).sum()
    z, w = method.mix(*given(method, OTHERS), data.split(0.25)[1])
    np.testing.assert_allclose(w, expected, rtol=1e-10)
    np.testing.assert_allclose(vector(program, z), expected @ np.array([MINE, *OTHERS]), rtol=1e-10)


def test_softmax_weights_by_hand() -> None:
    program, data = regression(), ROWS
    method = FedFomo(program, holdout=0.25, normalise="softmax", clients=4, models=3)
    e = np.exp(ratios(data, Z, [MINE, *OTHERS]))
    down, own = given(method, OTHERS)
    np.testing.assert_allclose(method.mix(down, own, data.split(0.25)[1])[1], e / e.sum(), rtol=1e-10)
    down["known"] = torch.tensor([True, False, True])
    w = method.mix(down, own, data.split(0.25)[1])[1]
    np.testing.assert_allclose(w, e * [1, 1, 0, 1] / (e * [1, 1, 0, 1]).sum(), rtol=1e-10)


def test_where_no_model_is_better_the_client_stays_where_it_began() -> None:
    program, data = regression(), ROWS
    method = FedFomo(program, holdout=0.25, clients=4, models=3)
    held = data.split(0.25)[1]
    x, y = held.x[: held.rows], held.y[: held.rows]
    best = torch.linalg.lstsq(torch.cat([x, torch.ones(3, 1, dtype=torch.float64)], 1), y).solution.tolist()
    z, w = method.mix(*given(method, OTHERS, z=best), held)
    assert w.tolist() == [0, 0, 0, 0]
    assert vector(program, z).tolist() == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("normalise", ["positive", "softmax"])
def test_identical_clients_change_nothing(normalise: Any) -> None:
    program, data = regression(), ROWS
    method = FedFomo(program, normalise=normalise, clients=4, models=3)
    z, w = method.mix(*given(method, [MINE] * 3, z=MINE), data.split(0.2)[1])
    assert bool(torch.isfinite(w).all()), "no distance is no division by zero"
    assert float(w.sum()) == pytest.approx(1.0 if normalise == "softmax" else 0.0)
    assert vector(program, z).tolist() == pytest.approx(MINE, rel=1e-12)


def test_the_clients_own_trained_model_is_always_among_the_candidates() -> None:
    program, data = regression(), ROWS
    method = FedFomo(program, holdout=0.25, clients=4, models=3)
    bad = [[9.0, 9.0, 9.0]] * 3
    assert held_loss(data, MINE) < held_loss(data, Z)
    z, w = method.mix(*given(method, bad), data.split(0.25)[1])
    assert w.tolist() == [1, 0, 0, 0] and vector(program, z).tolist() == pytest.approx(MINE)


def test_held_out_rows_choose_and_are_not_trained_on() -> None:
    program, data = build.program(guide="delta", prior="flat"), build.rows(10)
    method = FedFomo(program, SGD(0.1), size=4, epochs=2, clients=3, models=2)
    down = method.down(method.init(root(1)), 0)
    other = Data(data.x.clone(), data.y.clone(), data.n)
    other.x[8:], other.y[8:] = 100.0, 0
    one, two = (method.local(down, method.join(down), d, root(2)) for d in (data, other))
    same(one.up, two.up)
    train = data.split(0.2)[0]
    alone = Alone(program, SGD(0.1), size=4, epochs=2).local({}, program.init(root(1)), train, root(2)).own
    close({k: one.up[k] for k in alone}, alone, tolerance=1e-12)


def test_a_client_that_cannot_hold_out_a_row_goes_on_from_its_own_model() -> None:
    program, data = regression(), lines(1)
    method = FedFomo(program, clients=4, models=3)
    held = data.split(0.2)[1]
    assert held.rows == 0
    z, w = method.mix(*given(method, OTHERS), held)
    assert w.tolist() == [1, 0, 0, 0] and vector(program, z).tolist() == pytest.approx(MINE)


def test_a_round_ends_where_training_from_the_mixture_does_and_remembers_where_it_began() -> None:
    program, data = regression(), ROWS
    method = FedFomo(program, SGD(0.05), size=12, holdout=0.25, clients=4, models=3)
    down, own = given(method, OTHERS)
    train, held = data.split(0.25)
    z, w = method.mix(down, own, held)
    reply = method.local(down, own, data, root(2))
    same(part(reply.own, "before"), z)
    assert torch.equal(reply.up["weights"], w[1:]) and float(reply.info["own_weight"]) == float(w[0])
    expected = Alone(program, SGD(0.05), size=12).local({}, z, train, root(2)).own
    close({k: reply.own[k] for k in expected}, expected, tolerance=1e-12)
    same(method.personal(down, reply.own, data, root(3)), {k: reply.own[k] for k in expected})


def heard_of(method: FedFomo, weights: Tensor, *, server: Tree, round: int) -> Tree:
    """The server after all clients sent these weights (K, M)."""
    K = len(weights)
    ups = [{**method.program.init(root(100 * round + i)), "weights": weights[i]} for i in range(K)]
    cohort = Cohort(torch.arange(K), torch.full((K,), 5), fold(root(3), round), round)
    return method.aggregate(server, stack(ups), cohort)


def test_the_server_adds_up_weights_and_sends_the_models_of_the_highest_sums() -> None:
    method = FedFomo(build.program(guide="delta"), models=2, epsilon=0.0, clients=4)
    first = heard_of(method, torch.zeros(4, 2, dtype=torch.float64), server=method.init(root(1)), round=1)
    assert float(first["affinity"].abs().sum()) == 0
    w = torch.tensor([[0.7, 0.1], [0.0, 0.4], [0.2, 0.3], [1.0, 0.0]], dtype=torch.float64)
    second = heard_of(method, w, server=first, round=2)
    for i in range(4):
        got = dict(zip(first["picks"][i].tolist(), second["affinity"][i][first["picks"][i]].tolist(), strict=True))
        assert got == dict(zip(first["picks"][i].tolist(), w[i].tolist(), strict=True))
        assert float(second["affinity"][i].sum()) == pytest.approx(float(w[i].sum()))
    third = heard_of(method, w, server=second, round=3)
    for i in range(4):
        P = third["affinity"][i].clone()
        P[i] = -torch.inf
        assert P[third["picks"][i]].tolist() == P.sort(descending=True).values[:2].tolist()
        down = method.down(third, i)
        assert down["known"].tolist() == [True, True]
        for m, j in enumerate(third["picks"][i].tolist()):
            same(unstack(part(down, "other"), m), unstack(part(third, "model"), j))


def test_before_others_were_heard_of_places_hold_the_clients_own_model() -> None:
    method = FedFomo(build.program(guide="delta"), models=3, epsilon=1.0, clients=4)
    server = method.init(root(1))
    assert not method.down(server, 2)["known"].any()
    up = {**method.program.init(root(5)), "weights": torch.zeros(3, dtype=torch.float64)}
    two = Cohort(torch.tensor([0, 3]), torch.tensor([5, 5]), root(0), 1)
    server = method.aggregate(server, stack([up, up]), two)
    assert [sorted(row) for row in server["picks"].tolist()] == [[0, 0, 3], [0, 1, 3], [0, 2, 3], [0, 3, 3]]
    assert method.down(server, 0)["known"].sum() == 1


@pytest.mark.parametrize(("explore", "low", "high"), [(0.0, 1.0, 1.0), (1.0, 0.1, 0.3), (0.5, 0.5, 0.7)])
def test_a_place_goes_to_any_other_client_with_probability_epsilon(explore: float, low: float, high: float) -> None:
    method = FedFomo(build.program(guide="delta"), models=1, clients=6)
    affinity, heard = torch.zeros(6, 6, dtype=torch.float64), torch.ones(6, dtype=torch.bool)
    affinity[0, 3] = affinity[0, 0] = 1.0
    rows = [method.picks(affinity, heard, explore, root(s))[0].tolist() for s in range(400)]
    counts = Counter(j for row in rows for j in row)
    assert counts[0] == 0, "nobody is sent its own model while there are others"
    assert low <= counts[3] / 400 <= high
    if explore == 1.0:
        assert all(counts[j] > 40 for j in (1, 2, 4, 5))


def test_ties_are_broken_at_random_and_no_client_is_sent_twice() -> None:
    method = FedFomo(build.program(guide="delta"), models=3, clients=6)
    affinity, heard = torch.zeros(6, 6, dtype=torch.float64), torch.ones(6, dtype=torch.bool)
    rows = [method.picks(affinity, heard, 0.3, root(s)) for s in range(100)]
    counts = Counter(j for row in rows for j in row[0].tolist())
    assert all(len(set(line)) == 3 for row in rows for line in row.tolist())
    assert counts.keys() == {1, 2, 3, 4, 5} and min(counts.values()) > 35


def test_exploration_fades_with_the_rounds() -> None:
    method, seen = FedFomo(build.program(guide="delta"), clients=3, epsilon=0.3, decay=0.1), []
    original = method.picks
    object.__setattr__(method, "picks", lambda a, h, e, k: (seen.append(e), original(a, h, e, k))[1])
    server = method.init(root(1))
    for t in (1, 2, 3, 9):
        server = heard_of(method, torch.zeros(3, 2, dtype=torch.float64), server=server, round=t)
    assert seen == pytest.approx([0.2, 0.1, 0.0, 0.0])


def test_one_client_goes_on_from_its_own_model() -> None:
    program, data = build.program(guide="delta"), build.rows(9)
    method = FedFomo(program, size=4)
    server = method.init(root(1))
    down = method.down(server, 0)
    assert method.common(server) is None and down["known"].tolist() == [False]
    reply = method.local(down, method.join(down), data, root(2))
    later = method.aggregate(server, stack([reply.up]), Cohort(torch.tensor([0]), torch.tensor([9]), root(0), 1))
    same(unstack(part(method.down(later, 0), "other"), 0), {k: reply.up[k] for k in program.theta0})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"models": 0}, "models must be at least 1"),
        ({"holdout": 1.0}, "holdout must be between"),
        ({"epsilon": 1.1}, "epsilon must be from 0 to 1"),
        ({"decay": -0.1}, "decay must be at least 0"),
        ({"decay": float("inf")}, "decay must be at least 0 and finite"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.{text}"):
        FedFomo(build.program(guide="delta"), **options)
