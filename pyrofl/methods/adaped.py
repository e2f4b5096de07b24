"""AdaPeD: personal models tied to the global one by their predictions, as strongly as the clients are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..data import Batch, Data
from ..fit import fit
from ..likelihoods import predictive_kl
from ..method import Reply
from ..tree import Tree, only, pack, part
from .fedavg import FedAvg
from .fixed import Unpooled, Untuned


@dataclass(frozen=True)
class AdaPeD(Untuned, Unpooled, FedAvg):
    """Adaptive personalisation by distillation: min f_k(theta) + log(2 psi) / 2 + KD(mu, theta) / (2 psi).

    KD is the mean over the client's rows of KL(p_mu || p_theta), the predictions of the global model mu against those
    of the personal model theta; psi says how far clients are from mu. Client: gradient steps on theta, on its copy of
    mu and on psi; sends mu and psi, keeps and predicts with theta, which starts at mu. Server: averages mu and psi.

    Our reading where the paper is open: the three steps are taken together, from the same point and by one `optimizer`;
    that of psi is on log psi, thrown back at log `floor`: at psi = 0 theta could not differ from mu. In KD both models
    see the batch as in training. The logged loss is the whole objective, `distance` is KD.

    KD compares two predictions, not two distributions over networks: a point guide.

    Reference: Ozkara, Girgis, Data, Diggavi, 2023, "AdaPeD".
    """

    first_psi: float = 1.0
    floor: float = 0.1
    weighting: Literal["rows", "uniform"] = "uniform"

    guide: ClassVar[str] = "delta"
    travels: ClassVar[str] = "the global model and one number, down and up"
    stays: ClassVar[str] = "the personal model"
    guides: ClassVar[tuple[str, ...]] = ("delta",)
    guides_because: ClassVar[str] = "compares the predictions of two networks"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.floor < self.first_psi < math.inf:
            raise ValueError(
                f"method.first_psi must be finite and above method.floor, and that above 0; got {self.first_psi} and "
                f"{self.floor}"
            )

    def init(self, key: Tensor) -> Tree:
        mu = super().init(key)
        return {**mu, "psi": next(iter(mu.values())).new_tensor(self.first_psi)}

    def message(self, down: Tree) -> Tree:
        return down

    def join(self, down: Tree) -> Tree:
        return only(down, self.program.theta0)

    def local(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Reply:
        p, buffers = self.program, self.program.buffers
        above = (down["psi"] / self.floor).log()
        models = pack(theta=only(own, p.trainable), mu=only(down, p.trainable))

        def objective(every: Tree, batch: Batch, k: Tensor) -> tuple[Tensor, Tree]:
            theta, mu = {**only(own, buffers), **part(every, "theta")}, {**only(down, buffers), **part(every, "mu")}
            value, scalars = p.parts(theta, batch, k)
            outs = [p.predict(model, batch.x, None, rows=batch.distinct) for model in (mu, theta)]
            kd, psi = (batch.weight * predictive_kl(p.kind, *outs)).sum(), self.psi(every["above"])
            return value + (2 * psi).log() / 2 + kd / (2 * psi), {**scalars, "distance": kd.detach()}

        o, epochs, size = self.optimizer, self.epochs, self.size
        every, info = fit(objective, {**models, "above": above}, data, key, optimizer=o, epochs=epochs, size=size)
        theta, mu = ({**only(old, buffers), **part(every, of)} for old, of in ((own, "theta"), (down, "mu")))
        psi = self.psi(every["above"])
        return Reply({**p.refresh(mu, data), "psi": psi}, p.refresh(theta, data), {**info, "psi": psi})

    def psi(self, above: Tensor) -> Tensor:
        """floor exp |above|, which moves away from 0 too (the derivative of |x| there is none)."""
        return self.floor * torch.where(above < 0, -above, above).exp()

    def personal(self, down: Tree, own: Tree, data: Data, key: Tensor) -> Tree:
        return own
