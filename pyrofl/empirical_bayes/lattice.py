"""Do estimates lie on a lattice? Log odds and rates of small counts take few values; a normal density does not know.

Atoms on the lattice raise the density of held-out sites as well, since those lie on the same points: cross-validation
sees nothing wrong, and intervals come out far too short. The exact likelihood of the counts is not deceived.
"""

from __future__ import annotations

import numpy as np

from pyrofl.empirical_bayes.kernels import Kernel

NEAR = 0.1  # standard errors
MANY = 0.25  # of the sites share an estimate; of the near pairs are equal


def lattice_note(kernel: Kernel) -> tuple[str, ...]:
    """A warning where a quarter of the estimates, and of the pairs nearer than a tenth of an error, are equal.

    A column rounded to much less than its errors has many equal values too, but they are a small part of the near ones.
    """
    if not kernel.normal:
        return ()
    for i in range(kernel.dimension):
        count = np.unique(kernel.z[:, i], return_counts=True)[1]
        shared = count[count > 1].sum() / kernel.sites
        if kernel.sites >= 2 and shared > MANY and equal_share(kernel, i) > MANY:
            where = f" in coordinate {i}" if kernel.dimension > 1 else ""
            return (
                f"{shared:.0%} of the estimates share their value{where}, as those of small counts do: under normal "
                "errors intervals may be far too short; give the counts, whose likelihood is exact",
            )
    return ()


def equal_share(kernel: Kernel, coordinate: int) -> float:
    """Of the pairs of sites within NEAR standard errors of each other, the share whose estimates are equal."""
    variance = np.diagonal(kernel.plugin(), axis1=1, axis2=2)[:, coordinate]
    some = (variance > 0) & np.isfinite(variance)
    order = np.argsort(kernel.z[some, coordinate])
    z, reach = kernel.z[some, coordinate][order], NEAR * np.sqrt(variance[some][order])
    pairs = lambda width: float((np.searchsorted(z, z + width, "right") - np.searchsorted(z, z - width)).sum() - len(z))
    near = pairs(reach)
    return pairs(np.zeros(len(z))) / near if near else 0.0
