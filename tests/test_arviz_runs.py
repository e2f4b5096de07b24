"""Draws of runs for ArviZ: their densities against formulas, and the file against every reader of it."""

from __future__ import annotations

import re

import numpy as np
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from pyro.nn import PyroSample
from scipy import stats
from support import build
from torch import nn

from pyrofl import arviz, diagnostics
from pyrofl.arviz.runs import moments, predictive_moments, prior_moments
from pyrofl.bayesian import Bayesian, Prior
from pyrofl.data import Client, Data, Federation
from pyrofl.diagnose import notes
from pyrofl.diagnostics.table import ALL
from pyrofl.engines import Sequential, Vectorised
from pyrofl.likelihoods import Gaussian as Noise
from pyrofl.method import Cohort, Reply
from pyrofl.methods import Alone, BayFL, FedAvg
from pyrofl.optim import Adam
from pyrofl.priors import Gaussian, Hierarchical, Horseshoe, Laplace, ScaleMixture, StudentT
from pyrofl.program import Program
from pyrofl.run import Run

TAU, SIGMA = 1.5, 0.7


def run_of(method, federation, *, rounds=1, engine=None):
    run = Run(method, federation, engine=engine or Sequential(), rounds=rounds, seed=1)
    run.evaluation = type(run.evaluation)(every=rounds, draws=2, final_draws=2)
    for _ in run:
        pass
    return run


def line(n, seed):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, 1)))
    return Data.of(x, x[:, 0] * 0.8 + SIGMA * torch.from_numpy(rng.normal(size=n)))


LINES = Federation(tuple(Client(f"site{i}", line(n, i), line(3, 10 + i)) for i, n in enumerate((6, 4))), "gaussian")


PERSONAL = {"model": "personal", "draws": 30}


class SharedScale(Prior):
    """w ~ N(0, tau^2) with `tau ~ how(1)`."""

    def __init__(self, how):
        super().__init__()
        self.tau = PyroSample(how(torch.ones((), dtype=torch.float64)))

    def forward(self, weight):
        zero = weight.value.new_zeros(weight.value.shape)
        return dist.Normal(zero, self.tau).to_event(zero.dim())


def slope(prior=None):
    """One weight: w ~ N(0, TAU^2), y ~ N(w x, SIGMA^2)."""
    data = LINES.clients[0].train
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    return Program(Bayesian(net, prior or Gaussian(TAU), Noise(SIGMA)), data.x, data.y)


SITE = "net.0.weight"


def exact(datas):
    x, y = (torch.cat([getattr(d, f) for d in datas]).numpy() for f in ("x", "y"))
    precision = 1 / TAU**2 + (x**2).sum() / SIGMA**2
    return (x[:, 0] * y).sum() / SIGMA**2 / precision, precision**-0.5


class Known(BayFL):
    """A server that knows the exact posterior of all rows."""

    def aggregate(self, server, ups, cohort: Cohort):
        m, s = exact([c.train for c in LINES.clients])
        q = {SITE: (torch.full((1, 1), m).double(), torch.full((1, 1), s).double())}
        return {**server, **self.program.guide_of(q)}


class KnownAlone(Alone):
    """Clients that know the exact posterior of their own rows."""

    def local(self, down, own, data, key) -> Reply:
        m, s = exact([data])
        q = {SITE: (torch.full((1, 1), m).double(), torch.full((1, 1), s).double())}
        return Reply({}, {**own, **self.program.guide_of(q)}, {})


@pytest.fixture(scope="module")
def shared():
    return run_of(Known(slope()), LINES)


@pytest.fixture(scope="module")
def apart():
    return run_of(KnownAlone(slope()), LINES)


def log_joint(w, datas):
    """log p(w) + log p(y | w) of all rows, for draws w (S,)."""
    out = stats.norm(0, TAU).logpdf(w)
    for d in datas:
        out = out + stats.norm(w[:, None] * d.x[:, 0].numpy(), SIGMA).logpdf(d.y.numpy()).sum(1)
    return out


def test_the_server_s_densities_are_those_of_all_rows(shared):
    made = shared.to_arviz(draws=60)
    w = made["posterior"][SITE].values.ravel()
    m, s = exact([c.train for c in LINES.clients])
    np.testing.assert_allclose(made["sample_stats"]["log_q"].values[0], stats.norm(m, s).logpdf(w), atol=1e-6)
    np.testing.assert_allclose(
        made["sample_stats"]["log_p"].values[0], log_joint(w, [c.train for c in LINES.clients]), rtol=1e-9
    )
    assert diagnostics.khat(made["sample_stats"]["log_p"], made["sample_stats"]["log_q"]).value == 0
    assert made["log_likelihood"]["client"].values.tolist() == ["site0"] * 6 + ["site1"] * 4
    assert made["log_likelihood"]["row"].values.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    y = torch.cat([c.train.y for c in LINES.clients]).numpy()
    np.testing.assert_array_equal(made["observed_data"]["y"], y)


