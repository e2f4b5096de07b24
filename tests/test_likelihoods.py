"""Distances between predictions, against torch's own distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.func import vmap

from pyrofl.likelihoods import KINDS, distribution, predictive_kl, soften


def outputs(kind: str, seed: int) -> Tensor:
    """Predictive parameters of five rows."""
    draw = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if kind == "categorical":
        return torch.log_softmax(draw, -1)
    return torch.stack([draw[:, 0], draw[:, 1].exp()], -1) if kind == "gaussian" else draw[:, :1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_of_predictions_is_that_of_their_distributions(kind: str) -> None:
    p, q = outputs(kind, 1), outputs(kind, 2)
    expected = kl_divergence(distribution(kind, p), distribution(kind, q))
    got = predictive_kl(kind, p, q)
    assert got.shape == (5,) and bool((got > 0).all())
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(vmap(lambda a, b: predictive_kl(kind, a, b))(p.unsqueeze(1), q.unsqueeze(1))[:, 0], got)
    assert not torch.allclose(got, predictive_kl(kind, q, p)), "it has a direction"
    torch.testing.assert_close(predictive_kl(kind, p, p), torch.zeros(5, dtype=torch.float64))


def test_softening_divides_the_log_odds() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    soft = soften("categorical", p.log(), 2.0).exp()
    torch.testing.assert_close(soft, p.sqrt() / p.sqrt().sum())
    assert soften("bernoulli", torch.tensor([[3.0]]), 4.0).tolist() == [[0.75]]
    for kind in ("gaussian", "poisson"):
        with pytest.raises(ValueError, match=f"a {kind} likelihood has none; use temperature = 1"):
            soften(kind, outputs(kind, 1), 2.0)
