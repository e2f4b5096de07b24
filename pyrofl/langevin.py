"""Sampling by `fit`: noise in the gradient turns descent into stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

import torch
from torch import Tensor

from .data import Batch
from .fit import Loss
from .optim import SGD, Optimizer
from .random import fold, normal
from .tree import Tree


def langevin(loss: Loss, optimizer: Optimizer, names: frozenset[str], *, temperature: float = 1.0) -> Loss:
    """A loss whose steps of plain or heavy-ball descent draw from exp(-n loss(theta) / temperature).

    The gradient gets c e with e ~ N(0, I) and c^2 = 2 (1 - m) temperature / (lr n), for rate lr, momentum m and n rows;
    then v <- m v - lr g + N(0, 2 (1 - m) temperature lr / n), theta <- theta + v. With momentum 0 it is Langevin
    dynamics. `loss` is a mean over rows, in nats; its logged values have no noise. Exact as lr goes to 0, since no step
    is rejected.

    Reference: Welling, Teh, 2011; Chen, Fox, Guestrin, 2014, equation 15 (with no estimate of the gradient's noise).
    """
    if not isinstance(optimizer, SGD):
        kind = type(optimizer).__name__
        raise ValueError(f"sampling needs steps of SGD, whose noise is known, not {kind}: write for example 'sgd:0.01'")
    scale = 2 * (1 - optimizer.momentum) * temperature / torch.as_tensor(optimizer.lr)

    def noisy(theta: Tree, batch: Batch, key: Tensor) -> tuple[Tensor, Tree]:
        out = loss(theta, batch, key)
        value, scalars = out if isinstance(out, tuple) else (out, {})
        flat = torch.cat([theta[k].reshape(-1) for k in sorted(names)])
        push = (normal(fold(key, "langevin"), flat.shape, flat.dtype) * flat).sum()
        push = (scale / batch.n).sqrt().to(flat) * push
        return value + (push - push.detach()), scalars

    return noisy