def test_predictions_come_from_the_draws_beside_them(shared):
    made = shared.to_arviz(draws=300)
    w = made["posterior"][SITE].values.reshape(-1, 1)
    x, y = (torch.cat([getattr(c.train, f) for c in LINES.clients]).numpy() for f in ("x", "y"))
    np.testing.assert_allclose(
        made["log_likelihood"]["y"].values[0], stats.norm(w * x[:, 0], SIGMA).logpdf(y), rtol=1e-9
    )
    z = (made["posterior_predictive"]["y"].values[0] - w * x[:, 0]) / SIGMA
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3


def test_each_client_s_densities_are_those_of_its_own_rows(apart):
    made = apart.to_arviz(draws=40)
    assert made["posterior"][SITE].dims[:3] == ("chain", "draw", "client")
    for client in LINES.clients:
        mine = made["sample_stats"].to_dataset().sel(client=client.name)
        w = made["posterior"][SITE].sel(client=client.name).values.ravel()
        np.testing.assert_allclose(mine["log_p"].values[0], log_joint(w, [client.train]), rtol=1e-9)
        assert np.ptp(mine["log_p"].values - mine["log_q"].values) < 1e-6  # exact, each up to its own evidence


def test_loo_of_clients_apart_is_that_of_each_client(apart):
    whole = arviz.loo(apart.to_arviz(draws=300)).elpd_i
    for client in LINES.clients:
        one = arviz.loo(apart.to_arviz(draws=300, client=client.name)).elpd_i.values
        first = 0 if client.name == "site0" else 6
        np.testing.assert_allclose(one, whole.values[first : first + len(one)])
    x, y = LINES.clients[1].train.x, LINES.clients[1].train.y
    rest = Data.of(x[1:], y[1:])
    m, s = exact([rest])
    expected = stats.norm(m * x[0, 0].item(), np.hypot(s * x[0, 0].item(), SIGMA)).logpdf(y[0].item())
    assert whole.values[6] == pytest.approx(expected, abs=0.08)


def test_held_out_rows_have_no_densities_that_could_choose(shared):
    made = shared.to_arviz(draws=30, split="test")
    assert "sample_stats" not in made and made.attrs["split"] == "test"
    np.testing.assert_array_equal(made["observed_data"]["y"], torch.cat([c.test.y for c in LINES.clients]))
    with pytest.raises(ValueError, match="LOO needs training rows"):
        arviz.loo(made)


@pytest.fixture(scope="module")
def classes():
    return run_of(BayFL(build.program(), optimizer=Adam(0.05), epochs=3.0, size=4), build.federation(), rounds=3)


def test_classes_are_named_and_probabilities_belong_to_the_codes(classes):
    made = classes.to_arviz(draws=400)
    p = made["posterior_predictive"]["p"]
    assert p.dims == ("chain", "draw", "obs", "class") and p["class"].values.tolist() == list("abc")
    np.testing.assert_allclose(p.sum("class"), 1)
    seen = made["observed_data"]["y"].values
    at = np.take_along_axis(p.values[0], np.broadcast_to(seen[None, :, None], (400, len(seen), 1)), -1)[..., 0]
    np.testing.assert_allclose(np.log(at), made["log_likelihood"]["y"].values[0])
    shares = [(made["posterior_predictive"]["y"] == k).mean(("chain", "draw")).values for k in range(3)]
    np.testing.assert_allclose(np.stack(shares, -1), p.mean(("chain", "draw")), atol=0.12)


def test_engines_draw_the_same(classes):
    whole = classes.to_arviz(draws=7)
    engine, classes.engine = classes.engine, Vectorised()
    try:
        xr.testing.assert_allclose(classes.to_arviz(draws=7), whole)
    finally:
        classes.engine = engine


def test_the_file_reads_back_as_it_was_here_and_in_arviz_of_both_kinds(classes, apart, tmp_path):
    az = pytest.importorskip("arviz")
    for name, made in (("shared", classes.to_arviz(draws=20)), ("apart", apart.to_arviz(draws=20))):
        path = arviz.save(made, tmp_path / f"{name}.nc")
        assert arviz.load(path).identical(made)
        other = az.from_netcdf(str(path))  # an InferenceData before arviz 1
        np.testing.assert_array_equal(other["log_likelihood"]["y"], made["log_likelihood"]["y"])
        np.testing.assert_array_equal(other["observed_data"]["client"], made["observed_data"]["client"])
        groups = other.groups() if callable(other.groups) else [g.strip("/") for g in other.groups]
        assert set(made.children) <= set(groups)
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


