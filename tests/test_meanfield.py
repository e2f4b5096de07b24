"""Pooling rules, natural parameters, KL and the floor of scales, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from pyrofl.meanfield import (
    POOLING,
    Posterior,
    divergence,
    gaussian_kl,
    inverse_scale,
    moments,
    natural,
    pool,
    positive_scale,
    shortened,
)


def t(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


TWO: Posterior = {"w": (t(0.0, 4.0), t(1.0, 2.0))}  # N(0, 1) and N(4, 2^2)
THREE_TO_ONE = t(3.0, 1.0)


def softplus_inverse(scale: float) -> float:
    return math.log(math.expm1(scale))


@pytest.mark.parametrize(
    ("rule", "loc", "scale"),
    [
        ("scale", 1.0, 1.25),  # (3 * 1 + 2) / 4
        ("variance", 1.0, math.sqrt(1.75)),  # (3 * 1 + 4) / 4
        ("mixture", 1.0, math.sqrt((3 * (1 + 1) + (4 + 9)) / 4)),  # the spread of the means counts
        ("unconstrained", 1.0, math.log1p(math.exp(0.75 * softplus_inverse(1) + 0.25 * softplus_inverse(2)))),
    ],
)
def test_two_gaussians_pool_to_the_numbers_of_the_rule(rule: str, loc: float, scale: float) -> None:
    m, s = pool(TWO, THREE_TO_ONE, rule)["w"]
    assert m.item() == pytest.approx(loc, rel=1e-12)
    assert s.item() == pytest.approx(scale, rel=1e-7)  # the floor of scales is 1e-8


def test_the_product_counts_the_prior_once() -> None:
    # prior N(1, 2^2): J0 = 1/4, h0 = 1/4; clients J = 1, 1/4 and h = 0, 1
    m, s = pool(TWO, t(1.0, 1.0), "product", prior={"w": (t(1.0), t(2.0))})["w"]
    J, h = 1 + 1 / 4 - 1 / 4, 0 + 1 - 1 / 4
    assert s.item() == pytest.approx(J**-0.5, rel=1e-12)
    assert m.item() == pytest.approx(h / J, rel=1e-12)


def test_the_product_of_exact_posteriors_is_the_posterior_of_all_rows() -> None:
    # mean of Normal rows with known noise 1, prior N(0, 3^2): client k has n_k rows with sum s_k
    prior, n, total = (t(0.0), t(3.0)), t(4.0, 7.0, 2.0), t(3.0, -1.0, 5.0)
    J = 1 / 9 + n
    q = {"w": (total / J, J.rsqrt())}
    m, s = pool(q, n, "product", prior={"w": prior})["w"]
    assert s.item() == pytest.approx((1 / 9 + 13) ** -0.5, rel=1e-12)
    assert m.item() == pytest.approx(7 / (1 / 9 + 13), rel=1e-12)


def test_a_client_of_weight_zero_takes_no_part_in_any_rule() -> None:
    three = {"w": (t(0.0, 4.0, 1e6), t(1.0, 2.0, 50.0))}
    for rule in POOLING:
        prior = {"w": (t(0.0), t(10.0))}
        with_it = pool(three, t(3.0, 1.0, 0.0), rule, prior=prior)["w"]
        without = pool(TWO, THREE_TO_ONE, rule, prior=prior)["w"]
        torch.testing.assert_close(with_it, without, rtol=1e-12, atol=1e-12)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 5), st.floats(0.1, 3)), min_size=1, max_size=6),
    st.sampled_from(["scale", "unconstrained", "variance", "mixture"]),
)
def test_pooled_scales_lie_where_they_must(clients: list[tuple[float, float, float]], rule: str) -> None:
    loc, scale, weight = (t(*column) for column in zip(*clients, strict=True))
    m, s = pool({"w": (loc, scale)}, weight, rule)["w"]
    slack = 1 + 1e-9
    assert loc.min() - 1e-9 <= m <= loc.max() + 1e-9
    assert s >= scale.min() / slack
    if rule != "mixture":
        assert s <= scale.max() * slack
    equal = pool({"w": (loc[:1].expand(3), scale[:1].expand(3))}, t(1.0, 2.0, 3.0), rule)["w"]
    torch.testing.assert_close(torch.stack(equal), torch.stack([loc[0], scale[0]]), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", POOLING)
def test_tiny_scales_stay_finite_and_positive(rule: str, dtype: torch.dtype) -> None:
    q = {"w": (t(1.0, 1.0, dtype=dtype), t(1e-20, 1e-20, dtype=dtype))}
    m, s = pool(q, t(1.0, 1.0), rule, prior={"w": (t(0.0, dtype=dtype), t(1.0, dtype=dtype))})["w"]
    assert m.dtype == s.dtype == dtype
    assert m.item() == pytest.approx(1.0)
    assert 0 < s.item() <= 1.1e-8
    if rule == "product":
        assert s.item() == pytest.approx(1e-20 / math.sqrt(2), rel=1e-5)


def test_pooling_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="unknown pooling rule 'mean'; known are scale"):
        pool(TWO, THREE_TO_ONE, "mean")
    with pytest.raises(ValueError, match="needs Gaussian priors"):
        pool(TWO, THREE_TO_ONE, "product")
    wide = {"w": (t(0.0, 0.0), t(9.0, 9.0))}  # wider than the prior: what is left has no precision
    with pytest.raises(ValueError, match="w: a precision is not positive"):
        pool(wide, t(1.0, 1.0), "product", prior={"w": (t(0.0), t(1.0))})


def test_natural_parameters_and_moments_are_inverse() -> None:
    q = {"a": (t(0.5, -2.0), t(0.1, 3.0)), "b": (t(7.0), t(1e-20))}
    for site, (loc, scale) in moments(natural(q)).items():
        torch.testing.assert_close(loc, q[site][0], rtol=1e-12, atol=0)
        torch.testing.assert_close(scale, q[site][1], rtol=1e-12, atol=0)


def test_kl_is_that_of_torch_and_infinite_nowhere() -> None:
    loc, scale = t(0.3, -1.0), t(0.2, 4.0)
    expected = kl_divergence(Normal(loc, scale), Normal(1.0, 2.0)).sum()
    torch.testing.assert_close(gaussian_kl(loc, scale, t(1.0), t(2.0)), expected, rtol=1e-12, atol=0)
    assert gaussian_kl(loc, scale, loc, scale).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_is_never_zero(dtype: torch.dtype) -> None:
    assert torch.nn.functional.softplus(torch.tensor(-120.0)) == 0, "without a floor it would be"
    rho = torch.tensor([-1e30, -1000.0, -120.0, -20.0, 0.0], dtype=dtype)
    scale = positive_scale(rho)
    assert bool((scale > 0).all()) and bool((scale >= 1e-8).all())
    assert bool(torch.isfinite(torch.log(scale)).all())


@given(st.floats(-15, 40))
def test_scales_and_unconstrained_numbers_are_inverse(rho: float) -> None:
    back = inverse_scale(positive_scale(t(rho)))
    assert back.item() == pytest.approx(rho, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_below_the_floor_have_a_finite_number(dtype: torch.dtype) -> None:
    rho = inverse_scale(torch.tensor([0.0, 1e-30, 1e-8, 2e-8], dtype=dtype))
    assert bool(torch.isfinite(rho).all())
    assert positive_scale(rho)[-1].item() == pytest.approx(2e-8, rel=1e-2)


def test_a_shortened_step_is_the_same_factor_to_a_smaller_power():
    step = {"w/h": torch.tensor([1.0, 3.0, -4.0]), "w/J": torch.tensor([2.0, -1.0, -8.0])}
    out = shortened(step, {"w/J": torch.tensor([-5.0, -5.0, -2.0])})
    assert out["w/h"].tolist() == [1.0, 3.0, -1.0]
    assert out["w/J"].tolist() == [2.0, -1.0, -2.0]
    nothing = shortened(step, {"w/J": torch.zeros(3)})  # where no precision may be taken, nothing of the factor is
    assert nothing["w/J"].tolist() == [2.0, 0.0, 0.0] and nothing["w/h"].tolist() == [1.0, 0.0, 0.0]


def test_divergence_adds_up_over_sites_of_any_shape():
    q = {"w": (t(0.0, 1.0).reshape(1, 2), t(1.0, 0.5).reshape(1, 2)), "b": (t(2.0).reshape(()), t(0.1).reshape(()))}
    p = {"w": (t(0.5, -1.0).reshape(1, 2), t(2.0, 0.3).reshape(1, 2)), "b": (t(1.0).reshape(()), t(0.7).reshape(()))}
    expected = sum(float(kl_divergence(Normal(*q[s]), Normal(*p[s])).sum()) for s in q)
    assert float(divergence(q, p)) == pytest.approx(expected, rel=1e-12)
