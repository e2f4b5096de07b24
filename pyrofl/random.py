"""Randomness is a key, folded from (seed, round, client, purpose).

A key is a 0-d int64 tensor. What is drawn from it is a pure function of it: the same numbers come out in a loop and
under `vmap`, no state is kept, and a checkpoint needs none. `fold` derives a key for each purpose, so that streams
never depend on the order of calls. Bits, uniforms and orders are a counter-based hash (splitmix64: Steele, Lea, Flood,
2014). Normals come from torch's own generator on the CPU, seeded with the key, which is about four times faster there,
and from the hash elsewhere, where a seed would have to be fetched from the device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap


def _signed(c: int) -> int:
    c &= (1 << 64) - 1
    return c - (1 << 64) if c >> 63 else c


_GAMMA, _MIX1, _MIX2 = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_TWO_PI = 2 * math.pi


def _shift(z: Tensor, k: int) -> Tensor:
    return (z >> k) & ((1 << (64 - k)) - 1)  # logical shift: int64 carries the sign along


def _mix(z: Tensor) -> Tensor:
    """splitmix64's finaliser, a bijection of 64-bit integers; int64 products wrap."""
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


_MASK = (1 << 64) - 1


def _mix_int(z: int) -> int:
    """`_mix` on Python integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=4096)
def _code(step: int | str) -> int:
    """The mixed 64-bit code of one step of a path; names are hashed with a salt of their own, apart from integers."""
    if isinstance(step, str):
        step = int.from_bytes(hashlib.blake2b(step.encode(), digest_size=8, person=b"pyrofl").digest(), "little")
    return _mix_int((step * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK)


def _per_key(f: Callable[[int], Tensor], key: Tensor) -> Tensor:
    """f(key). Inside `vmap` no value can be asked for and no generator used: `_PerKey` steps outside of it."""
    try:
        return f(int(key.item()))
    except RuntimeError:
        return _PerKey.apply(f, key)


class _PerKey(torch.autograd.Function):
    """A function of single keys, applied to each key of a batch; `vmap` at any depth only adds to the batch."""

    @staticmethod
    def forward(f: Callable[[int], Tensor], key: Tensor) -> Tensor:
        out = torch.stack([f(k) for k in key.reshape(-1).tolist()])
        return out.reshape((*key.shape, *out.shape[1:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, f: Callable[[int], Tensor], key: Tensor) -> tuple[Tensor, int]:
        return _PerKey.apply(f, key.movedim(in_dims[1], 0)), 0


def is_mapped(x: Tensor) -> bool:
    """Whether `x` is being mapped over by `vmap`, where its value cannot be asked for."""
    try:
        x.item()
    except RuntimeError:
        return True
    return False


def root(seed: int) -> Tensor:
    """The key of a seed."""
    return fold(torch.tensor(0, dtype=torch.int64, device="cpu"), seed)


def fold(key: Tensor, *path: int | str | Tensor) -> Tensor:
    """A new key from `key` and a path such as `(round, client, "order")`; a tensor of integers gives a key for each."""
    if key.device.type == "cpu" and key.dim() == 0 and not any(isinstance(step, Tensor) for step in path):
        codes = [_code(step) for step in path]
        return _per_key(partial(_fold_int, codes=codes), key)
    for step in path:
        code = _mix(step.to(torch.int64) * _GAMMA + _GAMMA) if isinstance(step, Tensor) else _signed(_code(step))
        key = _mix(key ^ code)
    return key


def _fold_int(key: int, codes: list[int]) -> Tensor:
    for code in codes:
        key = _mix_int((key & _MASK) ^ code)
    return torch.tensor(_signed(key), device="cpu")


def bits(key: Tensor, count: int) -> Tensor:
    """(count,) int64, uniform on all 64 bits; the first m do not depend on `count`."""
    return _mix(key + _GAMMA * torch.arange(1, count + 1, device=key.device))


def uniform(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on the open interval (0, 1)."""
    b = bits(key, math.prod(shape)).reshape(shape)
    if dtype == torch.float64:
        return (_shift(b, 11).double() + 0.5) * 2.0**-53
    return ((_shift(b, 41).float() + 0.5) * 2.0**-23).to(dtype)


def normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal.

    On the CPU, torch's generator takes 32 bits of the key as its seed: of a million draws in a run, about a hundred
    pairs share their noise. On other devices, Box and Muller (1958) on the hash.
    """
    if key.device.type == "cpu":
        return _per_key(partial(_seeded_normal, shape=tuple(shape), dtype=dtype), key)
    return hashed_normal(key, shape, dtype)


def normals(keys: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`normal` of each of C keys, stacked: (C, *shape). Outside `vmap` only."""
    if keys.device.type == "cpu":
        out = torch.empty(len(keys), *shape, dtype=dtype, device="cpu")
        for row, key in zip(out, keys.tolist()):
            row.normal_(generator=_source(key))
        return out
    return vmap(lambda k: hashed_normal(k, shape, dtype))(keys)


def _seeded_normal(key: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu").normal_(generator=_source(key))


def _source(key: int) -> torch.Generator:
    source = torch.Generator("cpu")
    source.manual_seed(key & 0xFFFFFFFF)
    return source


def hashed_normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal by tensor operations alone; each pair of hashed uniforms gives two normals."""
    count = math.prod(shape)
    half = (count + 1) // 2
    if dtype == torch.float64:
        u, v = uniform(key, (2, half), dtype)
    else:  # 40 bits for the radius (a tail to 7.5 standard deviations), 24 for the angle
        b = bits(key, half)
        u, v = (_shift(b, 24).float() + 0.5) * 2.0**-40, (b & 0xFFFFFF).float() * 2.0**-24
    r = torch.sqrt(-2 * torch.log(u))
    both = torch.stack([r * torch.cos(_TWO_PI * v), r * torch.sin(_TWO_PI * v)])
    return both.reshape(-1)[:count].reshape(shape).to(dtype)


def bernoulli(key: Tensor, p: float | Tensor, shape: Sequence[int]) -> Tensor:
    """Boolean draws, true with probability `p`."""
    return uniform(key, shape) < p


def permutation(key: Tensor, length: int, n: Tensor) -> Tensor:
    """A random order of the rows 0..n-1 in the first n places; the other length - n rows follow.

    The order of the first n does not depend on `length`: padding changes nothing.
    """
    late = torch.arange(length, device=key.device) >= n
    b = _shift(bits(key, length), 1)  # 63 bits, non-negative
    return torch.argsort(torch.where(late, torch.iinfo(torch.int64).max, b), stable=True)


def generator(key: Tensor) -> np.random.Generator:
    """A numpy generator for draws outside the local step (partitions, cohorts, bootstrap)."""
    return np.random.default_rng(int(key) & ((1 << 64) - 1))