def test_a_missing_file_says_how_it_is_made(tmp_path):
    with pytest.raises(FileNotFoundError, match="pyrofl evaluate RUN"):
        arviz.load(tmp_path / "draws.nc")


def test_what_cannot_be_read_is_named(tmp_path):
    broken = tmp_path / "draws.nc"
    for content in (b"", b"no netCDF", b"\x89HDF\r\n\x1a\n" + bytes(100)):
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{re.escape(str(broken))} cannot be read as netCDF \("):
            arviz.load(broken)
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))} is a directory: .*draws\.nc"):
        arviz.load(tmp_path)


def test_point_estimates_have_constant_data_only():
    run = run_of(FedAvg(build.program(guide="delta", prior="flat"), size=4), build.federation())
    made = run.to_arviz(draws=5)
    assert "posterior" not in made and "sample_stats" not in made
    assert made["constant_data"]["net.head.bias"].shape == (3,)
    assert "net.head.bias" in made.attrs["constant_sites"]
    frame = diagnostics.table(made)
    assert "k-hat" not in frame and frame.loc[ALL, "rows"] == sum(build.RAGGED)


def test_what_does_not_fit_is_refused_before_the_work_and_a_subset_is_offered(shared):
    with pytest.raises(ValueError, match=r"1000000 draws of 10 rows would take 0.1 GiB.*rows = 6"):
        shared.to_arviz(draws=10**6, memory=100 << 20)
    some, whole = shared.to_arviz(draws=50, rows=5), shared.to_arviz(draws=50)
    assert some["log_likelihood"].sizes["obs"] == 5
    xr.testing.assert_allclose(some["sample_stats"].to_dataset(), whole["sample_stats"].to_dataset())  # of all rows


def test_arguments_are_checked(shared, apart):
    for run, options, message in (
        (shared, {"model": "local"}, "unknown model 'local'"),
        (shared, {"split": "all"}, "unknown split 'all'"),
        (shared, {"sites": ["weight"]}, "unknown site 'weight'"),
        (shared, {"draws": 0}, "draws must be at least 1"),
        (shared, {"model": "personal"}, "every client predicts with the server's own posterior"),
        (shared, {"model": "personal", "client": "site0"}, "client site0 predicts with the server's own posterior"),
        (shared, {"rows": 0}, "rows must be at least 1 of each posterior, got 0"),
        (apart, {"rows": -3}, "rows must be at least 1 of each posterior, got -3"),
        (shared, {"client": "site0"}, "client needs model = 'personal'"),
        (apart, {"client": "site9"}, "unknown client 'site9'"),
        (apart, {"model": "global"}, "no model of the server"),
    ):
        with pytest.raises(ValueError, match=message):
            run.to_arviz(**{"draws": 3, **options})


def test_prior_moments_are_exact_where_they_can_be_and_drawn_elsewhere(shared):
    mean, sd = prior_moments(shared)[SITE]
    assert (mean.item(), sd.item()) == (0, TAU)
    run = run_of(BayFL(slope(Hierarchical())), LINES)
    drawn = prior_moments(run, draws=400)
    assert set(drawn) == set(run.method.program.sites) and drawn[SITE][1].shape == (1, 1)


