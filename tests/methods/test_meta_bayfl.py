"""Meta-BayFL: how a client chooses its optimizer, and what it never looks at."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import pytest
import torch
from support import build
from support.compare import close, same

from pyrofl.data import Batch, Data
from pyrofl.engines import Job, Sequential, Vectorised
from pyrofl.methods import BayFL, MetaBayFL
from pyrofl.optim import SGD, Adam
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.tree import Tree

CANDIDATES = (SGD(1e-6), SGD(0.3), SGD(0.05))


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program()


@pytest.fixture(scope="module")
def start(program: Program) -> Tree:
    return program.init(root(1))


DATA = build.rows(20)


def held_out_loss(program: Program, theta: Tree, held: Data, n: int, key: torch.Tensor, *, kl: bool) -> float:
    """The score of one candidate, written down once more: a mean over four common draws."""
    batch = Batch.of(held.x, held.y, n)
    parts = [program.parts(theta, batch, fold(key, "score", s)) for s in range(4)]
    return sum(float(loss if kl else scalars["nll"]) for loss, scalars in parts) / 4


@pytest.mark.parametrize("score", ["nll", "elbo"])
def test_the_choice_is_the_lowest_held_out_loss_after_the_trial(program: Program, start: Tree, score: Any) -> None:
    method = MetaBayFL(program, optimizers=CANDIDATES, epochs=2, size=4, trial_epochs=2, score=score)
    key = root(3)
    reply = method.local(start, {}, DATA, key)
    train, held = DATA.split(0.2)
    losses = []
    for i, o in enumerate(CANDIDATES):
        trial = BayFL(program, o, epochs=2, size=4).fit(program.parts, start, train, fold(key, "try"))[0]
        losses.append(held_out_loss(program, trial, Data(held.x[:4], held.y[:4], held.n), 20, key, kl=score == "elbo"))
        assert float(reply.info[f"trial{i}"]) == pytest.approx(losses[i], rel=1e-6), f"candidate {i}"
    best = losses.index(min(losses))
    assert int(reply.info["choice"]) == best
    assert float(reply.info["rate"]) == CANDIDATES[best].lr
    # restart: training goes on from the global posterior, with the chosen optimizer
    plain = BayFL(program, CANDIDATES[best], epochs=2, size=4)
    close(reply.up, plain.local(start, {}, train, key).up, tolerance=1e-9)


def test_equal_candidates_get_the_same_batches_and_noise(program: Program, start: Tree) -> None:
    method = MetaBayFL(program, optimizers=(SGD(0.1), Adam(0.1), SGD(0.1)), size=4)
    info = method.local(start, {}, DATA, root(3)).info
    assert float(info["trial0"]) == pytest.approx(float(info["trial2"]), rel=1e-12)
    assert float(info["trial0"]) != pytest.approx(float(info["trial1"]), rel=1e-6)


def test_the_score_needs_no_candidate_but_its_own(program: Program, start: Tree) -> None:
    all_three = MetaBayFL(program, optimizers=CANDIDATES, size=4).local(start, {}, DATA, root(3)).info
    alone = MetaBayFL(program, optimizers=CANDIDATES[1:2], size=4).local(start, {}, DATA, root(3)).info
    assert float(alone["trial0"]) == pytest.approx(float(all_three["trial1"]), rel=1e-12)


def test_without_restart_training_goes_on_from_the_winner(program: Program, start: Tree) -> None:
    method = MetaBayFL(program, optimizers=CANDIDATES[1:2], epochs=1, size=4, restart=False)
    key = root(3)
    train, _ = DATA.split(0.2)
    plain = BayFL(program, CANDIDATES[1], epochs=1, size=4)
    tried = plain.fit(program.parts, start, train, fold(key, "try"))[0]
    close(method.local(start, {}, DATA, key).up, plain.local(tried, {}, train, key).up, tolerance=1e-6)


def test_a_choice_every_epoch_is_a_round_of_one_epoch_each(program: Program, start: Tree) -> None:
    key, train = root(3), DATA.split(0.2)[0]
    method = MetaBayFL(program, optimizers=CANDIDATES, epochs=2.5, size=4, every="epoch")
    once = dataclasses.replace(method, every="round")
    w, choices = start, []
    for t, epochs in enumerate((1.0, 1.0, 0.5)):
        reply = dataclasses.replace(once, epochs=epochs).local(w, {}, DATA, fold(key, t) if t else key)
        choices.append(int(reply.info["choice"]))
        w = reply.up
    reply = method.local(start, {}, DATA, key)
    same(reply.up, w)
    assert int(reply.info["choice"]) == choices[-1]
    assert train.rows == 16


def test_test_rows_are_out_of_reach(program: Program) -> None:
    for hook in ("init", "down", "join", "local", "aggregate", "personal"):
        assert "test" not in inspect.signature(getattr(MetaBayFL, hook)).parameters
    federation = build.federation((12, 9))
    poisoned = dataclasses.replace(
        federation,
        clients=tuple(
            dataclasses.replace(c, test=c.test._replace(x=c.test.x * 1e6, y=2 - c.test.y)) for c in federation.clients
        ),
    )
    method = MetaBayFL(program, optimizers=CANDIDATES, size=4)
    runs = [Run(method, f, engine=Sequential(), rounds=2, seed=1) for f in (federation, poisoned)]
    infos = [[now.info for now in run] for run in runs]
    same(runs[0].server, runs[1].server)
    assert infos[0] == infos[1]


def test_held_out_rows_do_not_train(program: Program, start: Tree) -> None:
    method = MetaBayFL(program, optimizers=CANDIDATES[1:2], epochs=2, size=4)
    changed = DATA._replace(x=torch.cat([DATA.x[:16], DATA.x[16:] + 5]))
    close(method.local(start, {}, DATA, root(3)).up, method.local(start, {}, changed, root(3)).up, tolerance=1e-12)
    both = [float(method.local(start, {}, d, root(3)).info["trial0"]) for d in (DATA, changed)]
    assert both[0] != pytest.approx(both[1], rel=1e-3), "they do score"


def test_mixed_optimizers_choose_alike_on_both_engines(program: Program, start: Tree) -> None:
    mixed = (SGD(1e-6), Adam(0.05), SGD(0.2, momentum=0.9), Adam(1e-6))
    method = MetaBayFL(program, optimizers=mixed, epochs=2, size=4, every="epoch")
    jobs = [Job(i, start, {}, build.rows(12, seed=i), fold(root(5), i)) for i in range(4)]
    engine = Vectorised()
    for i, reply in engine.map(method.local, jobs):
        alone = method.local(*jobs[i][1:])
        close(reply.up, alone.up, f"client {i}")
        close(reply.info, alone.info, f"client {i}")
    assert engine.fallback is None


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=lambda e: e.name)
def test_a_candidate_that_diverges_is_not_chosen(program: Program, start: Tree, engine: Any) -> None:
    method = MetaBayFL(program, optimizers=(SGD(1e30), SGD(0.05)), size=4, trial_epochs=3)
    ((_, reply),) = list(engine.map(method.local, [Job(0, start, {}, DATA, root(3))]))
    assert int(reply.info["choice"]) == 1
    assert float(reply.info["trial0"]) == math.inf
    close(reply.up, MetaBayFL(program, optimizers=(SGD(0.05),), size=4).local(start, {}, DATA, root(3)).up)


def test_a_client_of_one_row_trains_on_it(program: Program, start: Tree) -> None:
    reply = MetaBayFL(program, optimizers=CANDIDATES, size=4).local(start, {}, build.rows(1), root(3))
    assert int(reply.info["choice"]) == 0, "nothing is held out, so nothing speaks for another candidate"
    assert float(reply.info["steps"]) == 1
    assert any(not torch.equal(reply.up[k], start[k]) for k in start)


def test_a_client_predicts_with_its_model_after_its_local_steps(program: Program, start: Tree) -> None:
    method = MetaBayFL(program, optimizers=CANDIDATES, size=4)
    same(method.personal(start, {}, DATA, root(3)), method.local(start, {}, DATA, root(3)).up)
    same(dataclasses.replace(method, finetune=False).personal(start, {}, DATA, root(3)), start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizers": ()}, "method.optimizers is empty"),
        ({"holdout": 0.0}, "method.holdout must be between 0 and 1, got 0.0"),
        ({"holdout": 1.0}, "method.holdout must be between 0 and 1"),
        ({"trial_epochs": 0.0}, "method.trial_epochs must be positive"),
        ({"score_draws": 0}, "method.score_draws must be at least 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(program: Program, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetaBayFL(program, **arguments)


def test_arguments_without_effect_do_not_exist(program: Program) -> None:
    for name in ("optimizer", "schedule", "rounds"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            MetaBayFL(program, **{name: 1})
