"""A client's own estimate of a small model and what it says about it: penalised maximum likelihood and information.

Parameters are one vector theta (d,), laid out by a `Ravel`; all rows are used at once. Everything works under `vmap`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from .data import Batch, Data
from .likelihoods import distribution, information
from .program import Program
from .random import is_mapped
from .tree import Ravel, Tree

_SHORTEST = 10  # halvings of a Newton step that are tried
_CLOSE = 1e-10  # a move after which there is nothing to gain (one client at a time stops here)


def log_normal(gap: Tensor, precision: Tensor) -> Tensor:
    """log N(gap; 0, P^-1) of gaps (M, d) and precisions (M, d, d), (M,) in nats."""
    square = torch.einsum("ma,mab,mb->m", gap, precision, gap)
    return 0.5 * (torch.linalg.slogdet(precision)[1] - square - gap.shape[-1] * math.log(2 * math.pi))


@dataclass(frozen=True)
class Estimator:
    """log p(rows | theta) - ridge |theta|^2 / 2 of one client, with `held` tensors (running statistics) as they are."""

    program: Program
    ravel: Ravel
    held: Tree
    data: Data
    ridge: float

    def predict(self, theta: Tensor, x: Tensor) -> Tensor:
        """Predictive parameters (N, K) of rows x (N, ...)."""
        return self.program.predict(self.ravel.tree(theta, self.held), x, None)

    @property
    def rows(self) -> Batch:
        """All rows as one batch; padding is zero and not live."""
        every = torch.arange(len(self.data.x), device=self.data.x.device)
        return self.data.take(every, torch.ones_like(every, dtype=torch.bool))

    def objective(self, theta: Tensor) -> Tensor:
        """What `fit` minimises, () in nats."""
        rows = self.rows
        fn = distribution(self.program.kind, self.predict(theta, rows.x), validate_args=False)
        log_p = torch.where(rows.live, fn.log_prob(rows.y), 0)  # (N,)
        return self.ridge / 2 * theta.square().sum() - log_p.sum()

    def precision(self, theta: Tensor) -> Tensor:
        """sum_i I_i(theta) + ridge I, (d, d): the inverse of V(theta), the working covariance of the estimate."""
        rows = self.rows
        weight = information(self.program.kind, self.predict(theta, rows.x)) * rows.live.unsqueeze(-1)  # (N, K)
        one_row = lambda t, x: self.predict(t, x.unsqueeze(0)).squeeze(0)
        J = vmap(jacrev(one_row), (None, 0))(theta, rows.x)  # (N, K, d)
        fisher = torch.einsum("nk,nka,nkb->ab", weight, J, J)
        return fisher + self.ridge * torch.eye(len(theta), dtype=fisher.dtype, device=fisher.device)

    def fit(self, start: Tensor, *, steps: int) -> Tensor:
        """argmin of the objective by at most `steps` steps of Fisher scoring, each the best of its halvings, (d,)."""
        sizes = torch.cat([start.new_zeros(1), 0.5 ** torch.arange(_SHORTEST, dtype=start.dtype, device=start.device)])
        theta = start
        for _ in range(steps):
            move = torch.linalg.solve(self.precision(theta), grad(self.objective)(theta))
            tries = theta - sizes.unsqueeze(1) * move  # (S, d)
            values = vmap(self.objective)(tries)
            best = torch.where(torch.isnan(values), torch.inf, values).argmin()
            theta = tries.index_select(0, best.reshape(1)).squeeze(0)
            if not is_mapped(theta) and float(move.abs().max()) < _CLOSE:
                break
        return theta
