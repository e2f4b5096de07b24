"""How wide the clients' posteriors are, layer by layer, and how far apart: a few numbers a client."""

from __future__ import annotations

import torch
from torch import Tensor

from .program import Program
from .random import bits, fold, root
from .store import Record
from .tree import Tree, only

_SIZE = 4096  # numbers kept of a client
_MOST = 200  # clients whose distances are kept


class Posteriors:
    """Summaries of the personal models that it is shown: `width`, `snr` (C, sites) and `distance` (C, C).

    width: median posterior scale of a site; snr: median |loc| / scale. distance: Wasserstein-2 distance of two
    mean-field posteriors, |loc - loc'|^2 + |scale - scale'|^2 = W^2, in which a point has scale 0. It is exact where
    locations and scales are at most 4096 numbers; else a random signed hash to 4096 numbers keeps each squared
    distance right on average, to about 2%. Of more than 200 clients, 200 evenly spaced ones are compared.

    Reference: Charikar, Chen, Farach-Colton, 2004, count sketch; Weinberger et al., 2009.
    """

    def __init__(self, program: Program, clients: int):
        self.program, self.seen = program, program.mean_field or program.point_mass
        step = -(-clients // _MOST)
        self.compared = list(range(0, clients, step))
        self.sites = program.sites if self.seen else ()
        self.width = torch.full((clients, len(self.sites)), torch.nan)
        self.snr = self.width.clone()
        self._vectors: dict[int, Tensor] = {}
        self._hash: tuple[Tensor, Tensor] | None = None

    def see(self, client: int, theta: Tree) -> None:
        """Take down a client's own model; guides without a location and scale for each site are passed over."""
        if not self.seen:
            return
        q = self.program.posterior(only(theta, self.program.theta0))
        if not self.program.point_mass:
            for i, site in enumerate(self.sites):
                loc, scale = q[site]
                self.width[client, i] = scale.median().cpu()
                self.snr[client, i] = (loc.abs() / scale).median().cpu()
        if client in self.compared:
            flat = torch.cat([v.reshape(-1) for pair in zip(*(q[s] for s in self.sites)) for v in pair])
            self._vectors[client] = self._short(flat.detach().double().cpu())

    def _short(self, flat: Tensor) -> Tensor:
        if len(flat) <= _SIZE:
            return flat
        if self._hash is None:
            drawn = bits(fold(root(0), "posteriors"), len(flat))
            self._hash = (drawn & (_SIZE - 1), torch.where((drawn >> 40) & 1 == 1, 1.0, -1.0).double())
        place, sign = self._hash
        return flat.new_zeros(_SIZE).index_add_(0, place, sign * flat)

    def record(self) -> Record:
        """What to keep: `client` (M,) and `distance` (M, M) of those compared, `width` and `snr` of all; the sites."""
        if not self._vectors:
            return Record({})
        ids = sorted(self._vectors)
        v = torch.stack([self._vectors[i] for i in ids])
        distance = torch.stack([(v - one).square().sum(1).sqrt() for one in v])
        values = {"client": torch.tensor(ids), "distance": distance, "width": self.width, "snr": self.snr}
        return Record(values, {"sites": "\n".join(self.sites)})
