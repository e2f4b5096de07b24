"""Randomness is a key, folded from (seed, round, client, purpose).

A key is a 0-d int64 tensor. Draws are a counter-based hash of it (splitmix64: Steele, Lea, Flood, 2014), written in
tensor operations: the same numbers come out in a loop, under `vmap` and on any device, no state is kept, and a
checkpoint needs none. `fold` derives a key for each purpose, so that streams never depend on the order of calls.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


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


def _code(step: int | str | Tensor, device: torch.device) -> Tensor:
    if isinstance(step, str):  # a 64-bit hash of the name, told apart from the integers by its own salt
        step = int.from_bytes(hashlib.blake2b(step.encode(), digest_size=8, person=b"pyrofl").digest(), "little")
    if isinstance(step, int):
        step = torch.tensor(_signed(step), device=device)
    return step.to(torch.int64)


def root(seed: int) -> Tensor:
    """The key of a seed."""
    return fold(torch.tensor(0, dtype=torch.int64), seed)


def fold(key: Tensor, *path: int | str | Tensor) -> Tensor:
    """A new key from `key` and a path such as `(round, client, "order")`."""
    for step in path:
        key = _mix(key ^ _mix(_code(step, key.device) * _GAMMA + _GAMMA))
    return key


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
    """Standard normal by Box and Muller (1958); each pair of hashed uniforms gives two normals."""
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
