"""The units of a network with one hidden layer, as vectors that can be matched."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Program
from ..tree import Tree


class HiddenUnits:
    """Hidden unit l as one vector (D + 1 + K): its incoming weights, its bias and its outgoing weights.

    `names` are those in the tree of the hidden weight (H, D), the hidden bias (H,), the output weight (K, H) and the
    output bias (K,). Networks of another form are refused.
    """

    def __init__(self, program: Program):
        like, path = program.theta0, program.path
        found = {(*path(k).split(".")[:2], v.dim()): k for k, v in like.items()}
        wanted = [("net", part, dim) for part, dim in (("body", 2), ("body", 1), ("head", 2), ("head", 1))]
        if len(like) != 4 or found.keys() != set(wanted):
            raise ValueError(
                "pfnm matches the units of one hidden layer that is fully connected, and this network is another: "
                f"it has {len(like)} tensors, not a weight and a bias in .body and in .head; use for example "
                "models.mlp:MLP with layers = 1"
            )
        if not self.zero_is_idle(program):
            raise ValueError("pfnm needs a hidden unit without weights to give 0: use for example ReLU or Tanh")
        self.names = tuple(found[w] for w in wanted)
        self.capacity, self.inputs = like[self.names[0]].shape

    @staticmethod
    def zero_is_idle(program: Program) -> bool:
        """Whether a unit whose weights are all 0 gives 0, so that its gradient is 0 too."""
        nothing = {k: torch.zeros_like(v) for k, v in program.theta0.items()}
        return not bool(program.features(nothing, program.example).any())

    def vectors(self, theta: Tree) -> Tensor:
        """(H, D + 1 + K)."""
        weight, bias, out, _ = self.names
        return torch.cat([theta[weight], theta[bias].unsqueeze(1), theta[out].T], 1)

    def network(self, vectors: Tensor) -> Tree:
        """The tensors of the given units, zero beyond the last; the output bias is not among them."""
        weight, bias, out, _ = self.names
        rest = vectors.new_zeros(self.capacity - len(vectors), vectors.shape[1])
        into, at, onward = torch.cat([vectors, rest]).split([self.inputs, 1, vectors.shape[1] - self.inputs - 1], 1)
        return {weight: into.contiguous(), bias: at.squeeze(1).contiguous(), out: onward.T.contiguous()}

    def narrow(self, theta: Tree, units: int) -> Tree:
        """`theta` with its first `units` units alone."""
        return {**theta, **self.network(self.vectors(theta)[:units])}
