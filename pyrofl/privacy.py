"""Client-level differential privacy: what a client sends is clipped and noised before it leaves the client."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from .method import Reply
from .methods.fedavg import FedAvg
from .random import fold, normal
from .tree import Tree, sqnorm

_SURELY = 10.0  # standard deviations: a normal number is beyond them with probability 1.5e-23
NEEDS = "privacy needs dp-accounting: pip install 'pyrofl[privacy]'"


@dataclass(frozen=True)
class Privacy:
    """up <- v0 + (up - v0) min(1, clip / |up - v0|) + clip noise N(0, I), with one norm over all tensors of the update.

    v0 is what the client received under the same names, 0 elsewhere. Nothing else of the client is sent: no scalars of
    its round, no row count, and no scores unless `scores` says so, which are outside the guarantee. Two clients'
    data, whatever they are, lead to clipped updates at most 2 clip apart: one message is a Gaussian mechanism of
    multiplier noise / 2 for whoever reads it, the server too; a mean of m messages, of sqrt(m) noise / 2 for those who
    see the mean alone. Replacing one client's whole data is what the guarantee is about.

    Reference: McMahan, Ramage, Talwar, Zhang, 2018 (clipping of updates); Mironov, 2017 (accounting).
    """

    clip: float
    noise: float
    delta: float = 1e-5
    scores: bool = False

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"privacy.{name} must be positive, got {value}: without it there is no guarantee")
        if not 0 < self.delta < 1:
            raise ValueError(f"privacy.delta must be in (0, 1), got {self.delta}")

    def check(self, method: FedAvg, down: Tree) -> None:
        """Refuse a method for which the guarantee would not hold."""
        name = type(method).__name__
        if method.weighting != "uniform":
            raise ValueError(
                f"privacy: {name} weighs clients by their rows, which are private too: use method.weighting = 'uniform'"
                + ("" if _has_choice(method) else f", which {name} does not have: use another method")
            )
        message = method.message(down)
        odd = [k for k, v in message.items() if not v.is_floating_point()]
        if odd:
            raise ValueError(f"privacy: {odd[0]!r} of the message is no real number, and noise cannot protect it")
        if not message:
            raise ValueError(f"privacy: {name} sends nothing, so there is nothing to protect: leave privacy out")

    def protect(self, up: Tree, down: Tree, noise: Tree) -> Tree:
        """The clipped update with `noise`, standard normals of its shape."""
        start = {k: _received(k, v, down) for k, v in up.items()}
        way = {k: v - start[k] for k, v in up.items()}
        length = torch.sqrt(sqnorm({k: v.double() for k, v in way.items()}))
        factor = torch.clamp(self.clip / length.clamp_min(1e-300), max=1.0)
        spread = self.clip * self.noise
        return {k: start[k] + factor.to(w.dtype) * w + spread * noise[k].to(w.dtype) for k, w in way.items()}

    def reply(self, reply: Reply, down: Tree, noise: Tree) -> Reply:
        """The reply as it may leave the client."""
        return Reply(self.protect(reply.up, down, noise), reply.own, {})

    def spent(self, messages: int) -> float:
        """Epsilon at `delta` of one client's messages, for whoever reads them."""
        return _epsilon(self.noise / 2, messages, self.delta)

    def spent_on_average(self, messages: int, clients: int) -> float:
        """Epsilon at `delta` for those who see the mean of `clients` messages each time, and no message.

        Who knows the noise of some of them counts the others alone.
        """
        return _epsilon(self.noise * math.sqrt(clients) / 2, messages, self.delta)

    def reach(self) -> float:
        """How far a protected value may be from where it started; one that is further is as good as impossible."""
        return self.clip * (1 + _SURELY * self.noise)


def keyed_noise(like: Tree, key: Tensor) -> Tree:
    """Noise that can be repeated, for simulations: whoever knows the run's seed can take it off again."""
    return {k: normal(fold(key, "privacy", k), v.shape, v.dtype) for k, v in like.items()}


def secret_noise(like: Tree, secret: bytes, *context: bytes) -> Tree:
    """Noise from a site's secret. The same message asked for again gets the same noise, and gives nothing more away.

    Uniform 53-bit fractions of the stream SHAKE-256(secret, context), through the normal quantile function.
    """
    counts = [v.numel() for v in like.values()]
    stream = hashlib.shake_256(b"".join(len(c).to_bytes(8, "little") + c for c in (secret, *context)))
    words = np.frombuffer(stream.digest(8 * sum(counts)), dtype="<u8")
    normals = ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    pieces = torch.from_numpy(normals).split(counts)
    return {k: piece.reshape(v.shape).to(v) for (k, v), piece in zip(like.items(), pieces)}


def _received(name: str, v: Tensor, down: Tree) -> Tensor:
    have = down.get(name)
    return have if have is not None and have.shape == v.shape else torch.zeros_like(v)


def _has_choice(method: FedAvg) -> bool:
    return type(method).__dataclass_fields__["weighting"].init


def _epsilon(multiplier: float, releases: int, delta: float) -> float:
    try:
        import dp_accounting
    except ModuleNotFoundError:
        raise ModuleNotFoundError(NEEDS, name="dp_accounting") from None
    if not releases:
        return 0.0
    accountant = dp_accounting.rdp.RdpAccountant()  # the multiplier is already that of replacing a client
    return float(accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases).get_epsilon(delta))
