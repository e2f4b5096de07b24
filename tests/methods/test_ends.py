"""The ends of the scale: clients alone, all rows pooled, and dropout as a posterior."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same

from pyrofl.methods import Alone, MCDropout, Pooled
from pyrofl.optim import SGD
from pyrofl.random import fold, root


def test_alone_is_training_on_ones_own_rows_and_nothing_travels() -> None:
    run = Case("alone").run(rounds=2)
    method, own = run.method, run.method.join({})
    rounds = list(run)
    assert all(now.bytes_up == now.bytes_down == 0 for now in rounds)
    assert run.server == {}
    for k in (1, 2):
        own = method.local({}, own, run.train[2], fold(run.key, "round", k, "client", 2)).own
    same(run.states.get(2) or {}, own)


def test_alone_starts_every_client_at_one_model_of_the_runs_seed() -> None:
    program = build.program()
    one, other = Alone(program, seed=1), Alone(program, seed=2)
    same(one.join({}), one.join({}))
    assert not torch.equal(
        one.join({})["guide.locs.net.head.weight_unconstrained"],
        other.join({})["guide.locs.net.head.weight_unconstrained"],
    )


def test_alone_without_rows_predicts_with_the_prior() -> None:
    program = build.program()
    method = Alone(program)
    empty = build.rows(1)._replace(n=torch.tensor(0))
    theta = method.personal({}, method.join({}), empty, root(1))
    for loc, scale in program.posterior(theta).values():
        torch.testing.assert_close(loc, torch.zeros_like(loc))
        torch.testing.assert_close(scale, torch.ones_like(scale))
    same(method.personal({}, method.join({}), build.rows(3), root(1)), method.join({}))


def test_pooled_shows_one_client_and_only_the_global_model() -> None:
    run = Case("pooled").run(rounds=1)
    now = run.step()
    assert now.clients == ["(all rows)"]
    assert now.info["(all rows)"]["steps"] == 2 * -(-sum(build.RAGGED) // 4)
    assert set(now.scores) == {"global"}
    assert {"site0", "site4"} <= set(now.scores["global"])


def test_dropout_stays_on_in_predictions() -> None:
    program = build.program(guide="delta", dropout=0.5)
    method = MCDropout(program)
    theta, x = program.init(root(1)), build.rows(6).x
    draws = [method.predict(theta, x, root(s)) for s in (1, 2, 1)]
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    close({"": program.predict(theta, x, root(1))}, {"": program.predict(theta, x, root(2))})


def test_mc_dropout_without_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a network with Dropout layers: set model\.dropout"):
        MCDropout(build.program(guide="delta"))


def test_arguments_without_effect_do_not_exist() -> None:
    program = build.program()
    for method, names in (
        (Alone, ("weighting", "pooling", "finetune")),
        (Pooled, ("weighting", "pooling", "finetune")),
    ):
        for name in names:
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
                method(program, SGD(0.1), **{name: "scale"})
