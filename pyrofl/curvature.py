"""The diagonal of the Fisher information of a client's rows, at the posterior mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from .data import Data
from .likelihoods import information
from .program import Program
from .tree import Tree, only


def fisher_diagonal(program: Program, theta: Tree, data: Data, *, size: int = 16) -> Tree:
    """site -> sum over rows of diag(J' F J), with the shape of the site; never negative, 0 without rows.

    J is the Jacobian of a row's predictive parameters (see `likelihoods`), F their Fisher information: for canonical
    links the Gauss-Newton approximation of the Hessian of -log p(y | x, w). Needs memory for `size` rows times outputs
    times weights.
    """
    locs = only(theta, {program.loc_name(s) for s in program.sites})

    def row(at: Tree, x: Tensor) -> Tensor:
        return program.predict({**theta, **at}, x.unsqueeze(0), None).squeeze(0)  # (K,)

    total = {k: torch.zeros_like(v) for k, v in locs.items()}
    for batch in data.chunks(size):
        F = information(program.kind, program.predict(theta, batch.x, None)) * batch.live.unsqueeze(-1)  # (B, K)
        J = vmap(jacrev(row), (None, 0))(locs, batch.x)  # (B, K, ...)
        total = {k: v + torch.tensordot(F, J[k].square(), 2) for k, v in total.items()}
    return {s: total[program.loc_name(s)] for s in program.sites}
