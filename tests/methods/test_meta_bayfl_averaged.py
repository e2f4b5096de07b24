"""Meta-BayFL with candidates that are compared after averaging: its lines, its choice, and when they meet."""

from __future__ import annotations

import math

import pytest
import torch
from support import build
from support.compare import close, same

from pyrofl.candidates import losses
from pyrofl.method import Cohort
from pyrofl.methods import BayFL, MetaBayFLAveraged
from pyrofl.optim import SGD, Adam
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import Tree, only, pack, part, stack, unstack

CANDIDATES = (SGD(1e-6), SGD(0.3), SGD(0.05))
DATA = build.rows(20)


@pytest.fixture(scope="module")
def program() -> Program:
    return build.program()


def averaged(program: Program, **options: object) -> MetaBayFLAveraged:
    return MetaBayFLAveraged(program, **{"optimizers": CANDIDATES, "epochs": 2, "size": 4, **options})  # type: ignore[arg-type]


def said(method: MetaBayFLAveraged, server: Tree, losses: list[float]) -> Tree:
    """A message of the server's own lines with these losses."""
    return {**pack(lines=part(server, "lines")), "losses": torch.tensor(losses)}


def apart(server: Tree) -> Tree:
    """The same server with lines that differ: line i is i further."""
    lines = {k: v + torch.arange(len(v)).reshape(-1, *[1] * (v.dim() - 1)) for k, v in part(server, "lines").items()}
    return {**server, **pack(lines=lines)}


@pytest.mark.parametrize("optimizer", [SGD(0.05), Adam(0.03)], ids=["sgd", "adam"])
def test_with_one_candidate_it_is_bayfl_on_the_training_part(program: Program, optimizer: SGD | Adam) -> None:
    method = averaged(program, optimizers=(optimizer,), holdout=0.25)
    server = method.init(root(4))
    plain = BayFL(program, optimizer, epochs=2, size=4)
    train, _ = DATA.split(0.25)
    up = method.local(method.down(server, 0), {}, DATA, root(4)).up
    close(
        unstack(part(up, "lines"), 0), plain.local(only(server, program.theta0), {}, train, root(4)).up, tolerance=1e-12
    )


def test_every_line_trains_from_its_own_average_and_is_scored_after_it(program: Program) -> None:
    method = averaged(program)
    down = method.down(apart(method.init(root(4))), 0)
    reply = method.local(down, {}, DATA, root(4))
    train, held = DATA.split(0.2)
    for i, o in enumerate(CANDIDATES):
        plain = BayFL(program, o, epochs=2, size=4)
        y = plain.fit(program.parts, unstack(part(down, "lines"), i), train, root(4))[0]
        close(unstack(part(reply.up, "lines"), i), y, tolerance=1e-9)
        alone = losses(program, stack([y]), held, DATA.n, fold(root(4), "score"), draws=4)
        assert float(reply.up["losses"][i]) == pytest.approx(float(alone[0]), rel=1e-6)


def test_the_server_takes_the_line_with_the_lowest_mean_loss_of_the_clients(program: Program) -> None:
    method = averaged(program, exchange=4)
    server = apart(method.init(root(4)))
    # line 1 is the best of neither client, and the best of both together
    ups = stack([said(method, server, [0.1, 0.5, 1.5]), said(method, server, [1.5, 0.5, 0.1])])
    cohort = Cohort(torch.arange(2), torch.tensor([30, 10]), root(0), 1)
    new = method.aggregate(server, ups, cohort)
    assert int(new["best"]) == 1
    close(only(new, program.theta0), unstack(part(server, "lines"), 1), tolerance=1e-6)
    close(part(new, "lines"), part(server, "lines"), tolerance=1e-6)  # no exchange in round 1
    met = method.aggregate(server, ups, Cohort(cohort.ids, cohort.n, root(0), 4))
    for i in range(3):
        same(unstack(part(met, "lines"), i), only(met, program.theta0))


def test_a_line_that_diverges_stays_where_it_was_and_is_never_chosen(program: Program) -> None:
    method = averaged(program, optimizers=(SGD(1e30), SGD(0.05)))
    server = method.init(root(4))
    reply = method.local(method.down(server, 0), {}, DATA, root(4))
    same(unstack(part(reply.up, "lines"), 0), unstack(part(server, "lines"), 0))
    assert all(bool(torch.isfinite(v).all()) for v in reply.up.values())
    ups = stack([reply.up])
    new = method.aggregate(server, ups, Cohort(torch.arange(1), torch.tensor([20]), root(0), 1))
    assert int(new["best"]) == 1


def test_the_personal_model_is_the_chosen_line_after_local_steps_on_all_rows_with_its_rate(program: Program) -> None:
    method = averaged(program)
    down = {**method.down(apart(method.init(root(4))), 0), "best": torch.tensor(2)}
    own = method.personal(down, {}, DATA, root(5))
    plain = BayFL(program, CANDIDATES[2], epochs=2, size=4)
    close(own, plain.train(unstack(part(down, "lines"), 2), DATA, root(5))[0], tolerance=1e-9)
    same(averaged(program, finetune=False).personal(down, {}, DATA, root(5)), unstack(part(down, "lines"), 2))


def test_what_it_sends_is_a_model_for_each_candidate(program: Program) -> None:
    method = averaged(program)
    down = method.down(method.init(root(4)), 0)
    up = method.local(down, {}, DATA, root(4)).up
    like = method.message(down)
    assert {k: (v.shape, v.dtype) for k, v in up.items()} == {k: (v.shape, v.dtype) for k, v in like.items()}
    size = lambda t: sum(math.prod(v.shape) for v in t.values())
    assert size(up) == 3 * size(program.theta0) + 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizers": ()}, "method.optimizers is empty"),
        ({"holdout": 0.0}, "method.holdout must be between 0 and 1"),
        ({"exchange": 0}, "method.exchange must be at least 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(program: Program, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        averaged(program, **options)
