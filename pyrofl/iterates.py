"""What is gathered of the iterates of one `fit`: means of whole epochs, or the last states of a chain."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from .data import Batch, Data
from .fit import Loss
from .random import fold
from .tree import Tree, only, pack, part, zeros


class EpochMeans:
    """The mean iterate of each of `samples` epochs after the first `burn_in`: samples of a local posterior.

    `kept` and `after` are arguments of `fit`; then `rows` are the samples.

    Reference: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, 2021, "iterate-averaged stochastic gradients".
    """

    def __init__(self, like: Tree, samples: int, data: Data, *, size: int, burn_in: int):
        self.like, self.samples, self.burn_in = like, samples, burn_in
        self.steps = ((data.n + size - 1) // size).clamp_min(1)  # () of an epoch

    @property
    def kept(self) -> Tree:
        return pack(sample={k: v.new_zeros(self.samples, *v.shape) for k, v in self.like.items()})

    def after(self, t: int, theta: Tree, batch: Batch, key: Tensor) -> Tree:
        here = torch.arange(self.samples, device=self.steps.device) == t // self.steps - self.burn_in  # (l,)
        share = lambda v: (here.to(v.dtype) / self.steps).reshape(-1, *[1] * v.dim()) * v
        return {f"sample/{name}": theta[f"sample/{name}"] + share(theta[name]) for name in self.like}

    def rows(self, theta: Tree) -> Tensor:
        """(l, P)."""
        return torch.cat([v.reshape(self.samples, -1) for v in part(theta, "sample").values()], 1)


def posterior_step(samples: Tensor, x: Tensor, rho: float) -> Tensor:
    """Sigma^-1 (m - x), (P,), for the mean m and Sigma = r I + (1 - r) S of `samples` (l, P), in O(l^2 P).

    Sigma / r = I + sum_t g_t u_t u_t', u_t = x_t - mean of the samples before, g_t = rho (t - 1) / t: one rank at a
    time by Sherman and Morrison's formula, in float64.
    """
    l, first, *rest = len(samples), *samples.double().unbind()
    m, a = first, first - x.double()
    known: list[tuple[Tensor, Tensor]] = []  # v_t = (Sigma_t-1 / r)^-1 u_t, and g_t / (1 + g_t <v_t, u_t>)
    for t, sample in enumerate(rest, 2):
        u, g = sample - m, rho * (t - 1) / t
        v = u
        for w, c in known:
            v = v - c * torch.dot(w, u) * w
        uv = torch.dot(u, v)
        a = a + v / t * (1 - g * (t * torch.dot(a, u) + uv) / (1 + g * uv))
        m = m + u / t
        known.append((v, g / (1 + g * uv)))
    return ((1 + (l - 1) * rho) * a).to(x.dtype)


class LastStates:
    """The last S states of what is trained, leaves (S, ...), and the mean over them of the loss's gradient in `others`.

    `kept` and `after` are arguments of `fit`; then `chain` and `gradient` are parts of the tree. `chain` is what was
    kept before: where a fit has fewer steps than S, its first states stay.
    """

    def __init__(self, loss: Loss, chain: Tree, others: Tree, steps: Tensor):
        self.loss, self.others, self.steps = loss, others, steps
        self.samples = len(next(iter(chain.values())))
        self.kept = pack(chain=chain, gradient=zeros(others))

    def after(self, t: int, theta: Tree, batch: Batch, key: Tensor) -> Tree:
        here = torch.arange(self.samples, device=self.steps.device) == t - (self.steps - self.samples)  # (S,)
        value = lambda at: self.loss({**theta, **at}, batch, fold(key, "body"))
        slope = grad(lambda at: out[0] if isinstance(out := value(at), tuple) else out)(only(theta, self.others))
        share = here.any().double() / self.steps.clamp(1, self.samples)
        put = lambda old, new: torch.where(here.reshape(-1, *[1] * new.dim()), new, old)
        chain = {k: put(z, theta[k]) for k, z in part(theta, "chain").items()}
        gradient = {k: theta[f"gradient/{k}"] + share.to(g.dtype) * g for k, g in slope.items()}
        return pack(chain=chain, gradient=gradient)
