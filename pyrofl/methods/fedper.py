"""FedPer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .partial import Partial


@dataclass(frozen=True)
class FedPer(Partial):
    """A shared body under private heads, trained together.

    (b_k, h_k) minimise f_k from (b, h_k); b <- sum_k (n_k / n) b_k. The head is the network's `.head`, the body all
    else: also the noise of the likelihood, latent scales of the prior and running statistics. A client predicts with
    the shared body as it is now and its own head of its last round; one never seen before has the head that all start
    with, unless `finetune` trains it (`finetune_part = "head"`). A Normal guide gives a posterior of both parts.

    Reference: Arivazhagan, Aggarwal, Singh, Choudhary, 2019, "Federated Learning with Personalization Layers".
    """

    travels: ClassVar[str] = "all but the head, down and up"
    stays: ClassVar[str] = "the head"
    guides: ClassVar[tuple[str, ...]] = ("delta", "normal")
    guides_because: ClassVar[str] = "shares a part of the network alone, and this guide does not keep the parts apart"

    @property
    def mine(self) -> frozenset[str]:
        return self.program.names("head")
