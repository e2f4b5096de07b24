"""Trees as Flower's records: raw bytes with a dtype and a shape, so that nothing is parsed and nothing unpickled."""

from __future__ import annotations

import math

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from ..gate import Contract
from ..tree import Tree

RAW = "pyrofl.little-endian"  # the contiguous values of a tensor, without a header
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class Malformed(ValueError):
    """A record that is no tree, or not the tree that was asked for; the text names the tensor."""


def record(tree: Tree) -> ArrayRecord:
    """A tree as it travels."""
    return ArrayRecord({name: _array(v) for name, v in tree.items()})


def _array(v: Tensor) -> Array:
    flat = v.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if v.numel() else b""
    return Array(dtype=str(v.dtype).removeprefix("torch."), shape=tuple(v.shape), stype=RAW, data=data)


def tree(received: object, contract: Contract | None = None) -> Tree:
    """The tree of a record. What is declared is compared with the contract before a byte is read."""
    if not isinstance(received, ArrayRecord):
        raise Malformed(f"the message holds {type(received).__name__} where tensors should be")
    if contract is not None and (reason := contract.reason_of_names(received)):
        raise Malformed(reason)
    out = {name: _tensor(name, array, contract) for name, array in received.items()}
    if contract is not None and (reason := contract.reason(out)):
        raise Malformed(reason)
    return out


def _tensor(name: str, array: Array, contract: Contract | None) -> Tensor:
    dtype = _DTYPES.get(array.dtype)
    if dtype is None or array.stype != RAW:
        raise Malformed(f"tensor {name!r} is serialised as {array.stype!r}, {array.dtype!r}: not one of pyrofl's")
    shape = tuple(array.shape)
    if contract is not None and (reason := contract.reason_of_kind(name, shape, dtype)):
        raise Malformed(reason)
    if any(not isinstance(n, int) or n < 0 for n in shape):
        raise Malformed(f"tensor {name!r} declares the shape {shape}")
    expected = math.prod(shape) * dtype.itemsize
    if len(array.data) != expected:
        raise Malformed(f"tensor {name!r} came with {len(array.data)} bytes, {expected} expected: cut off or padded")
    if not expected:
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool and max(array.data) > 1:
        raise Malformed(f"tensor {name!r} holds bytes that are neither true nor false")
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(shape)
