"""Reading site tables: every kind of file that broke software of this kind."""

import numpy as np
import pytest

from pyrofl.empirical_bayes import Mixture, read_table, shrink_sites, sites_of
from pyrofl.empirical_bayes.table import TableError


@pytest.fixture
def file(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "sites.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def read(path, **options):
    return sites_of(read_table(path), **{"estimate": "effect", "se": "stderr", "id": "site", **options})


PLAIN = "site,effect,stderr\nA,1.5,0.2\nB,-0.25,0.4\nC,3,0.1\n"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", " | "),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("site", '"site"').replace("A", '"A"'),
        PLAIN + "\n\n",
        "site;effect;stderr\nA;1,5;0,2\nB;-0,25;0,4\nC;3;0,1\n",
        'site,effect,stderr\nA,"1,5","0,2"\nB,"-0,25","0,4"\nC,3,"0,1"\n',
        "site;effect;stderr\nA;1,500;0,200\nB;-0,250;0,400\nC;3,000;0,100\n",
    ],
)
def test_the_same_numbers_from_every_dialect(file, text):
    sites = read(file(text))
    assert sites.names == ("A", "B", "C")
    np.testing.assert_array_equal(sites.raw, [1.5, -0.25, 3.0])
    np.testing.assert_allclose(sites.kernel.plugin()[:, 0, 0], [0.04, 0.16, 0.01])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("site,effect,stderr\nA,1,5,0,2\n", "row 2 has 5 fields, the header 3"),
        ("site;effect;stderr\nA;1,5;0.2\nB;1.5;0.1\n", "mixes decimal commas and points, first at row 2"),
        (
            "site,effect,stderr\nA,1,0.2\nB,,0.1\nC,2,0.1\nD,.,1\n",
            "an empty field where a number is needed, row 3, 5.*--drop-missing",
        ),
        ("site,effect,stderr\nA,1,0.2\nB,high,0.1\n", "'high' where a number is needed, row 3"),
        ("site,effect,stderr\nA,1,0.2\nB,2,-0.1\n", "standard error 'stderr' is negative, row 3"),
        ("site,effect,stderr\nA,inf,0.2\n", "'effect' is not finite, row 2"),
        ("site,Effect,stderr\nA,1,0.2\n", "no column 'effect'; did you mean \"Effect\".*Effect, site, stderr"),
        ("site,effect,effect\nA,1,0.2\n", "two columns are called 'effect'"),
        ('site,effect,stderr\nA,"1,234",0.2\nB,950,0.1\n', "'1,234', row 2: thousands or decimals"),
        ('site,effect,stderr\nA,"1,234,567",0.2\n', "'1,234,567', row 2: thousands or decimals"),
        ('site,effect,stderr\nA,"1,234.5",0.2\n', "'1,234.5', row 2: thousands or decimals"),
        ("site,effect,stderr\nA,1,inf\nB,2,inf\n", "every variance is infinite"),
        ("site,effect,stderr\nA,1,0.2\nB,1e200,0.1\n", "'effect' is beyond 1e\\+150: use another unit, row 3"),
        ("site,effect,stderr\n", "a header .* and no rows"),
        ("", "is empty"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(file, text, message):
    with pytest.raises(TableError, match=f"(?s){message}"):
        read(file(text))


def test_a_refusal_shows_the_head_as_it_was_read(file):
    with pytest.raises(TableError, match="site \\| effect \\| stderr"):
        read(file("site,effect,stderr\nA,1,5,0,2\n"))


def test_other_encodings_and_absent_files(file, tmp_path):
    with pytest.raises(TableError, match="not UTF-8"):
        read(file("site,effect,stderr\nZürich,1,1\n", "latin-1"))
    with pytest.raises(TableError, match="no such file"):
        read_table(tmp_path / "none.csv")


def test_missing_rows_are_dropped_only_on_request_and_counted(file):
    path = file("site,effect,stderr\nA,1,0.2\nB,NA,0.1\nC,2,.\nD,3,0.3\n")
    sites = read(path, drop_missing=True)
    assert sites.names == ("A", "D")
    assert sites.notes == ("2 of 4 rows left out for missing values",)
    with pytest.raises(TableError, match="'odd'"):
        read(file("site,effect,stderr\nA,1,0.2\nB,odd,0.1\n"), drop_missing=True)


def test_columns_must_say_one_thing(file):
    path = file(PLAIN)
    for options in (
        {"se": None},
        {"events": "effect"},
        {"trials": "stderr"},
        {"estimate": None, "se": None, "events": "effect"},
    ):
        with pytest.raises(TableError, match="give --estimate with --se"):
            read(path, **options)


@pytest.mark.parametrize("prior", ["npmle", "gaussian", "mixture"])
def test_errors_zero_keep_the_estimate_and_infinite_ones_get_the_prior(file, prior):
    sites = read(file("site,effect,stderr\nA,1,0\nB,2,0\nC,3,1\nD,4,1\nE,7,inf\n"))
    shrunk = shrink_sites(sites, prior=prior)
    assert shrunk.mean[:2].tolist() == [1.0, 2.0]
    assert shrunk.low[:2].tolist() == [1.0, 2.0]
    assert shrunk.prior_weight[:2].tolist() == [0.0, 0.0]
    assert shrunk.mean[4] == pytest.approx(shrunk.prior.mean[0])
    assert shrunk.prior_weight[4] == 1.0
    assert 1.0 <= shrunk.mean[2] <= 4.0


@pytest.mark.parametrize("prior", ["npmle", "gaussian", "mixture"])
def test_an_error_at_rounding_level_is_flagged_and_does_not_dominate(file, prior):
    rest = "".join(f"s{i},{1 + 0.1 * i},0.5\n" for i in range(10))
    without = shrink_sites(read(file("site,effect,stderr\n" + rest)), prior=prior)
    shrunk = shrink_sites(read(file("site,effect,stderr\n" + rest + "one,9,2e-15\n")), prior=prior)
    assert shrunk.mean[-1] == 9.0
    assert any("one: standard error 2e-15 is rounding" in note for note in shrunk.notes)
    np.testing.assert_allclose(shrunk.mean[:-1], without.mean, atol=0.35)


def test_two_or_three_sites_are_solved_with_a_note(file):
    for text in ("site,effect,stderr\nA,1,1\nB,2,1\n", PLAIN):
        shrunk = shrink_sites(read(file(text)))
        assert np.isfinite(shrunk.mean).all()
        assert any("barely identified" in note for note in shrunk.notes)


def test_counts_are_shrunk_on_their_own_scale(file):
    path = file("h,r,n\nA,0,47\nB,18,148\nC,8,119\nD,46,810\nE,60,100\n")
    sites = sites_of(read_table(path), events="r", trials="n", id="h")
    np.testing.assert_allclose(sites.raw[:2], [0.0, 18 / 148])
    for prior in ("npmle", "gaussian", "mixture"):
        shrunk = shrink_sites(sites, prior=prior)
        assert ((shrunk.low <= shrunk.mean) & (shrunk.mean <= shrunk.high)).all()
        assert (shrunk.low >= 0).all() and (shrunk.high <= 1).all()
        assert 0 <= shrunk.mean[0] < 0.1


def test_a_poisson_table_under_a_gamma_like_prior_by_hand(file):
    # a stored prior of two rates 1 and 3: posterior odds of 3 are 3^y exp(-2 e)
    sites = sites_of(read_table(file("d,y,e\nA,4,2\n")), events="y", exposure="e", id="d")
    stored = Mixture(np.log([[1.0], [3.0]]), np.array([0.5, 0.5]))
    odds = 3.0**4 * np.exp(-4.0)
    assert shrink_sites(sites, stored=stored).mean[0] == pytest.approx((1 + 3 * odds) / (1 + odds))


@pytest.mark.parametrize(
    ("row", "message"),
    [("A,1.5,4", "not a count"), ("A,5,4", "not r out of n"), ("A,-1,4", "not a count"), ("A,0,0", "not positive")],
)
def test_counts_that_are_none_are_refused(file, row, message):
    with pytest.raises(TableError, match=message):
        sites_of(read_table(file(f"h,r,n\n{row}\n")), events="r", trials="n")
