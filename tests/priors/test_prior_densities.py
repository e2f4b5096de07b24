"""Log densities of the priors against scipy, and the hyper-parameters they refuse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import distributions as dist
from scipy import stats

from pyrofl.bayesian import Bayesian, Weight
from pyrofl.priors import PRIORS, Flat, Gaussian, Hierarchical, Horseshoe, Laplace, ScaleMixture, StudentT

VALUES = torch.linspace(-2.5, 3.1, 12, dtype=torch.float64).reshape(4, 3)


def weight(like: torch.Tensor, fan_in: int = 3) -> Weight:
    return Weight("net.body.0.weight", "net.body.0", torch.zeros_like(like), fan_in)


def mixture(w: np.ndarray) -> np.ndarray:
    parts = [math.log(0.3) + stats.norm(0, 1.5).logpdf(w), math.log(0.7) + stats.norm(0, 0.02).logpdf(w)]
    return np.logaddexp(*parts)


CASES = {
    "gaussian": (Gaussian(0.7), stats.norm(0, 0.7).logpdf),
    "gaussian fan_in": (Gaussian("fan_in", gain=2.0), stats.norm(0, 2 / math.sqrt(3)).logpdf),
    "laplace": (Laplace(0.7), stats.laplace(0, 0.7).logpdf),
    "student_t": (StudentT(0.7, df=4.5), stats.t(4.5, 0, 0.7).logpdf),
    "scale_mixture": (ScaleMixture(1.5, 0.02, mixing=0.3), mixture),
    "flat": (Flat(), np.zeros_like),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_log_density_is_scipys(case, dtype, tolerance):
    prior, logpdf = CASES[case]
    fn = prior(weight(VALUES.to(dtype)))
    assert (fn.batch_shape, fn.event_shape) == ((), (4, 3))
    got = fn.log_prob(VALUES.to(dtype))
    assert got.dtype == dtype and got.shape == ()
    np.testing.assert_allclose(got.item(), logpdf(VALUES.numpy()).sum(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_weights_shape_and_dtype(case):
    prior, _ = CASES[case]
    with torch.random.fork_rng(devices=[]):
        for shape in [(), (5,)]:
            draw = prior(weight(VALUES)).sample(shape)
            assert (draw.shape, draw.dtype) == ((*shape, 4, 3), torch.float64)


@pytest.mark.parametrize(
    ("layer", "fan_in"), [(torch.nn.Linear(6, 4), 6), (torch.nn.Conv2d(2, 5, 3), 18), (torch.nn.Conv1d(4, 2, 5), 20)]
)
def test_fan_in_is_the_number_of_inputs_of_a_unit_for_weight_and_bias(layer, fan_in):
    model = Bayesian(torch.nn.Sequential(layer), Gaussian("fan_in", gain=3.0))
    assert [w.fan_in for w in model.weights] == [fan_in, fan_in]
    for w in model.weights:
        sd = model.prior(w).stddev
        torch.testing.assert_close(sd, torch.full(w.value.shape, 3.0 / math.sqrt(fan_in)))


@given(
    st.floats(-50, 50), st.floats(0.5, 5.0), st.floats(1e-6, 0.4), st.floats(0.01, 0.99), st.sampled_from(["32", "64"])
)
def test_scale_mixture_is_finite_and_right_where_the_spike_underflows(w, scale1, scale2, mixing, bits):
    dtype = {"32": torch.float32, "64": torch.float64}[bits]
    value = torch.full((1,), w, dtype=dtype, requires_grad=True)
    log_p = ScaleMixture(scale1, scale2, mixing=mixing)(weight(value)).log_prob(value)
    (slope,) = torch.autograd.grad(log_p, value)
    w = value.detach().double().numpy()
    slab, spike = (
        math.log(part) + stats.norm(0, sd).logpdf(w) for part, sd in ((mixing, scale1), (1 - mixing, scale2))
    )
    whole = np.logaddexp(slab, spike)
    by_hand = -w * (np.exp(slab - whole) / scale1**2 + np.exp(spike - whole) / scale2**2)
    tolerance = 1e-9 if bits == "64" else 2e-4
    np.testing.assert_allclose(log_p.item(), whole.item(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(slope.numpy(), by_hand, rtol=10 * tolerance, atol=10 * tolerance / scale2)


def test_scale_mixture_far_from_the_spike_is_the_slab_alone():
    value = torch.tensor([30.0], requires_grad=True)  # exp(-0.5 * (30 / 1e-6)^2) is 0 in every precision
    log_p = ScaleMixture(1.0, 1e-6, mixing=0.25)(weight(value)).log_prob(value)
    (slope,) = torch.autograd.grad(log_p, value)
    assert log_p.item() == pytest.approx(math.log(0.25) - 450 - 0.5 * math.log(2 * math.pi), rel=1e-6)
    assert slope.item() == pytest.approx(-30.0, rel=1e-6)


def test_scale_mixture_variance_is_the_mean_of_the_components():
    fn = ScaleMixture(2.0, 0.5, mixing=0.25)(weight(VALUES)).base_dist
    torch.testing.assert_close(fn.variance, torch.full((4, 3), 0.25 * 4 + 0.75 * 0.25, dtype=torch.float64))


def test_flat_draw_is_the_networks_own_start():
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Flat()(Weight("w", "w", start, 3)).sample(), start)
    assert isinstance(Flat()(Weight("w", "w", start, 3)), dist.ImproperUniform)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda v: Gaussian(v), "prior.scale"),
        (lambda v: Gaussian("fan_in", gain=v), "prior.gain"),
        (lambda v: Laplace(v), "prior.scale"),
        (lambda v: StudentT(v), "prior.scale"),
        (lambda v: StudentT(df=v), "prior.df"),
        (lambda v: ScaleMixture(v), "prior.scale1"),
        (lambda v: ScaleMixture(1.0, v), "prior.scale2"),
        (lambda v: Hierarchical(v), "prior.width"),
        (lambda v: Horseshoe(v), "prior.scale"),
    ],
)
def test_hyper_parameters_that_are_not_positive_are_refused_by_name(make, key, bad):
    with pytest.raises(ValueError, match=rf"{key} of the \w+ prior must be positive and finite, got {bad}"):
        make(bad)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian("fanin"), "a number or \"fan_in\", got 'fanin'"),
        (lambda: Gaussian(0.5, gain=2.0), 'prior.gain belongs to prior.scale = "fan_in"'),
        (lambda: ScaleMixture(0.1, 1.0), r"must be above prior.scale2"),
        (lambda: ScaleMixture(mixing=1.0), r"prior.mixing .* between 0 and 1, got 1.0"),
        (lambda: Horseshoe(local="row"), r"prior.local .* got 'row'"),
    ],
)
def test_other_wrong_hyper_parameters_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_text_is_not_a_scale():
    with pytest.raises(TypeError, match=r"prior.scale of the laplace prior must be a number, got '1'"):
        Laplace("1")


def test_whole_numbers_are_scales():
    assert Gaussian(2)(weight(VALUES)).stddev.unique().item() == 2.0


def test_every_prior_has_defaults():
    for name, kind in PRIORS.items():
        fn = Bayesian(torch.nn.Sequential(torch.nn.Linear(2, 3)), kind()).prior
        assert isinstance(fn, kind), name
