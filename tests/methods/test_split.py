"""FedPer, FedRep, FedBABU and LG-FedAvg: which part stays, which is trained, and that what is frozen does not move."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from torch.func import grad

from models.logistic import Logistic
from pyrofl.bayesian import Bayesian
from pyrofl.data import Batch, Data
from pyrofl.guides import GUIDES
from pyrofl.method import Cohort
from pyrofl.methods import METHODS, BayFL, FedAvg, FedBABU, FedPer, FedProx, FedRep, LGFedAvg
from pyrofl.methods.partial import Partial
from pyrofl.optim import SGD
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Participation
from pyrofl.tree import Tree, mean, only, stack, without

KEEPS = {"fedper": "net.head.", "fedrep": "net.head.", "fedbabu": "net.head.", "lg_fedavg": "net.body."}
ROUGH = SGD(0.1, momentum=0.9, decay=0.3)  # momentum and decay: both move what is only told that its gradient is 0
each_method = pytest.mark.parametrize("name", KEEPS)
each_guide = pytest.mark.parametrize("guide", ["delta", "normal"])


def paths(method: Partial, tree: Tree) -> set[str]:
    return {method.program.path(k) for k in tree}


@each_method
@each_guide
def test_the_right_part_stays(name: str, guide: str) -> None:
    """The head at FedPer, FedRep and FedBABU; the body, and not the head, at LG-FedAvg."""
    method: Any = Case(name, network={"guide": guide, "prior": "gaussian"}).build()
    server = method.init(root(1))
    reply = method.local(server, method.join(server), build.rows(9), root(2))
    kept, sent = paths(method, reply.own), paths(method, reply.up)
    assert kept and all(p.startswith(KEEPS[name]) for p in kept)
    assert sent and not any(p.startswith(KEEPS[name]) for p in sent)
    assert kept | sent == {method.program.path(k) for k in method.program.theta0}
    assert len(reply.own) == len(kept) * (2 if guide == "normal" else 1), "mean and scale stay together"


@each_method
def test_after_a_round_shared_tensors_are_the_mean_and_private_ones_untouched(name: str) -> None:
    run = Case(name, {"epochs": 1.0}, {"batch_norm": True}).run(rounds=1)
    start, method = run.server, run.method
    key = fold(run.key, "round", 1)
    ids = [i for i in range(5) if run.train[i].rows]
    replies = {i: method.local(start, method.join(start), run.train[i], fold(key, "client", i)) for i in ids}
    run.step()
    n = torch.tensor([run.train[i].rows for i in ids])
    weights = n if name == "fedper" else torch.ones_like(n)
    close(run.server, mean(stack([r.up for r in replies.values()]), weights), tolerance=1e-12)
    for i, reply in replies.items():
        same(run.states.get(i) or {}, reply.own)


@each_method
def test_the_clients_part_starts_from_the_seed_alike_at_all(name: str) -> None:
    program = build.program(guide="delta")
    one, twin, other = (METHODS[name](program, seed=s) for s in (1, 1, 2))  # type: ignore[call-arg]
    same(one.join({}), twin.join({}))
    assert distance(one.join({}), other.join({})) > 0.01


def test_fedper_trains_both_parts_together_and_goes_on_from_its_head() -> None:
    run = Case("fedper").run(rounds=2)
    method, server, own = run.method, run.server, run.method.join(run.server)
    plain = FedAvg(method.program, epochs=2.0, size=4)
    for k in (1, 2):
        y = plain.local({**server, **own}, {}, run.train[0], fold(run.key, "round", k, "client", 0)).up
        run.step()
        own, server = only(y, own), run.server
        same(run.states.get(0) or {}, own)


def by_hand(program: Program, theta: Tree, names: frozenset[str], data: Data, o: SGD, steps: int) -> Tree:
    """Full-batch steps on `names` alone: m <- momentum m + g + decay w, w <- w - lr m."""
    w, m = only(theta, names), {k: torch.zeros_like(theta[k]) for k in names}
    for _ in range(steps):
        g = grad(lambda t: program.loss({**theta, **t}, Batch.of(data.x, data.y), root(0)))(w)
        m = {k: o.momentum * m[k] + g[k] + o.decay * w[k] for k in names}
        w = {k: w[k] - o.lr * m[k] for k in names}
    return {**theta, **w}


def test_fedrep_trains_the_head_then_the_body_each_with_the_other_frozen() -> None:
    program, data = build.program(guide="delta"), build.rows(10)
    method = FedRep(program, ROUGH, size=10, head_epochs=3, epochs=2)
    down = method.init(root(1))
    own = method.join(down)
    reply = method.local(down, own, data, root(2))
    head, body = method.part("head"), method.part("body")
    theta = by_hand(program, {**down, **own}, head, data, ROUGH, 3)
    theta = by_hand(program, theta, body, data, ROUGH, 2)
    close({**reply.up, **reply.own}, theta, tolerance=1e-10)
    assert float(reply.info["steps"]) == 5


def test_fedrep_predicts_with_a_head_fine_tuned_to_the_shared_body() -> None:
    program, data = build.program(guide="delta"), build.rows(10)
    method = FedRep(program, ROUGH, size=10, finetune_epochs=4)
    down = method.init(root(1))
    own = method.join(down)
    theta = method.personal(down, own, data, root(2))
    same(only(theta, down), down)
    close(theta, by_hand(program, {**down, **own}, method.part("head"), data, ROUGH, 4), tolerance=1e-10)
    same(FedRep(program, ROUGH, finetune=False).personal(down, own, data, root(2)), {**down, **own})


def test_a_bayesian_fedrep_keeps_posteriors_of_heads_and_pools_the_bodies() -> None:
    program = build.program(guide="normal")
    method = FedRep(program, SGD(0.1), size=4, head_epochs=1, weighting="rows", pooling="mixture")
    server = method.init(root(1))
    replies = [method.local(server, method.join(server), build.rows(n), root(n)) for n in (9, 6)]
    cohort = Cohort(torch.arange(2), torch.tensor([9, 6]), root(0), 1)
    new = method.aggregate(server, stack([r.up for r in replies]), cohort)
    site = "net.body.0.weight"
    loc, scale = (torch.stack(v) for v in zip(*(program.posterior({**r.up, **r.own})[site] for r in replies)))
    w = torch.tensor([0.6, 0.4], dtype=torch.float64).reshape(2, 1, 1)
    middle = (w * loc).sum(0)
    spread = (w * (scale.square() + (loc - middle).square())).sum(0).sqrt()
    m, s = program.posterior({**new, **replies[0].own})[site]
    torch.testing.assert_close(m, middle)
    torch.testing.assert_close(s, spread)
    heads = [program.posterior({**new, **r.own})["net.head.weight"] for r in replies]
    assert all(not torch.allclose(a, b) for a, b in zip(*heads)), "means and scales of the heads differ"


@each_guide
def test_the_head_of_fedbabu_is_the_same_everywhere_and_never_moves(guide: str) -> None:
    case = Case("fedbabu", {"optimizer": ROUGH}, {"guide": guide, "prior": "gaussian"})
    run = case.run(rounds=3)
    head = run.method.join(run.server)
    body = run.server
    list(run)
    assert distance(run.server, body) > 0.01
    for i in range(4):
        same(run.states.get(i) or {}, head)
    same(run.method.common(run.server) or {}, {**run.server, **head})
    assert any(bool(v.any()) for k, v in head.items() if "weight" in k), "a random head, not one of zeros"


@pytest.mark.parametrize(("part", "moves"), [("all", {"head", "body"}), ("head", {"head"}), ("body", {"body"})])
def test_fedbabu_predicts_with_a_fine_tuned_copy(part: Any, moves: set[str]) -> None:
    program, data = build.program(guide="delta"), build.rows(10)
    method = FedBABU(program, ROUGH, size=10, finetune_epochs=3, finetune_part=part)
    down = method.init(root(1))
    own = method.join(down)
    start = {**down, **own}
    theta = method.personal(down, own, data, root(2))
    moved = {program.path(k).split(".")[1] for k in theta if not torch.equal(theta[k], start[k])}
    assert moved == moves
    close(theta, by_hand(program, start, method.part(part), data, ROUGH, 3), tolerance=1e-10)
    same(FedBABU(program, finetune=False).personal(down, own, data, root(2)), method.common(down) or {})


def test_only_fedbabu_has_a_global_model() -> None:
    for name in KEEPS:
        *_, last = list(Case(name).run(rounds=1))
        assert set(last.scores) == ({"personal", "global"} if name == "fedbabu" else {"personal"})


@each_method
def test_a_client_that_never_took_part_has_a_model(name: str) -> None:
    run = Case(name, {"finetune": False}).run(rounds=1, cohort=Participation(clients=1))
    now = run.step()
    absent = next(i for i in range(5) if run.names[i] not in now.clients)
    same(run.personal(absent), {**run.server, **run.method.join(run.server)})


@pytest.mark.parametrize("kind", [FedPer, FedRep, FedBABU])
def test_latent_scales_of_the_prior_belong_to_the_body(kind: type[FedPer]) -> None:
    program = build.program(guide="normal", prior="hierarchical")
    method = kind(program)
    scales = {k for k in program.trainable if ".prior." in k}
    assert scales and scales <= method.init(root(1)).keys() and scales <= method.part("body")


def logistic() -> Program:
    with torch.random.fork_rng(devices=[]):
        net = Logistic((build.FEATURES,), build.CLASSES).double()
    x, y, _ = build.rows(2)
    return Program(Bayesian(net, PRIORS["flat"]()), x, y, guide=GUIDES["delta"])


def test_networks_without_two_parts_are_refused() -> None:
    for kind in (FedPer, FedRep, FedBABU):
        with pytest.raises(ValueError, match=f"{kind.__name__} would keep the whole network at the clients"):
            kind(logistic())
    with pytest.raises(ValueError, match=r"names\('body'\): the network has no attribute \.body with parameters"):
        LGFedAvg(logistic())


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_budgets_that_make_no_sense_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"method\.head_epochs must be positive"):
        FedRep(build.program(guide="delta"), head_epochs=value)
    with pytest.raises(ValueError, match=r"method\.finetune_epochs must be positive"):
        FedAvg(build.program(guide="delta"), finetune_epochs=value)


@pytest.mark.parametrize("kind", [FedAvg, FedProx, BayFL])
def test_fine_tuning_is_one_more_local_update_of_its_own_length(kind: type[FedAvg]) -> None:
    program, data = build.program(guide="normal"), build.rows(10)
    down = program.init(root(1))
    tuned = kind(program, epochs=1, size=4, finetune=True, finetune_epochs=3.0)
    longer = kind(program, epochs=3, size=4)
    same(tuned.personal(down, {}, data, root(2)), longer.local(down, {}, data, root(2)).up)
    same(
        kind(program, epochs=3, size=4, finetune=True).personal(down, {}, data, root(2)),
        tuned.personal(down, {}, data, root(2)),
    )
    assert distance(tuned.local(down, {}, data, root(2)).up, longer.local(down, {}, data, root(2)).up) > 1e-4


@pytest.mark.parametrize("part", ["head", "body"])
def test_fine_tuning_of_a_part_leaves_the_other_as_it_is(part: Any) -> None:
    program, data = build.program(guide="delta"), build.rows(10)
    method = FedAvg(program, ROUGH, epochs=3, size=10, finetune=True, finetune_part=part)
    down = program.init(root(1))
    theta = method.personal(down, {}, data, root(2))
    same(without(theta, method.part(part)), without(down, method.part(part)))
    close(theta, by_hand(program, down, method.part(part), data, ROUGH, 3), tolerance=1e-10)


def test_a_part_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="nothing to train in the network's 'body' alone"):
        FedAvg(logistic(), finetune_part="body")
    assert FedAvg(logistic(), finetune=True, finetune_part="head").part("head") == logistic().trainable


@pytest.mark.parametrize("given", [{"finetune_epochs": 2.0}, {"finetune_part": "head"}], ids=lambda g: next(iter(g)))
def test_how_to_fine_tune_without_fine_tuning_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=rf"method\.{next(iter(given))} has an effect only with method\.finetune = true"
    ):
        FedAvg(logistic(), **given)
    FedAvg(logistic(), finetune=True, **given)
    if "finetune_epochs" in given:
        with pytest.raises(ValueError, match="has an effect only"):
            FedRep(build.program(), finetune=False, **given)
