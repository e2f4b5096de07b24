"""Draws of any Pyro SVI fit for ArviZ, against a conjugate model: mu ~ N(0, TAU^2), y_i ~ N(mu, SIGMA^2)."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from scipy import stats

from pyrofl import arviz, diagnostics

TAU, SIGMA = 2.0, 0.8
Y = torch.tensor([0.3, 1.9, -0.4, 1.1, 0.8, 4.0, 0.2, 1.4], dtype=torch.float64)


def model(y, scale=SIGMA):
    mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), TAU))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, scale), obs=y)


def posterior(y):
    precision = 1 / TAU**2 + len(y) / SIGMA**2
    return y.sum().item() / SIGMA**2 / precision, precision**-0.5


def guide_of(y, *, width=1.0, shift=0.0):
    m, s = posterior(y)

    def guide(y, scale=SIGMA):
        pyro.sample("mu", dist.Normal(torch.tensor(m + shift * s, dtype=torch.float64), width * s))

    return guide


def log_evidence(y):
    n = len(y)
    cov = SIGMA**2 * np.eye(n) + TAU**2 * np.ones((n, n))
    return stats.multivariate_normal(np.zeros(n), cov).logpdf(y.numpy())


def exact_loo(y):
    """log p(y_i | y_-i), (B,)."""
    out = []
    for i in range(len(y)):
        m, s = posterior(torch.cat([y[:i], y[i + 1 :]]))
        out.append(stats.norm(m, np.hypot(s, SIGMA)).logpdf(y[i].item()))
    return np.array(out)


def test_log_p_less_log_q_of_the_exact_guide_is_the_evidence():
    made = arviz.from_pyro_svi(model, guide_of(Y), Y, draws=50)
    stats_ = made["sample_stats"]
    np.testing.assert_allclose(stats_["log_p"] - stats_["log_q"], log_evidence(Y), rtol=1e-12)
    found = diagnostics.khat(stats_["log_p"], stats_["log_q"])
    assert found.value == 0 and found.verdict == "the guide is the posterior"


def test_groups_dimensions_and_values():
    made = arviz.from_pyro_svi(model, guide_of(Y), Y, draws=400, key=3)
    assert set(made.children) == {
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "sample_stats",
    }
    mu = made["posterior"]["mu"]
    assert mu.dims == ("chain", "draw") and mu.shape == (1, 400)
    for group in ("posterior_predictive", "log_likelihood"):
        assert made[group]["y"].dims == ("chain", "draw", "obs")
    np.testing.assert_array_equal(made["observed_data"]["y"], Y)
    expected = stats.norm(mu.values[..., None], SIGMA).logpdf(Y.numpy())
    np.testing.assert_allclose(made["log_likelihood"]["y"], expected, rtol=1e-10)
    m, s = posterior(Y)
    assert float(mu.mean()) == pytest.approx(m, abs=4 * s / 20)
    new = made["posterior_predictive"]["y"].values  # fresh observations, not those seen
    assert (new[0, 0] != Y.numpy()).all()
    assert new.std() == pytest.approx(np.hypot(s, SIGMA), rel=0.05)


@pytest.mark.parametrize(("width", "shift"), [(1.0, 0.0), (1.3, 0.2)])
def test_loo_is_the_closed_form_whatever_the_guide(width, shift):
    made = arviz.from_pyro_svi(model, guide_of(Y, width=width, shift=shift), Y, draws=2500)
    result = arviz.loo(made)
    np.testing.assert_allclose(result.elpd_i.values, exact_loo(Y), atol=0.05)
    assert float(result.elpd) == pytest.approx(exact_loo(Y).sum(), abs=0.1)
    uncorrected = stats.norm(*posterior(Y)).logpdf(made["posterior"]["mu"].values)  # what is meant by log p
    assert np.ptp(uncorrected - made["sample_stats"]["log_p"].values) < 1e-9


def test_subsampled_loo_estimates_the_whole():
    y = torch.linspace(-2, 2, 60, dtype=torch.float64)
    made = arviz.from_pyro_svi(model, guide_of(y), y, draws=500)
    some = arviz.loo(made, observations=30)
    assert float(some.elpd) == pytest.approx(exact_loo(y).sum(), abs=1)
    assert some.subsample_size == 30


def test_a_fit_by_svi_with_an_autoguide_and_keyword_arguments():
    guide = AutoNormal(model)
    with pyro.get_param_store().scope():
        pyro.set_rng_seed(0)
        svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.995}), Trace_ELBO(num_particles=4))
        for _ in range(250):
            svi.step(Y, scale=SIGMA)
        made = arviz.from_pyro_svi(model, guide, Y, scale=SIGMA, draws=500)
    assert diagnostics.khat(made["sample_stats"]["log_p"], made["sample_stats"]["log_q"]).value < 0.6
    np.testing.assert_allclose(arviz.loo(made).elpd_i.values, exact_loo(Y), rtol=0.04, atol=0.04)


def positive(y):
    s = pyro.sample("s", dist.LogNormal(torch.zeros((), dtype=torch.float64), 0.5))
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=torch.float64), 1).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w.sum(), s), obs=y)


def test_densities_of_a_constrained_site_are_on_its_own_support():
    guide = AutoNormal(positive, init_scale=0.3)
    with pyro.get_param_store().scope():
        pyro.set_rng_seed(0)
        guide(Y)
        loc = {n: pyro.param(f"AutoNormal.locs.{n}").detach().numpy() for n in ("s", "w")}
        made = arviz.from_pyro_svi(
            positive, guide, Y, draws=20, dims={"w": ["feature"]}, coords={"feature": list("abc")}
        )
    s, w = (made["posterior"][n].values for n in ("s", "w"))
    log_q = stats.lognorm(0.3, scale=np.exp(loc["s"])).logpdf(s) + stats.norm(loc["w"], 0.3).logpdf(w).sum(-1)
    log_p = stats.lognorm(0.5).logpdf(s) + stats.norm(0, 1).logpdf(w).sum(-1)
    log_p += stats.norm(w.sum(-1)[..., None], s[..., None]).logpdf(Y.numpy()).sum(-1)
    np.testing.assert_allclose(made["sample_stats"]["log_q"], log_q, rtol=1e-6)
    np.testing.assert_allclose(made["sample_stats"]["log_p"], log_p, rtol=1e-6)
    assert made["posterior"]["w"].dims == ("chain", "draw", "feature")
    assert made["posterior"]["feature"].values.tolist() == list("abc")


def test_chosen_sites_and_one_draw_keep_their_dimensions():
    with pyro.get_param_store().scope():
        made = arviz.from_pyro_svi(positive, AutoNormal(positive), Y, draws=1, sites=["w"])
    assert list(made["posterior"].data_vars) == ["w"] and made["posterior"]["w"].shape == (1, 1, 3)


def test_point_estimates_are_listed_as_constant_and_have_no_densities():
    guide = AutoDelta(model)
    with pyro.get_param_store().scope():
        made = arviz.from_pyro_svi(model, guide, Y, draws=10)
    assert "sample_stats" not in made and "posterior" not in made
    assert made["constant_data"]["mu"].shape == () and made.attrs["constant_sites"] == "mu"
    with pytest.raises(ValueError, match="not a point"):
        arviz.loo(made)


def test_nothing_of_the_process_is_touched():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = arviz.from_pyro_svi(model, guide_of(Y), Y, draws=5, key=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store().keys()) == []
    again, other = (arviz.from_pyro_svi(model, guide_of(Y), Y, draws=5, key=k) for k in (1, 2))
    assert first["posterior"].equals(again["posterior"]) and not first["posterior"].equals(other["posterior"])


def test_a_subsampled_plate_is_refused():
    def subsampled(y):
        mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), TAU))
        with pyro.plate("data", len(y), subsample_size=3) as rows:
            pyro.sample("y", dist.Normal(mu, SIGMA), obs=y[rows])

    with pytest.raises(ValueError, match="'data' takes 3 of 8 rows"):
        arviz.from_pyro_svi(subsampled, guide_of(Y), Y)


def test_a_site_that_the_guide_lacks_is_refused():
    with pytest.raises(ValueError, match="the guide has no site 's'"):
        arviz.from_pyro_svi(positive, guide_of(Y), Y)


def test_an_unknown_site_and_a_model_without_data_are_refused():
    with pytest.raises(ValueError, match="there is no latent site 'nu'; the latent sites are mu"):
        arviz.from_pyro_svi(model, guide_of(Y), Y, sites=["nu"])
    silent = lambda y: pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), TAU))
    with pytest.raises(ValueError, match="observes nothing"):
        arviz.from_pyro_svi(silent, guide_of(Y), Y)


def test_an_impossible_row_is_named_instead_of_making_loo_undefined():
    def bounded(y):
        mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Uniform(mu - 100, mu + 100, validate_args=False), obs=y)

    guide = lambda y: pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
    y = Y.clone()
    y[5] = 1e4
    made = arviz.from_pyro_svi(bounded, guide, y, draws=30)
    with pytest.raises(ValueError, match="not finite at obs 5:"):
        arviz.loo(made)


X = torch.linspace(-1, 1, len(Y), dtype=torch.float64)


def recording(x, y):
    slope = pyro.sample("slope", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
    pyro.deterministic("double", 2 * slope)
    pyro.deterministic("two", torch.tensor(2.0))
    with pyro.plate("data", len(x)):
        mu = pyro.deterministic("mu", slope * x)
        pyro.deterministic("moments", torch.stack([mu, mu**2], -1))
        pyro.deterministic("turned", torch.stack([mu, mu**2, mu**3]))
        pyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def some_slope(x, y):
    pyro.sample("slope", dist.Normal(torch.tensor(0.7, dtype=torch.float64), 0.2))


def test_recorded_values_are_posterior_variables_and_no_observations():
    made = arviz.from_pyro_svi(recording, some_slope, X, Y, draws=300)
    for group in ("log_likelihood", "posterior_predictive", "observed_data"):
        assert list(made[group].data_vars) == ["y"]
    posterior, new = made["posterior"], made["posterior_predictive"]["y"]
    slope, mu = posterior["slope"].values, posterior["mu"]
    assert mu.dims == new.dims == ("chain", "draw", "obs") and new.shape == (1, 300, 8)
    np.testing.assert_allclose(posterior["double"], 2 * slope)
    np.testing.assert_allclose(mu, slope[..., None] * X.numpy())
    np.testing.assert_allclose(posterior["moments"], np.stack([mu, mu**2], -1))
    assert posterior["moments"].dims == ("chain", "draw", "obs", "moments_dim_0")
    np.testing.assert_allclose(posterior["turned"], np.stack([mu, mu**2, mu**3], 2))
    assert posterior["turned"].dims == ("chain", "draw", "turned_dim_0", "obs")
    assert made["constant_data"]["two"] == 2 and "sample_stats" in made
    z = (new.values - mu.values) / 0.5
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    log_p = stats.norm(0, 1).logpdf(slope) + stats.norm(mu, 0.5).logpdf(Y.numpy()).sum(-1)
    np.testing.assert_allclose(made["sample_stats"]["log_p"], log_p)


def test_recorded_values_can_be_chosen_and_share_the_name_of_the_rows():
    made = arviz.from_pyro_svi(recording, some_slope, X, Y, draws=5, sites=["mu"], dims={"y": ["patient"]})
    assert list(made["posterior"].data_vars) == ["mu"]
    assert made["posterior"]["mu"].dims == ("chain", "draw", "patient")
    made = arviz.from_pyro_svi(recording, some_slope, X, Y, draws=5, sites=["two"])
    assert "posterior" not in made and "sample_stats" in made  # the guide is a density, whatever is shown of it


def test_a_point_s_recorded_values_are_constant_too():
    with pyro.get_param_store().scope():
        made = arviz.from_pyro_svi(recording, AutoDelta(recording), X, Y, draws=5)
    assert "posterior" not in made and "sample_stats" not in made
    np.testing.assert_allclose(made["constant_data"]["mu"], made["constant_data"]["slope"].values * X.numpy())


def named(y, z=None):
    mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), TAU))
    with pyro.plate("data", len(y)):
        pyro.sample("visits", dist.Normal(mu, SIGMA), obs=y)
        if z is not None:
            pyro.sample("z", dist.Normal(2 * mu, 1), obs=z)


def test_loo_takes_the_only_variable_or_the_one_named():
    guide = lambda y, z=None: guide_of(Y)(y)
    one = arviz.loo(arviz.from_pyro_svi(named, guide, Y, draws=50))
    plain = arviz.loo(arviz.from_pyro_svi(model, guide_of(Y), Y, draws=50))
    np.testing.assert_allclose(one.elpd_i.values, plain.elpd_i.values)
    part = arviz.loo(arviz.from_pyro_svi(named, guide, Y, draws=50), observations=4)
    assert part.subsample_size == 4
    both = arviz.from_pyro_svi(named, guide, Y, Y, draws=50)
    with pytest.raises(ValueError, match=r"several observed variables \(visits, z\): name one by var_name"):
        arviz.loo(both)
    with pytest.raises(ValueError, match="unknown var_name 'y'"):
        arviz.loo(both, var_name="y")
    mu = both["posterior"]["mu"].values.ravel()
    weights = np.exp(both["sample_stats"]["log_p"].values - both["sample_stats"]["log_q"].values).ravel()
    density = stats.norm(2 * mu[:, None], 1).pdf(Y.numpy())
    expected = np.log(weights.sum() / (weights[:, None] / density).sum(0))  # importance weights p / q / p(z_i | mu)
    np.testing.assert_allclose(arviz.loo(both, var_name="z").elpd_i.values, expected, atol=0.1)


def test_an_impossible_entry_of_a_table_is_named():
    def table(y):
        mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
        with pyro.plate("rows", y.shape[0], dim=-2), pyro.plate("columns", y.shape[1], dim=-1):
            pyro.sample("y", dist.Uniform(mu - 100, mu + 100, validate_args=False), obs=y)

    y = torch.zeros(4, 3, dtype=torch.float64)
    y[2, 1] = 1e4
    guide = lambda y: pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
    made = arviz.from_pyro_svi(table, guide, y, draws=30, dims={"y": ["patient", "visit"]})
    with pytest.raises(ValueError, match="not finite at patient 2, visit 1:"):
        arviz.loo(made)


@pytest.mark.parametrize("site", ["data", "y"])
def test_a_plate_or_an_observed_site_cannot_be_chosen(site):
    with pytest.raises(ValueError, match=f"there is no latent site '{site}'; the latent sites are mu"):
        arviz.from_pyro_svi(model, guide_of(Y), Y, draws=3, sites=[site])