class Drawn(Prior):
    """`how(zero)` makes the distribution."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, weight):
        return self.how(weight.value.new_zeros(weight.value.shape)).to_event(2)


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (StudentT(1.5, df=3.0), 1.5 * 3**0.5),
        (StudentT(1.5, df=2.0), np.nan),
        (Drawn(lambda zero: dist.Cauchy(zero, 1.0)), np.nan),
        (Drawn(lambda zero: dist.Uniform(zero - 3, zero + 3)), 3**0.5),
        (Laplace(2.0), 8**0.5),
        (ScaleMixture(2.0, 1.0, mixing=0.25), 1.75**0.5),
        (Horseshoe(), np.nan),
        (SharedScale(dist.HalfCauchy), np.nan),
    ],
    ids=["t3", "t2", "cauchy", "uniform", "laplace", "mixture", "horseshoe", "half-cauchy"],
)
def test_the_prior_s_spread_is_its_formula_and_undefined_where_it_has_none(prior, expected):
    found = prior_moments(run_of(BayFL(slope(prior)), LINES), draws=20)
    np.testing.assert_allclose(found[SITE][1], np.full((1, 1), expected), rtol=1e-9)


def test_the_spread_under_a_latent_scale_is_averaged_over_it():
    run = run_of(BayFL(slope(SharedScale(lambda one: dist.HalfNormal(2 * one)))), LINES)
    found = prior_moments(run, draws=2000)
    tau = "prior.tau"
    assert found[SITE][1].item() == pytest.approx(2.0, rel=0.05)  # E tau^2 = 4
    assert found[tau][0].item() == pytest.approx(2 * (2 / np.pi) ** 0.5, rel=1e-6)
    assert found[tau][1].item() == pytest.approx(2 * (1 - 2 / np.pi) ** 0.5, rel=1e-6)


def test_a_guide_as_wide_as_its_heavy_tailed_prior_has_no_contraction():
    made = {SITE: (0.0, np.full((1, 1), 1.5 * 3**0.5))}
    prior = prior_moments(run_of(BayFL(slope(StudentT(1.5, df=3.0))), LINES))
    assert diagnostics.contraction(made, prior).median == pytest.approx(0, abs=1e-9)


def test_a_table_under_a_prior_without_variance_has_an_empty_contraction():
    run = run_of(BayFL(slope(Horseshoe())), LINES)
    frame = diagnostics.table(run.to_arviz(draws=30), prior=prior_moments(run, draws=5))
    assert frame["contraction"].isna().all()


class SomeAlone(KnownAlone):
    """KnownAlone beside a server, whose posterior the second client takes as its own."""

    def common(self, server):
        return self.program.theta0

    def personal(self, down, own, data, key):
        return own if len(data.x) == 6 else self.program.theta0


def test_clients_with_the_server_s_own_posterior_are_left_out_of_personal_draws(apart):
    run = run_of(SomeAlone(slope()), LINES)
    made = run.to_arviz(model="personal", draws=30)
    assert made.attrs["clients_left_out"] == "site1"
    assert made["posterior"]["client"].values.tolist() == ["site0"]
    assert set(made["log_likelihood"]["client"].values) == {"site0"}
    xr.testing.assert_equal(
        made["posterior"].to_dataset(), run.to_arviz(client="site0", **PERSONAL)["posterior"].to_dataset()
    )
    with pytest.raises(ValueError, match="client site1 predicts with the server's own posterior"):
        run.to_arviz(client="site1", **PERSONAL)
    assert "clients_left_out" not in apart.to_arviz(draws=3).attrs
    (line,) = [n for n in notes(made.attrs, diagnostics.table(made), ["w"]) if n.startswith("left out")]
    assert line.endswith(": site1")


def test_a_subset_of_rows_is_one_of_each_posterior(apart):
    made = apart.to_arviz(draws=5, rows=3)
    assert [(made["log_likelihood"]["client"] == c).sum().item() for c in ("site0", "site1")] == [3, 3]


def test_moments_of_draws_are_those_of_numpy():
    draws = torch.randn(30, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 100
    mean, sd = moments({"w": d} for d in draws)["w"]
    np.testing.assert_allclose(mean, draws.mean(0))
    np.testing.assert_allclose(sd, draws.std(0))


def test_predictive_moments_are_those_of_the_posterior(shared):
    m, s = exact([c.train for c in LINES.clients])
    mean, sd = predictive_moments(shared, shared.server, draws=400)["site1"]
    x = LINES.clients[1].train.x[:, 0].numpy()
    np.testing.assert_allclose(mean[:, 0], m * x, atol=5 * s * np.abs(x).max() / 20)
    np.testing.assert_allclose(sd[:, 0], s * np.abs(x), rtol=0.15)
    np.testing.assert_allclose(mean[:, 1], SIGMA)


def test_the_table_has_a_line_for_all_and_one_a_client(shared, apart):
    made = shared.to_arviz(draws=300)
    frame = diagnostics.table(made, losses={"site0": [1.0] * 10}, prior=prior_moments(shared))
    assert frame.index.tolist() == [ALL, "site0", "site1"]
    assert frame.loc[ALL, "k-hat"] == 0 and frame["rows"].tolist() == [10, 6, 4]
    assert frame.loc[ALL, "elpd"] == pytest.approx(frame.loc["site0", "elpd"] + frame.loc["site1", "elpd"])
    _, s = exact([c.train for c in LINES.clients])
    assert frame.loc[ALL, "contraction"] == pytest.approx(1 - (s / TAU) ** 2, abs=0.02)
    assert frame.loc["site0", "ELBO"] == "settled"
    own = diagnostics.table(apart.to_arviz(draws=100), prior=prior_moments(apart))
    assert own.index.tolist() == ["site0", "site1"] and (own["k-hat"] == 0).all()
    assert "r_hat" not in {str(c).lower().replace("-", "_") for c in (*frame, *own)}
