"""An estimated prior: atoms, weights, and how good it is. One type for every estimator of this package.

The nonparametric estimate is discrete; the Gaussian one has a single component with a `spread`, AdaMix has several.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from pyrofl.empirical_bayes.kernels import Array, Kernel
from pyrofl.empirical_bayes.posterior import Posterior
from pyrofl.empirical_bayes.sites import as_kernel

FORMAT = "pyrofl.empirical_bayes.Mixture"


@dataclass(frozen=True)
class Mixture:
    """The prior sum_j w_j N(a_j, C_j); C_j = 0 (`spread` is None) for a discrete one.

    `gap` is the certificate of a discrete prior: no prior whatever has a log-likelihood more than `gap` nats a site
    higher, as far as the search described by `search` can see; `gap_atoms` is the same over the present atoms alone.
    """

    atoms: Array  # (M, d)
    weights: Array  # (M,)
    spread: Array | None = None  # (M, d, d)
    log_likelihood: float = float("nan")  # nats a site
    gap_atoms: float = float("nan")  # nats a site
    gap: float = float("nan")  # nats a site
    search: str = ""
    status: str = ""
    steps: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    kernel: Kernel | None = field(default=None, repr=False, compare=False)

    @property
    def dimension(self) -> int:
        return self.atoms.shape[1]

    @property
    def converged(self) -> bool:
        return self.status.startswith("converged")

    @property
    def mean(self) -> Array:
        """E[theta] under the prior, (d,)."""
        return self.weights @ self.atoms

    @property
    def covariance(self) -> Array:
        """Cov[theta] under the prior, (d, d)."""
        gap = self.atoms - self.mean
        between = np.einsum("j,ja,jb->ab", self.weights, gap, gap)
        return between if self.spread is None else between + np.einsum("j,jab->ab", self.weights, self.spread)

    @cached_property
    def sites(self) -> Posterior:
        """The posteriors of the sites the prior was estimated from."""
        if self.kernel is None:
            raise ValueError("a stored prior keeps no sites: call posterior(estimates, covariance)")
        return Posterior(self, self.kernel)

    def posterior(self, estimates: Array | Kernel, covariance: Array | None = None) -> Posterior:
        """The posteriors of any sites under this prior: `posterior(z, V)`, or `posterior(kernel)` of a family."""
        return Posterior(self, as_kernel(estimates, covariance))

    def save(self, path: str | Path) -> None:
        """Write the prior as JSON; the sites stay out of it."""
        record = {
            "format": FORMAT,
            "version": 1,
            "atoms": self.atoms.tolist(),
            "weights": self.weights.tolist(),
            "spread": None if self.spread is None else self.spread.tolist(),
            "log_likelihood": _number(self.log_likelihood),
            "gap_atoms": _number(self.gap_atoms),
            "gap": _number(self.gap),
            "search": self.search,
            "status": self.status,
            "steps": self.steps,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }
        Path(path).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Mixture:
        """Read what `save` wrote; the numbers come back bit for bit."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not a JSON file ({error}); a prior is written by Mixture.save") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path}: not a stored prior; it must be a JSON object with format {FORMAT!r}")
        if record.get("version") != 1:
            raise ValueError(f"{path}: version {record.get('version')} of the format is not known, only 1")
        atoms, weights = np.array(record["atoms"], dtype=float), np.array(record["weights"], dtype=float)
        spread = None if record["spread"] is None else np.array(record["spread"], dtype=float)
        if (
            atoms.ndim != 2
            or weights.shape != atoms.shape[:1]
            or (spread is not None and spread.shape != (*atoms.shape, atoms.shape[1]))
        ):
            shapes = f"atoms {atoms.shape}, weights {weights.shape}, spread {None if spread is None else spread.shape}"
            raise ValueError(f"{path}: the shapes do not fit together: {shapes}")
        if not (np.isfinite(atoms).all() and (weights >= 0).all() and abs(weights.sum() - 1.0) < 1e-9):
            raise ValueError(
                f"{path}: atoms must be finite, weights non-negative with sum 1 (sum is {weights.sum():.6g})"
            )
        number = {
            k: float("nan") if record[k] is None else float(record[k]) for k in ("log_likelihood", "gap_atoms", "gap")
        }
        return cls(
            atoms,
            weights,
            spread,
            log_likelihood=number["log_likelihood"],
            gap_atoms=number["gap_atoms"],
            gap=number["gap"],
            search=str(record["search"]),
            status=str(record["status"]),
            steps=int(record["steps"]),
            seconds=float(record["seconds"]),
            notes=tuple(record["notes"]),
        )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
