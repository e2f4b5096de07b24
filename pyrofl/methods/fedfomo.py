"""FedFomo: every client mixes those of the others' models that lower its own validation loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Data
from ..limits import at_least, between, inside
from ..method import Cohort, Reply
from ..mixing import first_order_weights, picked
from ..random import fold, generator
from ..tree import Tree, only, pack, part, put, repeat, unstack
from .fedavg import FedAvg
from .fixed import Alike, Untuned


@dataclass(frozen=True)
class FedFomo(Untuned, Alike, FedAvg):
    """First-order model optimisation: personal models, mixed at the client by what they do on its held-out rows.

    Client i holds z, where its last round began, and theta_i, where it ended; it receives M others' models. For its own
    and each of them r_n = (L(z) - L(theta_n)) / ||theta_n - z||, L the mean negative log-likelihood of the last
    `holdout` of its own training rows, the norm over all trained tensors. Weights are max(0, r_n), scaled to add up to
    1 (all 0 where no model is better than z), or softmax_n r_n. z <- z + sum_n w_n (theta_n - z); theta_i is z after
    local epochs on the other rows; theta_i and the w_n of the others are sent. A client with no held-out row goes on
    from its theta_i. r_n of a model that is z itself is 0.

    Server: keeps all models and P_in, the sum of the weights so far; sends client i the models of highest P_in, ties at
    random, each place going with probability max(0, epsilon - decay * round) to any other client instead. Until M
    others were heard of, the rest of the M places repeats the client's own model, marked as not known. A new client
    starts from the first model it is sent.

    There is no global model, and clients see each other's models as they are. With a Normal guide L is that of the
    posterior mean, and mixing averages locations and scales.

    Reference: Zhang, Sapra, Fidler, Yeung, Alvarez, 2021, equations 3 and 4 and section 3.2.
    """

    models: int = 5
    normalise: Literal["positive", "softmax"] = "positive"
    holdout: float = 0.2
    epsilon: float = 0.3
    decay: float = 0.05
    clients: int = 1  # taken from the run

    guide: ClassVar[str] = "delta"
    travels: ClassVar[str] = "some clients' models down; its own model and the weights it gave them up"
    stays: ClassVar[str] = "the client's model; the server keeps all of them"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models < 1:
            raise ValueError(f"method.models must be at least 1, got {self.models}: alone is training without others")
        inside("method", self, 0, 1, "holdout")
        between("method", self, 0, 1, "epsilon")
        at_least("method", self, 0, "decay")

    @property
    def places(self) -> int:
        """M, the models that a client is sent."""
        return min(self.models, max(self.clients - 1, 1))

    def init(self, key: Tensor) -> Tree:
        ids = torch.arange(self.clients, device=key.device)
        return {
            **pack(model=repeat(super().init(key), self.clients)),
            "heard": torch.zeros_like(ids, dtype=torch.bool),
            "affinity": torch.zeros(len(ids), len(ids), dtype=torch.float64, device=key.device),
            "picks": ids.unsqueeze(1).repeat(1, self.places),  # (K, M)
        }

    def down(self, server: Tree, client: int) -> Tree:
        picks = server["picks"][client]
        return {**pack(other={k: v[picks] for k, v in part(server, "model").items()}), "known": picks != client}

    def message(self, down: Tree) -> Tree:
        return {**unstack(part(down, "other"), 0), "weights": torch.zeros_like(down["known"], dtype=torch.float64)}

    def common(self, server: Tree) -> Tree | None:
        return None

    def join(self, down: Tree) -> Tree:
        first = unstack(part(down, "other"), 0)
        return {**first, **pack(before=first)}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        train, held = data.split(self.holdout)
        z, w = self.mix(down, own, held)
        theta, info = self.fit(self.program.parts, z, train, key)
        theta = self.program.refresh(theta, data)
        return Reply({**theta, "weights": w[1:]}, {**theta, **pack(before=z)}, {**info, "own_weight": w[0]})

    def mix(self, down: Tree, own: Tree, held: Data) -> tuple[Tree, Tensor]:
        """The new z, and the weights (1 + M,) of the client's own model and the others'."""
        p, z, mine = self.program, part(own, "before"), only(own, self.program.theta0)
        every = {k: torch.cat([mine[k].unsqueeze(0), v]) for k, v in part(down, "other").items()}  # (1 + M, ...)
        known = torch.cat([torch.ones_like(down["known"][:1]), down["known"]])
        gaps = [(every[k] - z[k]).reshape(len(known), -1).double().square().sum(1) for k in sorted(p.trainable)]
        far = torch.stack(gaps).sum(0).sqrt()  # (1 + M,)
        fits = torch.stack([p.log_likelihood(unstack(every, n), held) for n in range(len(known))])
        w = first_order_weights(fits - p.log_likelihood(z, held), far, known, self.normalise)
        w = torch.where(held.n > 0, w, torch.eye(len(w), dtype=w.dtype, device=w.device)[0])
        with_z = {k: torch.cat([z[k].unsqueeze(0), v]) for k, v in every.items()}
        return self.average(with_z, torch.cat([(1 - w.sum()).clamp_min(0).unsqueeze(0), w])), w

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        ids, affinity = cohort.ids, server["affinity"].clone()
        affinity[ids.unsqueeze(1), server["picks"][ids]] += ups["weights"]
        heard = server["heard"].index_fill(0, ids, True)
        models = put(part(server, "model"), ids, only(ups, self.program.theta0))
        explore = max(self.epsilon - self.decay * cohort.round, 0.0)
        picks = self.picks(affinity, heard, explore, fold(cohort.key, "picks"))
        return {**pack(model=models), "heard": heard, "affinity": affinity, "picks": picks}

    def picks(self, affinity: Tensor, heard: Tensor, explore: float, key: Tensor) -> Tensor:
        """Whose models each client gets, (K, M)."""
        rows = picked(affinity.cpu().numpy(), heard.cpu().numpy(), self.places, explore, generator(key))
        return torch.from_numpy(rows).to(heard.device)

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return only(own, self.program.theta0)
