"""Distances between predictions against torch's own distributions, fitted intercepts against scipy's optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import kl_divergence
from torch.func import vmap

from pyrofl.likelihoods import KINDS, distribution, predictive_kl, soften, with_intercept


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


def rows_and_outputs(kind: str, draws: int = 3, rows: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """(out (draws, rows, K), y, weight); the last four rows do not count."""
    g = torch.Generator().manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    weight = (torch.arange(rows) < rows - 4).double() / (rows - 4)
    x = normal(rows)
    if kind == "categorical":
        return torch.log_softmax(normal(draws, rows, 3), -1), torch.randint(2, (rows,), generator=g), weight
    if kind == "bernoulli":
        return normal(draws, rows, 1), (x > 0.8).double(), weight
    if kind == "gaussian":
        return torch.stack([normal(draws, rows), 0.5 + normal(draws, rows).abs()], -1), 3.0 + x, weight
    return normal(draws, rows, 1), x.abs().mul(4).round(), weight


@pytest.mark.parametrize("kind", KINDS)
def test_the_fitted_intercept_is_the_one_of_a_general_optimizer(kind: str) -> None:
    out, y, weight = rows_and_outputs(kind)
    wide = out.shape[-1] if kind == "categorical" else 1

    def loss(b: np.ndarray) -> float:
        shift = torch.tensor(b)
        shifted = torch.stack([out[..., 0] + shift, out[..., 1]], -1) if kind == "gaussian" else out + shift
        nll = -distribution(kind, shifted).log_prob(y)
        fit = float((nll * weight).sum(-1).mean())
        if kind == "poisson":  # half an event more
            fit -= 0.5 / 36 * b[0]
        if kind in ("categorical", "bernoulli"):  # one more row, spread over all classes
            p = distribution(kind, shifted).log_prob
            every = range(3) if kind == "categorical" else (0.0, 1.0)
            spread = [-(p(torch.full_like(y, c)) * weight).sum(-1).mean() for c in every]
            fit += float(sum(spread)) / len(spread) / 36
        return fit

    best = minimize(loss, np.zeros(wide), method="BFGS", options={"gtol": 1e-9})
    fitted = with_intercept(kind, out, y, weight, steps=500)
    shift = (fitted - out)[..., :1] if kind == "gaussian" else fitted - out
    shift = shift - shift[..., :1] if kind == "categorical" else shift  # log-probabilities add up to 1 in every row
    torch.testing.assert_close(shift, shift[:1, :1].expand_as(shift))  # the same for every row and draw
    assert loss(shift[0, 0].numpy()) == pytest.approx(best.fun, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_differ_in_their_intercept_are_one_after_it_is_fitted(kind: str) -> None:
    out, y, weight = rows_and_outputs(kind)
    other = out.clone()
    other[..., 0] += 1.5
    other[:, -4:] = 7.0  # rows that do not count
    fitted = [with_intercept(kind, o, y, weight, steps=300)[:, :-4] for o in (out, other)]
    if kind == "categorical":
        torch.testing.assert_close(fitted[0].exp().sum(-1), torch.ones(3, 36, dtype=torch.float64))
    torch.testing.assert_close(fitted[0], fitted[1], rtol=1e-7, atol=1e-7)


def test_every_step_of_iterative_scaling_raises_the_likelihood() -> None:
    out, y, weight = rows_and_outputs("categorical")
    after = [with_intercept("categorical", out, y, weight, steps=s) for s in (0, 1, 2, 5, 30)]
    target = (36 * torch.bincount(y[:-4], minlength=3) / 36 + 1 / 3) / 37
    gained = [float((((o * weight[:, None]).sum(1)).mean(0) * target).sum()) for o in after]
    assert gained == sorted(gained) and gained[0] < gained[-1]
    assert gained[-1] - gained[-2] < 1e-3 * (gained[-1] - gained[0])
