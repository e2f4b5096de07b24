"""Secure aggregation: the server learns the sum of the sites' updates and no single one.

Every pair of sites agrees on a key (X25519, HKDF-SHA256), stretches it to a mask (ChaCha20), and one adds it where the
other subtracts it, in 64-bit integers that wrap: in the sum over all sites of the round the masks are gone. A round in
which one of them is missing cannot be read and is skipped.

Reference: Bonawitz et al., 2017, without their recovery from dropouts.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tree import Tree, stack

FEWEST = 3  # of two sites each knows the other's update from the sum


@dataclass(frozen=True)
class Secure:
    """Updates as fixed-point numbers v - v0 = range q / 2^bits, with |v - v0| <= `range` for every value.

    v are the numbers that the server averages (`Averaged`), and v0 the same of what the client received, 0 where it
    received none. The sum of 2^(62 - bits) sites fits. A sum is of
    `least` sites or more: each site checks that before it masks.
    """

    range: float = 16.0
    bits: int = 40
    least: int = FEWEST

    def __post_init__(self) -> None:
        if not 0 < self.range < math.inf:
            raise ValueError(f"secure.range must be positive, got {self.range}")
        if not 8 <= self.bits <= 48:
            raise ValueError(f"secure.bits must be between 8 and 48, got {self.bits}")
        if self.least < FEWEST:
            raise ValueError(
                f"secure.least must be at least {FEWEST} sites, got {self.least}: of two each knows the other's update"
            )

    def encode(self, up: Tree, down: Tree, share: float = 1.0) -> Tree:
        """int64 codes of `share` times the way; a value out of range stays far out of it, for `reason`."""
        scale = share * 2.0**self.bits / self.range
        way = {k: (v - _received(k, v, down)).double() for k, v in up.items()}
        fit = lambda w: w.nan_to_num(nan=math.inf).clamp(-2 * self.range, 2 * self.range)
        return {k: torch.round(fit(w) * scale).long() for k, w in way.items()}

    def rounded(self, up: Tree, down: Tree) -> Tree:
        """The update as its codes hold it; NaN where it is out of range. Works under `vmap`."""
        codes = self.encode(up, down)
        near = self.decode_mean(codes, 1, down, up)
        return {k: torch.where(codes[k].abs() > 2**self.bits, torch.nan, v) for k, v in near.items()}

    def reason(self, codes: Tree) -> str | None:
        """Which tensor does not fit the range, or None."""
        for name, q in codes.items():
            if q.numel() and int(q.abs().max()) > 2**self.bits:
                return f"tensor {name!r} has moved by more than secure.range = {self.range:g}, or is not finite"
        return None

    def decode_mean(self, total: Tree, count: int, down: Tree, like: Tree) -> Tree:
        """The mean of `count` updates from the sum of their codes."""
        scale = self.range / 2.0**self.bits
        return {k: _received(k, v, down) + (total[k].double() * (scale / count)).to(v.dtype) for k, v in like.items()}

    def wire(self, message: Tree) -> Tree:
        return {k: torch.empty(v.shape, dtype=torch.int64, device=v.device) for k, v in message.items()}


def public_key(secret: bytes, context: bytes) -> bytes:
    """A site's key of one round, from its secret."""
    return _private(secret, context).public_key().public_bytes_raw()


def masked(
    codes: Tree, mine: int, keys: Mapping[int, bytes], secret: bytes, context: bytes, *, least: int = FEWEST
) -> Tree:
    """`codes` with the masks of site `mine` and every other site of `keys` (site -> public key)."""
    if len(keys) < least:
        raise ValueError(f"a sum of {len(keys)} sites gives too much of them away: at least {least} must take part")
    if keys.get(mine) != public_key(secret, context):
        raise ValueError("the list of sites does not hold this site's own key")
    group = hashlib.sha256(b"".join(i.to_bytes(8, "little") + keys[i] for i in sorted(keys))).digest()
    counts = [q.numel() for q in codes.values()]
    flat = np.concatenate([q.cpu().reshape(-1).numpy() for q in codes.values()]).view(np.uint64).copy()
    for other in sorted(keys.keys() - {mine}):
        mask = _mask(_private(secret, context), keys[other], group, len(flat))
        flat = flat + mask if mine < other else flat - mask  # modulo 2^64
    pieces = torch.from_numpy(flat.view(np.int64)).split(counts)
    return {k: p.reshape(q.shape) for (k, q), p in zip(codes.items(), pieces)}


def total(sent: list[Tree]) -> Tree:
    """The sum of all masked codes, modulo 2^64: the masks cancel."""
    every = stack(sent)
    return {k: v.sum(0) for k, v in every.items()}


def _received(name: str, v: Tensor, down: Tree) -> Tensor:
    have = down.get(name)
    return have if have is not None and have.shape == v.shape else torch.zeros_like(v)


def _private(secret: bytes, context: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(hmac.digest(secret, b"round key" + context, "sha256"))


def _mask(private: Any, public: bytes, group: bytes, count: int) -> np.ndarray:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    key = HKDF(SHA256(), 32, salt=group, info=b"pyrofl mask").derive(shared)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8")
