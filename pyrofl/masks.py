"""Binary masks of weights: learned straight through a threshold, thinned out, merged, and packed for the wire.

A weight has shape (out, in, ...): axis 1 counts its inputs, and a mask drops an input where it is 0 all along it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .tree import Ravel, Tree


def switched(scores: Tensor, threshold: float, *, sigmoid: bool) -> Tensor:
    """1 where a score is above the threshold, else 0, with the derivative of sigmoid(s), or of s, straight through."""
    soft = torch.sigmoid(scores) if sigmoid else scores
    return (scores > threshold).to(scores.dtype) + (soft - soft.detach())


def mirrored(scores: Tensor, threshold: float, on: Tensor) -> Tensor:
    """Scores on the side of the threshold that `on` says, as far from it as they were."""
    return torch.where((scores > threshold) == on, scores, 2 * threshold - scores)


def all_inputs(weight: Tensor) -> Tensor:
    """(1, in, 1, ...) bool: every input of a weight is used."""
    return torch.ones([n if d == 1 else 1 for d, n in enumerate(weight.shape)], dtype=torch.bool, device=weight.device)


def strongest_inputs(scores: Tensor, share: float) -> Tensor:
    """(1, in, 1, ...) bool: the `share` of inputs of highest mean score, at least one; the first in a tie."""
    mean = scores.mean([d for d in range(scores.dim()) if d != 1], keepdim=True)
    rank = mean.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return rank < math.ceil(share * scores.shape[1] - 1e-9)


def masked(weights: Tree, scores: Tree, used: Tree, threshold: float, *, sigmoid: bool) -> Tree:
    """The weights that `scores` switch on among the inputs `used`, with a derivative in the scores."""
    on = {k: switched(s, threshold, sigmoid=sigmoid) for k, s in scores.items()}
    return {k: weights[k] * v * used[k] for k, v in on.items()}


def thinned(scores: Tree, used: Tree, share: float) -> Tree:
    """The inputs used from now on: the strongest `share` of each tensor, or those of before once any was dropped."""
    whole = torch.stack([v.all() for v in used.values()]).all()
    return {k: torch.where(whole, strongest_inputs(scores[k], share), v) for k, v in used.items()}


def merged(masks: Tensor, counts: Tensor) -> Tensor:
    """For each of K clients, the majority of those that use an input; bool, (K, out, in, ...) -> (K, out, in, ...).

    Only the clients in `counts` (K,) bool have a vote. A client's own mask decides a tie, and stays 0 on the inputs
    that it does not use.
    """
    uses = masks.any(1, keepdim=True)  # (K, 1, in, ...)
    for d in range(3, masks.dim()):
        uses = uses.any(d, keepdim=True)
    voter = counts.reshape(-1, *[1] * (masks.dim() - 1))
    yes, of = (masks & voter).sum(0), (uses & voter).sum(0)  # (out, in, ...), (1, in, 1, ...)
    return torch.where(2 * yes == of, masks, 2 * yes > of) & uses


class Wire:
    """Masks of the names and shapes of `like` as one vector of bytes, (..., B) uint8: one bit a weight."""

    def __init__(self, like: Tree):
        self.ravel = Ravel(like)

    def pack(self, masks: Tree) -> Tensor:
        """Leaves (..., *shape) bool -> (..., B)."""
        leaves = [masks[k].flatten(masks[k].dim() - len(s)) for k, s in zip(self.ravel.names, self.ravel.shapes)]
        return pack_bits(torch.cat(leaves, -1))

    def unpack(self, packed: Tensor) -> Tree:
        """(..., B) -> leaves (..., *shape) bool."""
        pieces = torch.split(unpack_bits(packed, sum(self.ravel.sizes)), self.ravel.sizes, -1)
        return {k: v.unflatten(-1, s) for k, v, s in zip(self.ravel.names, pieces, self.ravel.shapes)}


def pack_bits(bits: Tensor) -> Tensor:
    """Booleans (..., P) as bytes (..., ceil(P / 8)), uint8, as `numpy.packbits` does; the last is filled with zeros."""
    spare = bits.new_zeros(*bits.shape[:-1], -bits.shape[-1] % 8)
    eights = torch.cat([bits, spare], -1).unflatten(-1, (-1, 8))
    return (eights.long() << _places(bits)).sum(-1).to(torch.uint8)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The first `count` booleans (..., count) of bytes (..., B)."""
    bits = (packed.long().unsqueeze(-1) >> _places(packed)) & 1
    return bits.flatten(-2)[..., :count].bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(7, -1, -1, device=like.device)
