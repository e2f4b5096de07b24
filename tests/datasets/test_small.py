"""Digits, the synthetic federation, and the heart-disease files."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor

from pyrofl.datasets import digits, heart, synthetic
from pyrofl.datasets.synthetic import coefficients


def test_digits():
    flat, images = digits(), digits(images=True)
    assert flat.x.shape == (1797, 64) and images.x.shape == (1797, 1, 8, 8)
    assert torch.equal(images.x.flatten(1), flat.x) and flat.x.dtype == torch.float32
    assert flat.x.min() == 0 and flat.x.max() == 1
    assert torch.bincount(flat.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert flat.classes == tuple("0123456789")
    assert torch.bincount(digits(limit=5).y).tolist() == [5] * 10
    assert any("float64" in note for note in flat.notes)


MODELS = {
    "bernoulli": LogisticRegression(C=np.inf, tol=1e-8),
    "gaussian": LinearRegression(),
    "poisson": PoissonRegressor(alpha=0, tol=1e-8, max_iter=1000),
}


@pytest.mark.parametrize("likelihood", sorted(MODELS))
def test_maximum_likelihood_finds_the_truth(likelihood):
    """With 20,000 rows a site the estimates are within 0.12, about 6 standard errors, of the truth."""
    data = synthetic(likelihood=likelihood, sites=2, rows=20_000, features=2, seed=3)
    truth = coefficients(sites=2, features=2, seed=3)
    for k in range(2):
        x, y = data.x[data.site == k].numpy(), data.y[data.site == k].numpy()
        model = MODELS[likelihood].fit(x, y)
        found = np.concatenate([np.ravel(model.intercept_), np.ravel(model.coef_)])
        assert np.abs(found - truth[k].numpy()).max() < 0.12


def test_sites_differ_by_spread_and_shift_and_not_without():
    same = coefficients(sites=4, spread=0.0)
    assert (same == same[0]).all() and same[0].tolist() == [0, 1, -1, 1]
    drawn = coefficients(sites=4000, features=1, spread=0.5, seed=9) - torch.tensor([0.0, 1.0])
    assert stats.kstest(drawn.flatten() / 0.5, "norm").pvalue > 1e-6
    level = synthetic(shift=0.0, rows=4000, sites=2).x.reshape(2, 4000, 3).mean(1)
    assert level.abs().max() < 6 / 4000**0.5
    assert synthetic(shift=5.0, rows=4000, sites=2).x.reshape(2, 4000, 3).mean(1).abs().max() > 1


def test_a_synthetic_set_is_its_seed_and_arguments():
    a, b, other = synthetic(seed=1), synthetic(seed=1), synthetic(seed=2)
    assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and not torch.equal(a.x, other.x)
    assert a.sites == ("client0", "client1", "client2", "client3", "client4")
    assert torch.bincount(a.site).tolist() == [100] * 5
    assert a.classes == ("0", "1") and synthetic(likelihood="poisson").y.dtype == torch.float32


def test_senseless_synthetic_sets_are_refused():
    with pytest.raises(ValueError, match="did you mean"):
        synthetic(likelihood="poison")
    with pytest.raises(ValueError, match="must be at least 1"):
        synthetic(rows=0)


ROWS = {
    "cleveland": "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n67,1,4,160,286,0,0,108,1,1.5,2,3,3,2\n",
    "hungarian": "28,1,2,130,132,0,1,185,0,0,?,?,?,0\n29,1,2,140,?,0,0,170,0,0,?,?,?,0\n",
    "switzerland": "32,1,3,95,0,0,0,127,0,.7,1,?,?,1\n",
    "va": "63,1,4,140,260,0,1,112,1,3,2,?,?,4\n60,1,4,132,218,?,1,140,1,1.5,3,?,?,2\n",
}


@pytest.fixture
def hospitals(tmp_path):
    for name, text in ROWS.items():
        (tmp_path / f"processed.{name}.data").write_text(text)
    return tmp_path


def test_heart_features_and_sites(hospitals):
    data = heart(path=hospitals)
    assert data.sites == ("cleveland", "hungarian", "switzerland", "va")
    assert data.site.tolist() == [0, 0, 1, 2, 3] and data.y.tolist() == [0, 1, 0, 1, 1]
    expected = [
        [63, 1, 0, 0, 0, 145, 233, 1, 0, 1, 150, 0, 2.3],
        [67, 1, 0, 0, 1, 160, 286, 0, 0, 0, 108, 1, 1.5],
        [28, 1, 1, 0, 0, 130, 132, 0, 1, 0, 185, 0, 0],
        [32, 1, 0, 1, 0, 95, 0, 0, 0, 0, 127, 0, 0.7],
        [63, 1, 0, 0, 1, 140, 260, 0, 1, 0, 112, 1, 3],
    ]
    assert torch.equal(data.x, torch.tensor(expected))
    assert data.likelihood == "bernoulli" and data.classes == ("healthy", "disease")
    assert "heart, va: 1 rows, 1 with missing values dropped" in data.notes
    assert "heart, switzerland: 1 rows without a cholesterol measurement (0) are kept as 0" in data.notes


def test_heart_without_unmeasured_cholesterol(hospitals):
    rows = heart(path=hospitals, cholesterol="drop_rows")
    assert rows.site.tolist() == [0, 0, 1, 3] and len(rows.sites) == 4
    column = heart(path=hospitals, cholesterol="drop_column")
    assert column.x.shape == (5, 12) and column.x[0, 5:7].tolist() == [145, 1]


def test_heart_is_found_under_the_data_root(hospitals, tmp_path_factory):
    base = tmp_path_factory.mktemp("data")
    (base / "heart").symlink_to(hospitals)
    assert len(heart(root=base).y) == 5
    with pytest.raises(FileNotFoundError, match=r"the heart data are not in .*/heart, .*archive\.ics\.uci\.edu"):
        heart(root=base / "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("63,1,9,140,260,0,1,112,1,3,2,?,?,4\n", "row 1, column 'cp': '9' is not valid"),
        (ROWS["va"] + "60,1,4,x,218,0,1,140,1,1.5,3,?,?,2\n", "row 3, column 'trestbps': 'x' is not valid"),
        ("63,1,4\n", "has 3 columns and should have 14"),
    ],
)
def test_heart_files_that_are_wrong_are_named(hospitals, text, message):
    (hospitals / "processed.va.data").write_text(text)
    with pytest.raises(ValueError, match=f"processed.va.data.*{message}"):
        heart(path=hospitals)


def test_a_missing_hospital_is_named(hospitals):
    (hospitals / "processed.va.data").unlink()
    with pytest.raises(FileNotFoundError, match=r"processed\.va\.data is missing"):
        heart(path=hospitals)
