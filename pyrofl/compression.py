"""Smaller messages: the change of each tensor, in units of the posterior's standard deviation, in one or two bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .program import Program
from .random import fold, uniform
from .tree import Tree, pack, part

Kind = Literal["none", "float16", "int8"]
_STEPS = 127  # of int8, to either side of 0


@dataclass(frozen=True)
class Compression:
    """v -> (c, code): v is near v0 + u c code, with c = max |v - v0| / u over the tensor, so that code lies in [-1, 1].

    v0 is the tensor of that name that the client received (0 where it received none), and u the unit: for a location
    of a mean-field posterior the standard deviation that it received, for everything else 1. A location is so known to
    the same share of its posterior's spread in narrow and in wide directions. `float16` rounds the code; `int8` rounds
    127 code up or down at random, with expectation the code itself. Tensors that are no floats travel as they are.
    """

    program: Program
    kind: Kind = "none"

    def encode(self, up: Tree, down: Tree, key: Tensor) -> Tree:
        """What travels: `code/NAME` and, in float32, `size/NAME` = c."""
        if self.kind == "none":
            return up
        code, size, plain = {}, {}, {}
        for name, v in up.items():
            if not v.is_floating_point():
                plain[name] = v
                continue
            way = (v - self._start(name, v, down)) / self._unit(name, v, down)
            c = way.abs().max() if v.numel() else v.new_zeros(())
            share = torch.where(c > 0, way / c, way)  # NaN and infinity survive, for the gate
            if self.kind == "float16":
                code[name] = share.to(torch.float16)
            else:
                code[name] = torch.floor(_STEPS * share + uniform(fold(key, "rounding", name), v.shape)).to(torch.int8)
            size[name] = c.to(torch.float32)
        return pack(code=code, size=size, plain=plain)

    def decode(self, sent: Tree, down: Tree, like: Tree) -> Tree:
        """The message as the server uses it, with the names and dtypes of `like`."""
        if self.kind == "none":
            return sent
        code, size, plain = (part(sent, p) for p in ("code", "size", "plain"))
        full = 1.0 if self.kind == "float16" else float(_STEPS)

        def one(name: str, v: Tensor) -> Tensor:
            if name in plain:
                return plain[name]
            way = size[name].to(v.dtype) * (code[name].to(v.dtype) / full)
            return self._start(name, v, down) + self._unit(name, v, down) * way

        return {name: one(name, v) for name, v in like.items()}

    def wire(self, message: Tree) -> Tree:
        """Names, shapes and dtypes of what travels for a message like this one."""
        if self.kind == "none":
            return message
        real = {k: v for k, v in message.items() if v.is_floating_point()}
        dtype = torch.float16 if self.kind == "float16" else torch.int8
        code = {k: torch.empty(v.shape, dtype=dtype, device=v.device) for k, v in real.items()}
        size = {k: torch.empty((), dtype=torch.float32, device=v.device) for k, v in real.items()}
        return pack(code=code, size=size, plain={k: v for k, v in message.items() if k not in real})

    @staticmethod
    def _start(name: str, v: Tensor, down: Tree) -> Tensor:
        """v0; what was received under this name serves where it has the same shape."""
        have = down.get(name)
        return have if have is not None and have.shape == v.shape and have.dtype == v.dtype else torch.zeros_like(v)

    def _unit(self, name: str, v: Tensor, down: Tree) -> Tensor:
        scale_of = self._scales().get(name)
        if scale_of is None or scale_of[0] not in down or down[scale_of[0]].shape != v.shape:
            return torch.ones_like(v)
        return scale_of[1](down)

    def _scales(self) -> dict[str, tuple[str, Callable[[Tree], Tensor]]]:
        """Location's name -> (its scale's name, the standard deviation that a tree gives it)."""
        p = self.program
        if not p.mean_field:
            return {}
        return {p.loc_name(s): (p.scale_name(s), functools.partial(p.deviation, site=s)) for s in p.sites}
