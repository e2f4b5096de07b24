"""Likelihoods: from a network's output to the distribution of the observed site, and back to plain numbers.

A *predictive parameter* tensor (B, K) describes one posterior draw of the predictive distribution of B rows: the
log-probabilities of K classes (categorical), the logit (bernoulli), location and scale (gaussian), or the log-rate
(poisson). `parameters` reads it off any Pyro model's observed site, `distribution` turns it into a distribution.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.func import functional_call

KINDS = ("categorical", "bernoulli", "gaussian", "poisson")
_MAX_LOG_RATE = 30.0  # exp(30) events a row: larger log-rates would overflow float32 sums


class Likelihood(nn.Module):
    """`kind` says how outputs are read; `forward(out (B, K)) -> Distribution` of B rows."""

    kind: str

    def forward(self, out: Tensor) -> dist.Distribution:
        raise NotImplementedError(f"{type(self).__name__} must define forward(out) -> Distribution")

    def log_prob(self, out: Tensor, y: Tensor) -> Tensor:
        """log p(y | out) of each row, (B,) in nats."""
        return self(out).log_prob(y)

    def holding(self, tensors: dict[str, Tensor]) -> Likelihood:
        """This likelihood with `tensors` as its parameters; nothing is copied or changed."""
        return _Holding(self, tensors) if tensors else self


class _Holding(Likelihood):
    def __init__(self, base: Likelihood, tensors: dict[str, Tensor]):
        super().__init__()
        self.base, self.tensors, self.kind = (base,), tensors, base.kind  # in a tuple: not a submodule

    def forward(self, out: Tensor) -> dist.Distribution:
        return functional_call(self.base[0], self.tensors, (out,))


class Categorical(Likelihood):
    """y | out = class c with probability softmax(out)_c."""

    kind = "categorical"

    def forward(self, out: Tensor) -> dist.Distribution:
        return dist.Categorical(logits=out, validate_args=False)

    def log_prob(self, out: Tensor, y: Tensor) -> Tensor:
        return out.gather(-1, y.long().unsqueeze(-1)).squeeze(-1) - out.logsumexp(-1)


class Bernoulli(Likelihood):
    """y | out = 1 with probability sigmoid(out)."""

    kind = "bernoulli"

    def forward(self, out: Tensor) -> dist.Distribution:
        return dist.Bernoulli(logits=out.squeeze(-1), validate_args=False)


class Gaussian(Likelihood):
    """y | out ~ N(out, sigma^2). `scale` is sigma: fixed by a number, or learned as a point estimate if None."""

    kind = "gaussian"

    def __init__(self, scale: float | None = None):
        super().__init__()
        if scale is not None and not scale > 0:
            raise ValueError(f"the noise scale must be positive, got {scale}")
        start = torch.tensor(math.log(scale or 1.0), dtype=torch.float64)  # lifting takes the network's precision
        if scale is None:
            self.log_scale = nn.Parameter(start)
        else:
            self.register_buffer("log_scale", start)

    def forward(self, out: Tensor) -> dist.Distribution:
        return dist.Normal(out.squeeze(-1), self.log_scale.exp(), validate_args=False)


class Poisson(Likelihood):
    """y | out ~ Poisson(exp(out)); log-rates above 30 are cut there."""

    kind = "poisson"

    def forward(self, out: Tensor) -> dist.Distribution:
        return dist.Poisson(out.squeeze(-1).clamp(max=_MAX_LOG_RATE).exp(), validate_args=False)


LIKELIHOODS: dict[str, type[Likelihood]] = {c.kind: c for c in (Categorical, Bernoulli, Gaussian, Poisson)}


def _base(fn: dist.Distribution) -> Any:
    while isinstance(fn, dist.Independent | dist.MaskedDistribution | dist.ExpandedDistribution):
        fn = fn.base_dist
    return fn


def kind_of(fn: dist.Distribution) -> str:
    """The likelihood kind of an observed site's distribution."""
    base = _base(fn)
    for family, kind in (
        (dist.Categorical, "categorical"),
        (dist.OneHotCategorical, "categorical"),
        (dist.Bernoulli, "bernoulli"),
        (dist.Normal, "gaussian"),
        (dist.Poisson, "poisson"),
    ):
        if isinstance(base, family):
            return kind
    raise TypeError(
        f"the observed site is a {type(base).__name__}; predictions are defined for Categorical, Bernoulli, Normal "
        "and Poisson"
    )


def parameters(fn: dist.Distribution) -> Tensor:
    """Predictive parameters (B, K) of an observed site's distribution over B rows."""
    base, kind = _base(fn), kind_of(fn)
    if kind == "categorical":
        return torch.log_softmax(base.logits, -1)
    if kind == "bernoulli":
        return base.logits.unsqueeze(-1)
    if kind == "gaussian":
        return torch.stack(torch.broadcast_tensors(base.loc, base.scale), -1)
    return base.rate.log().unsqueeze(-1)


def distribution(kind: str, out: Tensor, *, validate_args: bool | None = None) -> dist.Distribution:
    """The distribution described by predictive parameters (..., B, K); inside `vmap` nothing can be validated."""
    if kind == "categorical":
        return dist.Categorical(logits=out, validate_args=validate_args)
    if kind == "bernoulli":
        return dist.Bernoulli(logits=out[..., 0], validate_args=validate_args)
    if kind == "gaussian":
        return dist.Normal(out[..., 0], out[..., 1], validate_args=validate_args)
    if kind == "poisson":
        return dist.Poisson(out[..., 0].exp(), validate_args=validate_args)
    raise ValueError(f"unknown likelihood {kind!r}; known are {', '.join(KINDS)}")


def soften(kind: str, out: Tensor, temperature: float) -> Tensor:
    """Predictive parameters with log-odds divided by `temperature`: classes nearer to each other."""
    if kind == "categorical":
        return torch.log_softmax(out / temperature, -1)
    if kind == "bernoulli":
        return out / temperature
    raise ValueError(
        f"a temperature softens class probabilities, and a {kind} likelihood has none; use temperature = 1"
    )


def predictive_kl(kind: str, p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of each row's observation, from predictive parameters (..., B, K), (..., B) in nats."""
    if kind in ("categorical", "bernoulli"):
        log_p, log_q = (_log_classes(kind, out) for out in (p, q))
        return (log_p.exp() * (log_p - log_q)).sum(-1)  # torch's own KLs of classes cannot be mapped over
    one, other = (distribution(kind, out, validate_args=False) for out in (p, q))
    return torch.distributions.kl_divergence(one, other)


def _log_classes(kind: str, out: Tensor) -> Tensor:
    if kind == "bernoulli":
        out = torch.cat([torch.zeros_like(out), out], -1)
    return torch.log_softmax(out, -1)


def information(kind: str, out: Tensor) -> Tensor:
    """Weights w (B, K) >= 0 of the expected Fisher information of a row, sum_k w_k J_k J_k', J = d out / d theta.

    `out` are predictive parameters: log p (J is the score of each class, weighted by p), a logit, (location, scale),
    or a log-rate. For canonical links it is the Hessian of -log p(y | x); it is never negative, whatever the network.
    """
    if kind == "categorical":
        return out.exp()
    if kind == "bernoulli":
        return torch.sigmoid(out) * torch.sigmoid(-out)
    if kind == "gaussian":
        return torch.stack([out[:, 1] ** -2, 2 * out[:, 1] ** -2], -1)
    if kind == "poisson":
        return out.exp()
    raise ValueError(f"unknown likelihood {kind!r}; known are {', '.join(KINDS)}")
