"""VANEB: the nonparametric prior where the covariance of an estimate moves with the parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor
from torch.func import grad, vmap

from ..data import Data
from ..empirical_bayes.exchange import exchange
from ..empirical_bayes.exchange import log_normal as log_normals
from ..empirical_bayes.mixture import Mixture
from ..empirical_bayes.slots import to_numpy
from ..estimate import Estimator, log_normal
from ..method import Cohort, Reply
from ..tree import Tree
from .npeb import NPEB

_LENGTHS = (1.0, 4.0, 0.25, 16.0)  # of an atom's move: as many as there is room for are tried
_CHUNK = 64  # points whose Jacobians are held at once


@dataclass(frozen=True)
class VANEB(NPEB):
    """Empirical Bayes with V_k(theta) a function: argmax_G sum_k log integral N(z_k; theta, V_k(theta)) dG(theta).

    The first round is NPEB's. In each later one the server sends points: its atoms, where they may move next, and one
    chain a client, which climbs from that client's estimate. Each client answers with V_k and the gradient g_k of
    log N(z_k; theta, V_k(theta)) at the points; the server solves their weights exactly and moves point j by
    (sum_k q_kj V_kj^-1)^-1 sum_k q_kj g_kj, q_kj = N(z_k; a_j, V_kj) / f_k, uphill in the likelihood's derivative.
    `move = "fixed"` takes V_k^-1 (z_k - theta) for the gradient, which ignores how V_k moves, as the paper's
    alternation does. The new prior replaces the old one if those who answered are likelier under it; the old one's
    likelihood they report.

    Reference: Chang, Auddy, Paul, "Variance-Aware Nonparametric Empirical Bayes", algorithm 1.
    """

    move: Literal["gradient", "fixed"] = "gradient"

    travels: ClassVar[str] = "prior and points come down; an estimate, covariances and gradients at the points go up"

    def init(self, key: Tensor) -> Tree:
        start = super().init(key)
        return {**start, "points": start["prior/atoms"].repeat(2, 1)}

    def message(self, down: Tree) -> Tree:
        points = down["points"]
        wide = points.new_zeros(*points.shape, self.dimension)
        return {**super().message(down), "at": wide, "slope": points, "log_marginal": points.new_zeros(())}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        up, own, info = super().local(down, own, data, key)
        e, z, points = self.estimator(down, data), up["estimate"], down["points"]
        log_phi = lambda a: log_normal((z - a).unsqueeze(0), e.precision(a).unsqueeze(0)).squeeze(0)
        pull = lambda a: e.precision(a) @ (z - a)
        precision = vmap(e.precision, chunk_size=_CHUNK)(points)  # (P, d, d)
        slope = vmap(grad(log_phi) if self.move == "gradient" else pull, chunk_size=_CHUNK)(points)  # (P, d)
        log_marginal = torch.logsumexp(down["prior/weights"].log() + self._log_phi(e, z, down["prior/atoms"]), 0)
        more = {"at": torch.linalg.inv(precision), "slope": slope, "log_marginal": log_marginal}
        return Reply({**up, **more}, own, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        before = to_numpy(server["heard/yes"]) > 0  # (K,)
        if not before.any():
            new = super().aggregate(server, ups, cohort)
            atoms = to_numpy(new["prior/atoms"])[to_numpy(new["prior/weights"]) > 0]
            chains, tried = to_numpy(server["points"])[: self.clients], atoms
        else:
            new = self.hear(server, ups, cohort)
            points, first, back = np.unique(to_numpy(server["points"]), axis=0, return_index=True, return_inverse=True)
            z, at, slope = to_numpy(ups["estimate"]), to_numpy(ups["at"])[:, first], to_numpy(ups["slope"])[:, first]
            at = (at + np.swapaxes(at, 2, 3)) / 2
            out = exchange(z, points, at)
            step = _steps(out.weights, log_normals(z[:, None] - points, at), at, slope)
            kept = np.argsort(-out.weights)[: self.slots]
            kept = kept[out.weights[kept] > 1e-10 * out.weights.max()]
            out = exchange(z, points[kept], at[:, kept])  # the same weights, unless there was no room for all atoms
            if out.log_likelihood > float(ups["log_marginal"].double().mean()):
                prior = Mixture(points[kept], out.weights, log_likelihood=out.log_likelihood)
                new |= self.as_tree(server, prior)
            atoms = points[kept]
            tried = np.concatenate([atoms + length * step[kept] for length in _LENGTHS])
            chains = (points + step)[back.reshape(-1)[: self.clients]]
        fresh = (to_numpy(new["heard/yes"]) > 0) & ~before
        chains = np.where(fresh[:, None], to_numpy(new["heard/estimate"]), chains)
        many = [np.resize(some, (rows, self.dimension)) for some, rows in ((atoms, self.slots), (tried, self.clients))]
        points = np.concatenate([chains, *many])  # filled up by repeating
        return {**new, "points": torch.as_tensor(points).to(server["points"])}

    def log_kernel(self, e: Estimator, atoms: Tensor) -> Tensor:
        return self._log_phi(e, e.fit(atoms.new_zeros(atoms.shape[1]), steps=self.newton), atoms)

    def _log_phi(self, e: Estimator, z: Tensor, atoms: Tensor) -> Tensor:
        return log_normal(z - atoms, vmap(e.precision, chunk_size=_CHUNK)(atoms))


def _steps(weights: Any, log_phi: Any, variance: Any, slope: Any) -> Any:
    """How the points (P, d) move, from log N (K, P), covariances (K, P, d, d) and slopes (K, P, d) of all clients."""
    log_w = np.log(np.maximum(weights, 1e-300))
    q = softmax(log_phi - logsumexp(log_phi + log_w, axis=1, keepdims=True), axis=0)  # (K, P), shares of a point
    total = np.einsum("kj,kjab->jab", q, np.linalg.inv(variance))
    return np.linalg.solve(total, np.einsum("kj,kja->ja", q, slope)[..., None])[..., 0]
