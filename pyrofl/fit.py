"""The one local training loop: every method's stochastic gradient steps go through `fit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from .data import Batch, Data
from .optim import Optimizer, with_rate
from .program import Program
from .random import fold, is_mapped
from .together import Plan, Push, fit_together
from .tree import Ravel, Tree, only, where, without

Loss = Callable[[Tree, Batch, Tensor], "Tensor | tuple[Tensor, Tree]"]
After = Callable[[int, Tree, Batch, Tensor], Tree]
T = TypeVar("T")


class NonFinite(ArithmeticError):
    """A local step met a loss or gradient that is not finite."""

    def __init__(self, step: int, tensor: str | None, loss: float):
        where = "its gradient is finite" if tensor is None else f"the gradient of {tensor!r} is not finite"
        super().__init__(f"step {step}: the loss is {loss:g} and {where}")
        self.step, self.tensor = step, tensor


def fit(
    loss: Loss,
    theta: Tree,
    data: Data,
    key: Tensor,
    *,
    optimizer: Optimizer,
    epochs: float,
    size: int,
    names: Collection[str] | None = None,
    shift: Tree | None = None,
    pull: tuple[float, Tree] | None = None,
    after: After | None = None,
) -> tuple[Tree, Tree]:
    """theta <- optimizer(theta, grad loss + shift + mu (theta - anchor)) over the client's batches, on `names` only.

    `pull = (mu, anchor)` is the gradient of (mu / 2) ||theta - anchor||^2 over what is trained, the anchor held fixed;
    its value is not part of the logged loss.
    `after(t, theta, batch, key)` returns new values of tensors that are not trained, once step t = 0, 1, ... is made:
    averages of the iterates, or a second, slower set of parameters. It returns fresh tensors, never views of `theta`.

    `loss(theta, batch, key)` returns the loss, or the loss and named scalars to log. Returns the new tree and the means
    over the last epoch of `loss` and those scalars, with `steps`, the number of local steps. A step that is not finite
    raises `NonFinite`; under `vmap`, where nothing can be raised, the result is NaN and the engine runs the client
    again.
    """
    free = theta if names is None else only(theta, names)
    held, ravel = without(theta, free), Ravel(free)
    flat = ravel.flat(free)
    push = Push(
        None if shift is None else ravel.flat(only(shift, free)),
        None if pull is None else ravel.flat(only(pull[1], free)),
        0.0 if pull is None else pull[0],
    )
    state, steps = optimizer.init({"": flat}), data.steps(epochs, size)
    keys = fold(fold(key, "draws"), torch.arange(data.max_steps(epochs, size), device=key.device))  # (T,)
    mapped, lr = is_mapped(data.n) or is_mapped(key), torch.as_tensor(optimizer.lr, dtype=flat.dtype)
    program = getattr(loss, "__self__", None)
    if mapped and after is None and isinstance(program, Program) and program.trains_together(loss, ravel):
        plan = Plan(program, ravel, tuple(held), with_rate(optimizer, 0.0), epochs, size, push.mu)
        flat, info = fit_together(plan, flat, held, push, lr, data, key)
        return dict(ravel.tree(flat, held)), {**info, "steps": steps.to(flat.dtype)}
    schedule = data.schedule(fold(key, "order"), epochs, size)
    log: list[Tree] = []
    for t, (live, batch) in enumerate(data.batches(schedule)):
        if not mapped and not live:
            break
        at = lambda f, b=batch, t=t, h=held: _with_scalars(loss(ravel.tree(f, h), b, keys[t]))
        if mapped:
            g, (value, scalars) = grad_and_value(at, has_aux=True)(flat)
            # A rate of 0 leaves a client that has finished where it is; a rate of NaN marks one that has diverged.
            rate = torch.where(live, torch.where(torch.isfinite(value), lr, torch.nan), 0.0)
            new, state = with_rate(optimizer, rate).update({"": push(g, flat)}, state, {"": flat})
            flat = new[""]
        else:
            g, (value, scalars) = _backward(at, flat)
            if not math.isfinite(value + g.sum()):
                bad = torch.nonzero(~torch.isfinite(g))
                raise NonFinite(t, ravel.name_at(int(bad[0])) if len(bad) else None, float(value))
            optimizer.step_(flat, push(g, flat), state)
        if after is not None:
            new = after(t, ravel.tree(flat, held), batch, keys[t])
            held = {**held, **(where(live, new, only(held, new)) if mapped else new)}
        log.append({"loss": value, **scalars})
    info = _means(log, schedule.last_epoch)
    return dict(ravel.tree(flat, held)), {**info, "steps": steps.to(flat.dtype)}


def _means(log: list[Tree], rows: Tensor) -> Tree:
    """Means of the logged scalars (T,), each step weighted by its `rows`."""
    if not log:
        return {}
    columns = {k: torch.stack([row[k] for row in log]) for k in log[0]}  # (T,)
    rows = rows[: len(log)]
    return {k: torch.where(rows > 0, rows * v, 0.0).sum() / rows.sum().clamp_min(1) for k, v in columns.items()}


def _with_scalars(out: Tensor | tuple[Tensor, Tree]) -> tuple[Tensor, Tree]:
    return out if isinstance(out, tuple) else (out, {})


def _backward(f: Callable[[Tensor], tuple[Tensor, Tree]], flat: Tensor) -> tuple[Tensor, tuple[Tensor, Tree]]:
    """`grad_and_value` without functorch's wrappers: the same numbers, less overhead a step."""
    leaf = flat.detach().requires_grad_()
    with torch.enable_grad():
        value, scalars = f(leaf)
    (g,) = torch.autograd.grad(value, leaf)
    return g, (value.detach(), scalars)


