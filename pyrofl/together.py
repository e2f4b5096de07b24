"""The local loop of many clients at once: what `fit` becomes under `vmap` where the loss is the program's own.

Mapping the whole loop sends every small operation of the optimizer, the guide and the noise through `vmap`'s dispatch.
Here the loop runs on stacked arrays, and `vmap` is left to the network alone. The numbers are those of `fit`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from .data import Batch, Data
from .optim import Optimizer, with_rate
from .random import fold, normals
from .tree import Ravel, Tree

if TYPE_CHECKING:
    from .program import Program


class Plan(NamedTuple):
    """What does not differ between clients."""

    program: Program
    ravel: Ravel
    held: tuple[str, ...]
    optimizer: Optimizer
    epochs: float
    size: int
    mu: float


class Push(NamedTuple):
    """What is added to the gradient: `shift`, and mu times the way from `anchor`; vectors (..., P)."""

    shift: Tensor | None
    anchor: Tensor | None
    mu: float

    def __call__(self, gradient: Tensor, flat: Tensor) -> Tensor:
        if self.shift is not None:
            gradient = gradient + self.shift
        return gradient if self.anchor is None else torch.add(gradient, flat - self.anchor, alpha=self.mu)


def fit_together(
    plan: Plan, flat: Tensor, held: Tree, push: Push, lr: Tensor, data: Data, key: Tensor
) -> tuple[Tensor, Tree]:
    """(trained vector, mean scalars of the last epoch); called inside `vmap`, at any depth."""
    none = flat.new_zeros(0)  # an absent vector, since only tensors can be mapped over
    added = (none if v is None else v for v in (push.shift, push.anchor))
    tensors = (flat, lr, key, *data, *added, *(held[k] for k in plan.held))
    flat, loss, nll, kl = _Together.apply(plan, *tensors)
    return flat, {"loss": loss, "nll": nll, plan.program.penalty: kl}


class _Together(torch.autograd.Function):
    """Each level of `vmap` adds a leading axis; the innermost call trains all of them."""

    @staticmethod
    def forward(plan: Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        flat, lr, key, x, y, n, shift, anchor, *held = tensors
        lead = key.shape
        one = lambda v: v.reshape(math.prod(lead), *v.shape[len(lead) :])
        with torch.no_grad():
            push = Push(one(shift) if shift.numel() else None, one(anchor) if anchor.numel() else None, plan.mu)
            data = Data(one(x), one(y), one(n))
            out = _train(plan, one(flat), one(lr), one(key), data, push, [one(v) for v in held])
        return tuple(v.reshape(*lead, *v.shape[1:]) for v in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None,) * (1 + len(grads))

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: Plan, *tensors: Tensor) -> tuple[tuple[Tensor, ...], int]:
        moved = [
            v.expand(info.batch_size, *v.shape) if dim is None else v.movedim(dim, 0)
            for v, dim in zip(tensors, in_dims[1:])
        ]
        return _Together.apply(plan, *moved), 0


def _train(
    plan: Plan, flat: Tensor, lr: Tensor, key: Tensor, data: Data, push: Push, held: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """C clients: flat (C, P), lr (C,), key (C,), rows (C, N, ...). Returns (C, P) and three (C,)."""
    program, optimizer, (C, N) = plan.program, plan.optimizer, data.x.shape[:2]
    fast = program.fast_path
    assert fast is not None
    schedule = vmap(lambda d, k: d.schedule(fold(k, "order"), plan.epochs, plan.size))(data, key)
    T = schedule.rows.shape[1]
    keys = vmap(lambda k: fold(fold(k, "draws"), torch.arange(T, device=k.device)))(key)  # (C, T)
    alike = (schedule.live.all(0) & (lr == lr[0]).all()).tolist()  # (T,) one fused step serves all clients
    optimizer, unit, flat = with_rate(optimizer, float(lr[0])), with_rate(optimizer, 1.0), flat.clone()
    way = torch.empty_like(flat)
    every, state = torch.arange(C, device=flat.device).unsqueeze(1), optimizer.init({"": flat})
    padded = bool((data.n < N).any())
    log = []
    for t in range(T):
        rows = schedule.rows[:, t]  # (C, B)
        x, y = data.x[every, rows], data.y[every, rows]
        if padded:
            real = schedule.real[:, t]
            x = torch.where(real.reshape(*real.shape, *[1] * (x.dim() - 2)), x, 0)
            y = torch.where(real, y, 0)
        batch = Batch(x, y, schedule.n, schedule.weight[:, t], schedule.distinct[:, t])
        noise = normals(keys[:, t], (fast.size,), flat.dtype) if fast.mean_field else None
        leaf = flat.detach().requires_grad_()
        with torch.enable_grad():
            nll, kl = fast.together(plan.ravel, leaf, dict(zip(plan.held, held)), batch, keys[:, t], noise)
            kl = kl * program.beta / batch.n
            value = nll + kl
            (g,) = torch.autograd.grad(value.sum(), leaf)
        g, finite = push(g, flat), torch.isfinite(value)
        log.append(torch.stack([value, nll, kl]).detach())
        if alike[t] and bool(finite.all()):
            optimizer.step_(flat, g, state)
            continue
        # A rate of 0 leaves a client that has finished where it is, one of NaN marks one that has diverged.
        rate = torch.where(schedule.live[:, t], torch.where(finite, lr, torch.nan), 0.0).unsqueeze(1)
        if optimizer.linear and not optimizer.decay:  # the way of rate 1 in one fused step, then each client's share
            unit.step_(way.zero_(), g, state)
            flat.addcmul_(way, rate)
        else:
            moved, state = with_rate(optimizer, rate).update({"": g}, state, {"": flat})
            flat = moved[""]
    table = torch.stack(log, 2) if log else flat.new_zeros(3, C, 1)  # (3, C, T)
    weights = schedule.last_epoch  # (C, T) rows that count in the last epoch
    means = torch.where(weights > 0, weights * table, 0.0).sum(2) / weights.sum(1).clamp_min(1)
    return flat, *means
