"""Per-FedAvg: both orders on a quadratic loss, the steps of the personal model, and which rows they see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, distance, same
from support.quadratic import gradient, hessian, lines, regression, vector
from torch import Tensor

from pyrofl.data import Data
from pyrofl.methods import FedAvg, PerFedAvg
from pyrofl.optim import SGD
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.tree import Tree

ALPHA, BETA = 0.05, 0.02


def one_step(program: Program, data: Data, **options: Any) -> tuple[Tensor, Tensor]:
    """(w, w after one local step on all rows), (3,)."""
    method = PerFedAvg(program, SGD(BETA), size=data.rows, alpha=ALPHA, **options)
    down = method.init(root(1))
    return vector(program, down), vector(program, method.local(down, {}, data, root(2)).up)


def outer_gradient(data: Data, w: Tensor) -> Tensor:
    """d = grad f(w - alpha grad f(w))."""
    return gradient(data, w - ALPHA * gradient(data, w))


def test_the_first_order_step_on_a_quadratic_loss() -> None:
    program, data = regression(), lines(12)
    w, new = one_step(program, data)
    torch.testing.assert_close(new, w - BETA * outer_gradient(data, w), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 1.0])
def test_the_hessian_free_step_on_a_quadratic_loss_is_exact(delta: float) -> None:
    program, data = regression(), lines(12)
    w, new = one_step(program, data, order="hessian_free", delta=delta)
    d = outer_gradient(data, w)
    exact = d - ALPHA * hessian(data) @ d
    torch.testing.assert_close(new, w - BETA * exact, rtol=1e-9, atol=1e-9)
    # which is the gradient of what is minimised, f(w - alpha grad f(w))
    b = w.clone().requires_grad_()
    at = b - ALPHA * gradient(data, b)
    residual = torch.cat([data.x, torch.ones(12, 1, dtype=torch.float64)], 1) @ at - data.y
    (meta,) = torch.autograd.grad(residual.square().mean() / (2 * 0.25), b)
    torch.testing.assert_close(exact, meta, rtol=1e-10, atol=1e-10)


def test_the_orders_differ_by_alpha_times_the_hessian_times_d() -> None:
    program, data = regression(), lines(12)
    w, first = one_step(program, data)
    _, free = one_step(program, data, order="hessian_free")
    difference = BETA * ALPHA * hessian(data) @ outer_gradient(data, w)
    torch.testing.assert_close(free - first, difference, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_the_difference_is_over_a_known_distance_however_long_the_gradient_is(size: float) -> None:
    def product(dtype: torch.dtype, delta: float) -> Tree:
        program = build.program(guide="delta", dtype=dtype)
        w = {k: v.to(dtype) for k, v in build.program(guide="delta").init(root(1)).items()}
        d = {k: torch.full_like(v, size) for k, v in w.items()}
        method = PerFedAvg(program, size=12, delta=delta)
        h = method.hessian_times(d, w, build.rows(12, dtype=dtype), root(3))
        return {k: v.double() / size for k, v in h.items()}

    close(product(torch.float32, 1e-3), product(torch.float64, 1e-4), tolerance=3e-3)


def test_a_tiny_alpha_is_fedavg() -> None:
    program, data, key = build.program(guide="delta"), build.rows(9), root(2)
    down = program.init(root(1))
    expected = FedAvg(program, SGD(0.1), size=4, epochs=2).local(down, {}, data, key).up
    for order in ("first", "hessian_free"):
        method = PerFedAvg(program, SGD(0.1), size=4, epochs=2, alpha=1e-13, order=order)  # type: ignore[arg-type]
        close(method.local(down, {}, data, key).up, expected, tolerance=1e-10)


def test_the_logged_loss_is_that_after_the_inner_step() -> None:
    program, data = regression(), lines(12)
    method = PerFedAvg(program, SGD(BETA), size=12, alpha=ALPHA)
    down = method.init(root(1))
    info = method.local(down, {}, data, root(2)).info
    ahead = method.step(down, data, root(3))  # on all rows, whatever the key
    assert float(info["loss"]) == pytest.approx(-float(program.log_likelihood(ahead, data)), rel=1e-12)


@pytest.mark.parametrize("adapt", [1, 3])
def test_the_personal_model_is_the_start_after_alpha_steps_on_training_rows(adapt: int) -> None:
    program, data = regression(), lines(12)
    method = PerFedAvg(program, SGD(0.7), size=12, alpha=ALPHA, adapt=adapt)
    down = method.init(root(1))
    b = vector(program, down)
    for _ in range(adapt):
        b = b - ALPHA * gradient(data, b)
    got = vector(program, method.personal(down, {}, data, root(5)))
    torch.testing.assert_close(got, b, rtol=1e-12, atol=1e-12)


def test_a_client_without_rows_predicts_with_the_start() -> None:
    program = build.program(batch_norm=True)
    method = PerFedAvg(program)
    down = method.init(root(1))
    same(method.personal(down, {}, build.rows(1)._replace(n=torch.tensor(0)), root(2)), down)


def test_the_three_batches_of_a_step_are_drawn_apart_from_each_other() -> None:
    program, data, seen = build.program(guide="delta", prior="flat"), build.rows(40), []
    original = program.parts

    def record(theta: Tree, batch: Any, key: Tensor) -> Any:
        seen.append(frozenset(map(tuple, batch.x[batch.live].tolist())))
        return original(theta, batch, key)

    program.parts = record  # type: ignore[method-assign, assignment]
    PerFedAvg(program, size=4, epochs=0.1, order="hessian_free").local(program.init(root(1)), {}, data, root(2))
    inner, outer, ahead, behind = seen
    assert len({inner, outer, ahead}) == 3 and ahead == behind
    assert all(len(rows) == 4 for rows in seen)


def test_the_server_averages_without_weights() -> None:
    run = Case("per_fedavg").run(rounds=1)
    ids = [i for i in range(5) if run.train[i].rows]
    start, key = run.server, run.key
    ups = [run.method.local(start, {}, run.train[i], fold(key, "round", 1, "client", i)).up for i in ids]
    run.step()
    close(run.server, {k: torch.stack([u[k] for u in ups]).mean(0) for k in start}, tolerance=1e-12)
    assert distance(run.personal(0), run.server) > 1e-4


@pytest.mark.parametrize(("name", "value"), [("alpha", 0.0), ("delta", float("inf")), ("adapt", 0)])
def test_settings_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"method\.{name} must be"):
        PerFedAvg(build.program(guide="delta"), **{name: value})