def slope(
    loss: Loss, theta: Tree, batch: Batch, key: Tensor, names: Collection[str] | None = None
) -> tuple[Tree, tuple[Tensor, Tree]]:
    """(gradient in `names`, (loss, its named scalars)) of one batch, for steps inside a local step."""
    free = theta if names is None else only(theta, names)
    held, ravel = without(theta, free), Ravel(free)
    at = lambda f: _with_scalars(loss(ravel.tree(f, held), batch, key))
    g, (value, scalars) = grad_and_value(at, has_aux=True)(ravel.flat(free))
    return dict(ravel.tree(g)), (value, scalars)


def descend(
    loss: Loss,
    theta: Tree,
    batch: Batch,
    key: Tensor,
    *,
    rate: float,
    steps: int = 1,
    names: Collection[str] | None = None,
    pull: tuple[float, Tree] | None = None,
) -> Tree:
    """theta <- theta - rate (grad loss + mu (theta - anchor)), `steps` times on one batch, inside a local step."""
    mu, anchor = pull or (0.0, theta)
    for s in range(steps):
        g, _ = slope(loss, theta, batch, fold(key, s), names)
        theta = {**theta, **{k: theta[k] - rate * (d + mu * (theta[k] - anchor[k])) for k, d in g.items()}}
    return theta


def with_gradient(value: Tensor, theta: Tree, gradient: Tree) -> Tensor:
    """A loss of this value that has this `gradient` in theta, for `fit` to step along; both are held fixed."""
    moved = [((theta[k] - theta[k].detach()) * g.detach()).sum() for k, g in gradient.items()]
    return value.detach() + torch.stack(moved).sum()


def over(f: Callable[[Tensor], Tree], values: Sequence[float], key: Tensor) -> Tree:
    """`f` at each value, stacked on a leading axis: by `vmap` inside the vectorised engine, else by a loop.

    A loop costs nothing more on one client's small batches, and much less where the network has convolutions.
    """
    at = torch.tensor(values, dtype=torch.float64, device=key.device)
    if is_mapped(key):
        return vmap(f)(at)
    out = [f(v) for v in at]
    return {k: torch.stack([o[k] for o in out]) for k in out[0]}
