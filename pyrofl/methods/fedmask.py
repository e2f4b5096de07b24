"""FedMask: sparse binary masks of a network that is never trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..fit import fit
from ..limits import inside, positive
from ..masks import Wire, all_inputs, masked, merged, mirrored, thinned
from ..method import Cohort, Reply
from ..optim import Adam, Optimizer
from ..random import root
from ..tree import Tree, only, pack, part, repeat
from .fedavg import FedAvg
from .fixed import Alike, Untuned


@dataclass(frozen=True)
class FedMask(Untuned, Alike, FedAvg):
    """Weights stay as they started, the same W0 for all; each client learns which of them to switch on.

    Client: scores s, mask m = 1[sigmoid(s) > tau], network W0 * m, by gradient steps on s, straight through the step
    function: dL/ds = dL/dm sigmoid'(s) (`through = "identity"`: dL/dm). After its first round it drops, in each tensor,
    the inputs of lowest mean score but for the share `keep`, for good: their masks stay 0. Sends m, and predicts with
    W0 * m. Server, for client i: among the clients that use an input, the majority of their masks, the client's own in
    a tie; the inputs that i has dropped stay dropped, and one that i alone uses keeps its mask. So every client is sent
    another mask. Where it differs from its own, the score is mirrored at the threshold.

    Tensors of two and more axes are masked; biases and normalisation layers stay as they started, and running
    statistics are the client's. Masks travel packed, eight to a byte (uint8), so that bytes count what is sent: one bit
    for each masked weight, up to seven more in all. W0 comes from the run's seed and does not travel.

    Our reading where the paper is open: the start at all ones, `first` above the threshold; dropping inputs (axis 1),
    seen by the server as columns without a one; the tie; and the mirrored scores. It is not Bayesian: a point guide.

    Reference: A. Li, Sun, Zeng, Zhang, H. Li, Chen, 2021, "FedMask".
    """

    keep: float = 0.5
    tau: float = 0.5
    first: float = 0.5
    through: Literal["sigmoid", "identity"] = "sigmoid"
    optimizer: Optimizer = field(default=Adam(5e-2))
    clients: int = 1  # taken from the run
    seed: int = 0  # of W0, taken from the run

    guide: ClassVar[str] = "delta"
    travels: ClassVar[str] = "a mask for this client, one bit a weight, down and up"
    stays: ClassVar[str] = "the scores behind the mask"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "switches the weights of one network on and off"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep <= 1:
            raise ValueError(f"method.keep must be above 0 and at most 1, got {self.keep}")
        inside("method", self, 0, 1, "tau")
        positive("method", self, "first")
        if not self.shapes:
            raise ValueError("fedmask masks tensors of two and more axes, and this model has none: use fedavg")

    @property
    def shapes(self) -> Tree:
        """What is masked: names, and tensors of those shapes."""
        names = [self.program.loc_name(s) for s in self.program.sites]
        return {k: self.program.theta0[k] for k in names if self.program.theta0[k].dim() >= 2}

    @property
    def threshold(self) -> float:
        """The score at which sigmoid(s) = tau."""
        return math.log(self.tau / (1 - self.tau))

    def frozen(self) -> Tree:
        """W0, and all else that stays as it started."""
        return self.program.init(root(self.seed))

    def network(self, W0: Tree, own: Tree) -> Tree:
        """W0 * m, with the client's running statistics."""
        scores, used, soft = part(own, "score"), part(own, "used"), self.through == "sigmoid"
        return {**W0, **only(own, self.program.buffers), **masked(W0, scores, used, self.threshold, sigmoid=soft)}

    def init(self, key: Tensor) -> Tree:
        K, like = self.clients, {k: v.to(key.device) for k, v in self.shapes.items()}
        ones = Wire(like).pack({k: torch.ones_like(v, dtype=torch.bool) for k, v in repeat(like, K).items()})
        return {"mask": ones, "sent": ones.clone(), "heard": torch.zeros(K, dtype=torch.bool, device=key.device)}

    def down(self, server: Tree, client: int) -> Tree:
        return {"mask": server["sent"][client]}

    def message(self, down: Tree) -> Tree:
        return down

    def common(self, server: Tree) -> Tree | None:
        return None

    def join(self, down: Tree) -> Tree:
        start = {k: torch.full_like(v, self.threshold + self.first) for k, v in self.shapes.items()}
        score = {k: mirrored(start[k], self.threshold, on) for k, on in Wire(start).unpack(down["mask"]).items()}
        used = {k: all_inputs(v) for k, v in score.items()}
        return {**pack(score=score, used=used), **only(self.program.theta0, self.program.buffers)}

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, W0, wire, used = self.program, self.frozen(), Wire(self.shapes), part(own, "used")
        sent = wire.unpack(down["mask"])
        begin = {k: mirrored(s, self.threshold, sent[k]) for k, s in part(own, "score").items()}

        def loss(score: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            return p.parts(self.network(W0, {**own, **pack(score=score)}), batch, k)

        o, epochs, size = self.optimizer, self.epochs, self.size
        score, info = fit(loss, begin, data, key, optimizer=o, epochs=epochs, size=size)
        used = thinned(score, used, self.keep)
        own = {**own, **pack(score=score, used=used)}
        own |= only(p.refresh(self.network(W0, own), data), p.buffers)
        m = {k: (s > self.threshold) & used[k] for k, s in score.items()}
        on = sum(v.sum() for v in m.values()) / sum(v.numel() for v in m.values())
        return Reply({"mask": wire.pack(m)}, own, {**info, "switched_on": torch.as_tensor(on)})

    def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
        wire, mask = Wire(self.shapes), server["mask"].index_copy(0, cohort.ids, ups["mask"])
        heard = server["heard"].index_fill(0, cohort.ids, True)
        sent = {k: merged(v, heard) for k, v in wire.unpack(mask).items()}
        return {"mask": mask, "sent": wire.pack(sent), "heard": heard}

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return self.network(self.frozen(), own)
