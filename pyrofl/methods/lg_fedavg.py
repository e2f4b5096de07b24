"""LG-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .partial import Partial


@dataclass(frozen=True)
class LGFedAvg(Partial):
    """Private lower layers, each client's own representation, under a shared head; trained together.

    (l_k, u_k) minimise f_k from (l_k, u); u <- mean_k u_k. The lower layers are the network's `.body`: where it ends is
    the network's choice. The authors start all clients from a model trained by FedAvg; here every client's layers start
    alike, from the run's seed. A client predicts with its own layers of its last round under the head as it is now.

    Reference: Liang, Liu, Ziyin et al., 2020, "Think Locally, Act Globally".
    """

    weighting: Literal["rows", "uniform"] = "uniform"

    travels: ClassVar[str] = "all but the body, down and up"
    stays: ClassVar[str] = "the body"
    guides: ClassVar[tuple[str, ...]] = ("delta", "normal")
    guides_because: ClassVar[str] = "shares a part of the network alone, and this guide does not keep the parts apart"

    @property
    def mine(self) -> frozenset[str]:
        return self.program.names("body")
