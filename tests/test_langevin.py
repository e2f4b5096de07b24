"""Sampling by `fit`: the stationary law of a quadratic, and what is logged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyrofl.data import Batch, Data
from pyrofl.fit import fit
from pyrofl.langevin import langevin
from pyrofl.optim import SGD, Adam
from pyrofl.random import root
from pyrofl.tree import Tree

CURVATURE, CENTER, CHAINS = 2.0, 1.5, 4000


def quadratic(theta: Tree, batch: Batch, key: Tensor) -> Tensor:
    """A mean over n rows, so that the posterior of each of many independent coordinates is N(1.5, 1 / (2 n))."""
    return 0.5 * CURVATURE * (theta["w"] - CENTER).square().sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("n", "temperature"), [(10, 1.0), (40, 1.0), (10, 0.25)])
def test_the_stationary_law_is_the_posterior(momentum: float, n: int, temperature: float) -> None:
    o = SGD(0.01 * (1 - momentum), momentum=momentum)
    data = Data.of(torch.zeros(n, 1, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))
    start = {"w": torch.zeros(CHAINS, dtype=torch.float64), "still": torch.ones(2, dtype=torch.float64)}
    names = frozenset({"w"})
    loss = langevin(quadratic, o, names, temperature=temperature)
    end, info = fit(loss, start, data, root(1), optimizer=o, epochs=400, size=n, names=names)
    variance = temperature / (CURVATURE * n)
    assert float(end["w"].mean()) == pytest.approx(CENTER, abs=5 * (variance / CHAINS) ** 0.5 + 1e-3)
    assert float(end["w"].var()) == pytest.approx(variance, rel=0.1)
    assert torch.equal(end["still"], start["still"])
    assert float(info["loss"]) == pytest.approx(0.5 * CURVATURE * variance * CHAINS, rel=0.15), "without the noise"


def test_without_temperature_it_is_descent() -> None:
    o = SGD(0.05, momentum=0.5)
    data = Data.of(torch.zeros(3, 1), torch.zeros(3))
    start, names = {"w": torch.zeros(5)}, frozenset({"w"})
    more = {"optimizer": o, "epochs": 7, "size": 3}
    cold, _ = fit(langevin(quadratic, o, names, temperature=0.0), start, data, root(1), **more)
    torch.testing.assert_close(cold["w"], fit(quadratic, start, data, root(1), **more)[0]["w"])


def test_steps_of_unknown_noise_are_refused() -> None:
    with pytest.raises(ValueError, match="sampling needs steps of SGD, whose noise is known, not Adam"):
        langevin(quadratic, Adam(1e-3), frozenset({"w"}))
