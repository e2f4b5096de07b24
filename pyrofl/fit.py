"""The one local training loop: every method's stochastic gradient steps go through `fit`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from .data import Batch, Data
from .optim import Optimizer
from .random import fold
from .tree import Ravel, Tree, only, without

Loss = Callable[[Tree, Batch, Tensor], "Tensor | tuple[Tensor, Tree]"]
T = TypeVar("T")


class NonFinite(ArithmeticError):
    """A local step met a loss or gradient that is not finite."""

    def __init__(self, step: int, tensor: str, loss: float):
        super().__init__(f"step {step}: the loss is {loss:g} and the gradient of {tensor!r} is not finite")
        self.step, self.tensor = step, tensor


def is_mapped(x: Tensor) -> bool:
    """Whether `x` is being mapped over by `vmap`, where its value cannot be asked for."""
    try:
        x.item()
    except RuntimeError:
        return True
    return False


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
) -> tuple[Tree, Tree]:
    """theta <- optimizer(theta, grad loss + shift) over the client's batches, on `names` only.

    `loss(theta, batch, key)` returns the loss, or the loss and named scalars to log. Returns the new tree and the means
    over the last epoch of `loss` and those scalars, with `steps`, the number of local steps. A step that is not finite
    raises `NonFinite`; under `vmap`, where nothing can be raised, the result is NaN and the engine runs the client again.
    """
    free = theta if names is None else only(theta, names)
    held, ravel = without(theta, free), Ravel(free)
    flat, push = ravel.flat(free), None if shift is None else ravel.flat(only(shift, free))
    state = optimizer.init({"": flat})
    order, draws = fold(key, "order"), fold(key, "draws")
    steps, mapped = data.steps(epochs, size), is_mapped(data.n) or is_mapped(key)
    last = steps - torch.ceil(data.n / size)  # the last epoch starts here
    sums: Tree = {}
    for t, (live, batch) in enumerate(data.batches(order, epochs, size)):
        if not mapped and not live:
            break
        at = lambda f, b=batch, t=t: _with_scalars(loss({**held, **ravel.tree(f)}, b, fold(draws, t)))
        g, (value, scalars) = grad_and_value(at, has_aux=True)(flat) if mapped else _backward(at, flat)
        finite = torch.isfinite(value + g.sum())
        if not mapped and not finite:
            bad = torch.nonzero(~torch.isfinite(g))
            tensor = ravel.name_at(int(bad[0])) if len(bad) else "no tensor"
            raise NonFinite(t, tensor, float(value))
        new, after = optimizer.update({"": g if push is None else g + push}, state, {"": flat})
        if mapped:
            moved = torch.where(finite, new[""], torch.nan)
            flat = torch.where(live, moved, flat)
            state = {k: torch.where(live, after[k], state[k]) for k in state}
        else:
            flat, state = new[""], after
        rows = torch.where(live & (t >= last), batch.live.sum(), 0)
        for name, v in {"loss": value, **scalars, "": torch.ones_like(value)}.items():
            sums[name] = sums.get(name, 0) + rows * torch.where(rows > 0, v, 0.0)
    rows = sums.pop("", torch.zeros(())).clamp_min(1)
    return {**held, **ravel.tree(flat)}, {
        **{k: v / rows for k, v in sums.items()},
        "steps": steps.to(flat.dtype),
    }


def _with_scalars(out: Tensor | tuple[Tensor, Tree]) -> tuple[Tensor, Tree]:
    return out if isinstance(out, tuple) else (out, {})


def _backward(f: Callable[[Tensor], tuple[Tensor, Tree]], flat: Tensor) -> tuple[Tensor, tuple[Tensor, Tree]]:
    """`grad_and_value` by reverse mode without functorch's wrappers: the same numbers, less overhead a step."""
    leaf = flat.detach().requires_grad_()
    with torch.enable_grad():
        value, scalars = f(leaf)
    (g,) = torch.autograd.grad(value, leaf)
    return g, (value.detach(), scalars)


def over(f: Callable[[Tensor], Tree], values: Sequence[float], key: Tensor) -> Tree:
    """`f` at each value, stacked on a leading axis: by `vmap` inside the vectorised engine, else by a loop.

    A loop costs nothing more on one client's small batches, and much less where the network has convolutions.
    """
    at = torch.tensor(values, device=key.device)
    if is_mapped(key):
        return vmap(f)(at)
    out = [f(v) for v in at]
    return {k: torch.stack([o[k] for o in out]) for k in out[0]}
