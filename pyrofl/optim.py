"""Optimizers as values: `init` and `update` on trees, so that a candidate optimizer can be mapped over and compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from .names import nearest
from .random import fold, normal, root
from .tree import Tree, pack, part, tmap, zeros


@dataclass(frozen=True)
class Optimizer:
    """Common fields: `lr` is the step size, `decay` the L2 penalty's weight, added to the gradient."""

    lr: float | Tensor = 0.1
    decay: float = 0.0

    linear: ClassVar[bool] = False  # whether a step's way is lr times something that does not depend on lr

    def __post_init__(self) -> None:
        _within(self, decay=(0.0, math.inf))

    def init(self, theta: Tree) -> Tree:
        """The optimizer's state for parameters `theta`."""
        return {}

    def update(self, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
        """(new parameters, new state) after one step."""
        raise NotImplementedError(f"{type(self).__name__} must define update")

    def step_(self, theta: Tensor, gradient: Tensor, state: Tree) -> None:
        """`update` of one vector in place. Those here use torch's fused kernels: the same numbers to rounding."""
        new, after = self.update({"": gradient}, state, {"": theta})
        theta.copy_(new[""])
        state.update(after)

    def _penalised(self, gradient: Tree, theta: Tree) -> Tree:
        return tmap(lambda g, p: g + self.decay * p, gradient, theta) if self.decay else gradient


@dataclass(frozen=True)
class SGD(Optimizer):
    """theta <- theta - lr * m, m <- momentum * m + g."""

    momentum: float = 0.0

    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _within(self, decay=(0.0, math.inf), momentum=(0.0, 1.0))

    def init(self, theta: Tree) -> Tree:
        return pack(m=zeros(theta)) if self.momentum else {}

    def update(self, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
        g = self._penalised(gradient, theta)
        if self.momentum:
            g = tmap(lambda m, d: self.momentum * m + d, part(state, "m"), g)
            state = pack(m=g)
        return tmap(lambda p, d: p - self.lr * d, theta, g), state

    def step_(self, theta: Tensor, gradient: Tensor, state: Tree) -> None:
        sgd(
            [theta],
            [gradient],
            list(part(state, "m").values()) or [None],
            fused=True,
            weight_decay=self.decay,
            momentum=self.momentum,
            lr=float(self.lr),
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """theta <- theta - lr * mhat / (sqrt(vhat) + eps).

    Reference: Kingma, Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1.
    """

    lr: float | Tensor = 1e-2
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _within(self, decay=(0.0, math.inf), b1=(0.0, 1.0), b2=(0.0, 1.0), eps=(5e-324, math.inf))

    def init(self, theta: Tree) -> Tree:
        first = next(iter(theta.values()))
        return {**pack(m=zeros(theta), v=zeros(theta)), "t": first.new_zeros(())}

    def update(self, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
        g, t = self._penalised(gradient, theta), state["t"] + 1
        m = tmap(lambda m, d: torch.lerp(m, d, 1 - self.b1), part(state, "m"), g)
        v = tmap(lambda v, d: torch.addcmul(self.b2 * v, d, d, value=1 - self.b2), part(state, "v"), g)
        root = (1 - self.b2**t).sqrt()
        size = self.lr / (1 - self.b1**t) * root
        step = lambda p, m, v: p - size * (m / (v.sqrt() + self.eps * root))
        return tmap(step, theta, m, v), {**pack(m=m, v=v), "t": t}

    def step_(self, theta: Tensor, gradient: Tensor, state: Tree) -> None:
        adam(
            [theta],
            [gradient],
            exp_avgs=[state["m/"]],
            exp_avg_sqs=[state["v/"]],
            max_exp_avg_sqs=[],
            state_steps=[state["t"]],
            fused=True,
            amsgrad=False,
            beta1=self.b1,
            beta2=self.b2,
            lr=float(self.lr),
            weight_decay=self.decay,
            eps=self.eps,
            maximize=False,
        )


@dataclass(frozen=True)
class SGLD(Optimizer):
    """theta <- theta - lr g + sqrt(2 lr temperature) xi with xi ~ N(0, I): Langevin dynamics, a sampler.

    With g the gradient of a loss per row, of n rows, and temperature 1 / n, iterates come to be draws from
    exp(-n loss), up to terms of order lr. The noise of each step is folded from `key`, which the state holds.

    Reference: Welling, Teh, 2011.
    """

    temperature: float | Tensor = 1.0
    key: Tensor = field(default_factory=lambda: root(0), repr=False)

    def init(self, theta: Tree) -> Tree:
        return {"key": self.key, "t": torch.zeros_like(self.key)}

    def update(self, gradient: Tree, state: Tree, theta: Tree) -> tuple[Tree, Tree]:
        key = fold(state["key"], state["t"])
        size = torch.as_tensor(2 * self.lr * self.temperature).sqrt()
        noise = {k: normal(fold(key, k), v.shape, v.dtype) for k, v in theta.items()}
        step = lambda p, g, xi: p - self.lr * g + size.to(p.dtype) * xi
        return tmap(step, theta, self._penalised(gradient, theta), noise), {**state, "t": state["t"] + 1}


def _within(optimizer: Optimizer, **bounds: tuple[float, float]) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(optimizer, name)
        if not low <= value < high:
            lowest = "positive" if 0 < low < 1e-300 else f"at least {low:g}"
            below = "finite" if high == math.inf else f"below {high:g}"
            raise ValueError(f"{name} must be {lowest} and {below}, got {value:g}")


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam}  # those with a text form: a sampler needs a key


def parse(text: str) -> Optimizer:
    """`"adam:1e-2"` or `"sgd:0.1,momentum=0.9,decay=1e-4"`: name, rate, then any other field by name."""
    name, _, rest = text.partition(":")
    kind = OPTIMIZERS.get(name.strip())
    if kind is None:
        raise ValueError(f"optimizer {text!r}: unknown name {name!r}{nearest(name, OPTIMIZERS)}")
    if not rest:
        raise ValueError(f"optimizer {text!r}: the rate is missing; write for example {name}:1e-2")
    rate, *others = rest.split(",")
    known = {f.name for f in fields(kind)}
    values: dict[str, float] = {}
    for key, value in [("lr", rate), *(o.partition("=")[::2] for o in others)]:
        if key.strip() in values:
            raise ValueError(f"optimizer {text!r}: {key.strip()} is given twice")
        if key.strip() not in known:
            raise ValueError(f"optimizer {text!r}: unknown field {key.strip()!r}{nearest(key.strip(), known)}")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise ValueError(f"optimizer {text!r}: {key.strip()} = {value.strip()!r} is not a number") from None
    if not 0 < values["lr"] < float("inf"):
        raise ValueError(f"optimizer {text!r}: the rate must be positive and finite")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"optimizer {text!r}: {error}") from None


def render(optimizer: Optimizer) -> str:
    """The text that `parse` reads back: `parse(render(o)) == o`."""
    name = next(n for n, kind in OPTIMIZERS.items() if type(optimizer) is kind)
    default: Any = type(optimizer)()
    rest = [
        f"{f.name}={getattr(optimizer, f.name)!r}"
        for f in fields(optimizer)
        if f.name != "lr" and getattr(optimizer, f.name) != getattr(default, f.name)
    ]
    return ",".join([f"{name}:{optimizer.lr!r}", *rest])


def with_rate(optimizer: Optimizer, lr: float | Tensor) -> Optimizer:
    """The same optimizer with another rate, which may be a tensor."""
    return replace(optimizer, lr=lr)
