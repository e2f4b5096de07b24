"""`pyrofl shrink`, run as a user runs it."""

import csv
import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from pyrofl.empirical_bayes.command import shrink

TABLE = "site,effect,stderr,rows\n" + "".join(f"s{i},{(i % 3) + 0.1 * i},0.4,{10 + i}\n" for i in range(12))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    app = typer.Typer()
    app.command()(shrink)

    def go(*arguments, table=TABLE):
        (tmp_path / "sites.csv").write_text(table, encoding="utf-8")
        return CliRunner().invoke(app, [str(tmp_path / "sites.csv"), *arguments])

    return go


BASIC = ("--estimate", "effect", "--se", "stderr", "--id", "site")


@pytest.mark.parametrize("prior", ["npmle", "gaussian", "mixture"])
def test_table_csv_prior_and_figures(run, tmp_path, prior):
    result = run(*BASIC, "--n", "rows", "--prior", prior)
    assert result.exit_code == 0, result.output
    with open(tmp_path / "sites-shrunken.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["site"] for row in rows] == [f"s{i}" for i in range(12)]
    raw, mean = (np.array([float(row[c]) for row in rows]) for c in ("raw", "shrunken"))
    np.testing.assert_allclose(raw, [(i % 3) + 0.1 * i for i in range(12)])
    assert mean.var() < raw.var()
    printed = [
        line.split()[0]
        for line in result.output.splitlines()
        if line.strip().startswith("s") and line.split()[0] != "site"
    ]
    assert printed == [f"s{i}" for i in np.argsort(-mean, kind="stable")]
    for name in ("caterpillar", "prior"):
        assert (tmp_path / f"sites-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert abs(sum(json.loads((tmp_path / "sites-prior.json").read_text())["weights"]) - 1) < 1e-9


def test_sites_of_one_name_keep_their_own_row_counts(run):
    result = run(*BASIC, "--n", "rows", table="site,effect,stderr,rows\nA,5,1,100\nB,3,1,50\nA,1,1,7\n")
    shown = [line.split()[:3] for line in result.output.splitlines() if line.split()[:1] in (["A"], ["B"])]
    assert shown == [["A", "100", "5"], ["B", "50", "3"], ["A", "7", "1"]]
    assert "1 names of 'site' stand in several rows each, such as 'A'" in result.output


def test_what_is_wrong_with_the_command_is_said_before_the_fit(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pyrofl.empirical_bayes.command.shrink_sites", lambda *a, **k: pytest.fail("it was fitted"))
    (tmp_path / "file").write_text("")
    for wrong, says in {
        ("--level", "95"): "--level 95: a probability",
        ("--out", str(tmp_path / "file")): "--out",
    }.items():
        result = run(*BASIC, *wrong)
        assert result.exit_code == 2 and says in result.output


def test_the_same_seed_writes_the_same_files(run, tmp_path):
    run(*BASIC, "--out", str(tmp_path / "a"))
    run(*BASIC, "--out", str(tmp_path / "b"))
    one, two = ((tmp_path / d / "sites-shrunken.csv").read_bytes() for d in "ab")
    assert one == two


def test_new_sites_are_scored_against_a_stored_prior(run, tmp_path):
    run(*BASIC, "--out", str(tmp_path / "old"))
    prior = tmp_path / "old" / "sites-prior.json"
    result = run(*BASIC, "--prior-from", str(prior), table="site,effect,stderr\nnew,9,1e6\n")
    assert result.exit_code == 0, result.output
    record = json.loads(prior.read_text())
    wanted = sum(w * a[0] for w, a in zip(record["weights"], record["atoms"]))
    with open(tmp_path / "sites-shrunken.csv", encoding="utf-8", newline="") as stream:
        assert float(next(csv.DictReader(stream))["shrunken"]) == pytest.approx(wanted, abs=1e-4)
    result = run("--events", "r", "--trials", "n", "--prior-from", str(prior), table="r,n\n1,4\n")
    assert result.exit_code == 2
    assert "prior is of kind 'estimate'" in result.output


def test_counts_and_family(run):
    table = "h,r,n\nA,0,47\nB,18,148\nC,8,119\nD,46,810\n"
    assert run("--events", "r", "--trials", "n", "--family", "binomial", table=table).exit_code == 0
    assert run("--events", "r", "--exposure", "n", table=table).exit_code == 0
    result = run("--events", "r", "--trials", "n", "--family", "poisson", table=table)
    assert result.exit_code == 2
    assert "needs --events with --exposure" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--estimate", "efect", "--se", "stderr"), 'did you mean "effect"'),
        ((*BASIC, "--prior", "npmel"), 'did you mean "npmle"'),
        ((*BASIC, "--family", "fixd"), 'did you mean "fixed"'),
        ((*BASIC, "--level", "1.5"), "between 0 and 1"),
        (("--estimate", "effect"), "give --estimate with --se"),
    ],
)
def test_errors_name_the_nearest_and_exit_with_two(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_long_tables_are_cut_and_all_prints_them(run):
    table = "site,effect,stderr\n" + "".join(f"s{i},{i},1\n" for i in range(70))
    short, full = (
        run(*BASIC, "--prior", "gaussian", table=table),
        run(*BASIC, "--prior", "gaussian", "--all", table=table),
    )
    assert "10 more, --all prints them" in short.output
    assert "s35 " in full.output
    assert "s35 " not in short.output
