"""FedAMP: attentive message passing between personal models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Data
from ..limits import positive
from ..method import Cohort, Reply
from ..mixing import attention
from ..tree import Tree, only, pack, part, put, repeat
from .fedavg import FedAvg
from .fixed import Alike, Untuned

_OTHERS = "report/off_diagonal"  # mean weight that a client's message gives to the other clients


@dataclass(frozen=True)
class FedAMP(Untuned, Alike, FedAvg):
    """Personal models that attract each other, similar ones more; the server keeps all of them.

    Server: u_i = sum_j xi_ij w_j, sent to client i alone; rows of xi add up to 1 and xi_ii takes what the others leave.
    Client: w_i minimises f_i(w) + (mu / 2) ||w - u_i||^2, mu = lambda / alpha of the paper, by local steps from u_i;
    sends w_i and predicts with it. For j != i, d_ij = ||w_i - w_j||^2 over all trained tensors, `attention` is

    - "median": xi_ij = alpha / (K - 1) exp(-d_ij / s), s = sigma times the median distance of two clients. Distances
      of networks are large, and exp(-d / sigma) of a fixed sigma is 0: the method would be local training;
    - "absolute": xi_ij = alpha / sigma exp(-d_ij / sigma), the paper's; alpha (K - 1) <= sigma keeps xi_ii >= 0;
    - "cosine": xi_ij = alpha softmax_j(sigma cos(w_i, w_j)), the paper's HeurFedAMP with xi_ii = 1 - alpha.

    Only clients heard of take part, K of them; a client not heard of yet gets their mean. With a Normal guide d is over
    locations and unconstrained scales, and u_i averages locations and scales. `report/off_diagonal` is the mean of
    1 - xi_ii. Running statistics are averaged like weights.

    Reference: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, 2021, algorithms 1 and 2.
    """

    attention: Literal["median", "absolute", "cosine"] = "median"
    alpha: float = 0.5
    sigma: float = 1.0
    mu: float = 0.1
    clients: int = 1  # taken from the run

    guide: ClassVar[str] = "delta"
    travels: ClassVar[str] = "a mean made for this client down, its own model up"
    stays: ClassVar[str] = "the client's model; the server keeps all of them"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("method", self, "sigma")
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"method.mu must be 0 or positive, got {self.mu}")
        most = self.sigma / max(self.clients - 1, 1) if self.attention == "absolute" else 1.0
        if not 0 < self.alpha <= most:
            raise ValueError(
                f"method.alpha must be above 0 and at most {most:g}, got {self.alpha}: "
                "a client's own weight would be negative"
            )

    def init(self, key: Tensor) -> Tree:
        theta, K = super().init(key), self.clients
        eye = torch.eye(K, dtype=torch.float64, device=key.device)
        heard = torch.zeros(K, dtype=torch.bool, device=key.device)
        return {**pack(model=repeat(theta, K)), "attention": eye, "heard": heard, _OTHERS: eye.new_zeros(())}

    def down(self, server: Tree, client: int) -> Tree:
        return self.average(part(server, "model"), server["attention"][client])

    def common(self, server: Tree) -> Tree | None:
        return None

    def join(self, down: Tree) -> Tree:
        return down

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        w, info = self.fit(self.program.parts, down, data, key, pull=(self.mu, down))
        w = self.program.refresh(w, data)
        return Reply(w, w, info)

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        models, heard = put(part(server, "model"), cohort.ids, ups), server["heard"].index_fill(0, cohort.ids, True)
        xi = self.weights(models, heard)
        others = (1 - xi.diagonal())[heard].mean()
        return {**pack(model=models), "attention": xi, "heard": heard, _OTHERS: others}

    def weights(self, models: Tree, heard: Tensor) -> Tensor:
        """xi (K, K)."""
        every = [v.reshape(len(v), -1).double() for v in only(models, self.program.trainable).values()]
        return attention(torch.cat(every, 1), heard, self.attention, alpha=self.alpha, sigma=self.sigma)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return own
