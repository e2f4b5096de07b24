"""The report: right numbers in its answer, nothing loaded from elsewhere, nothing unescaped, any number of clients."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.browser import opened
from support.tables import small, small_of
from typer.testing import CliRunner

from pyrofl import assemble
from pyrofl.cli import app
from pyrofl.config import config_of
from pyrofl.report import page, write_report
from pyrofl.report.answer import answer, failing, share_interval
from pyrofl.report.figures import Figures
from pyrofl.report.html import again
from pyrofl.report.parts import Cell, Picture, Table
from pyrofl.report.read import Recorded, named
from pyrofl.store import Record, RunDirectory, load_tree, save_tree

Make = Callable[..., Path]
VOID = {"meta", "link", "input", "br", "img"}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make("name", table)`: a run directory of a quick run, of all its rounds or of `steps`."""

    def one(name: str, table: dict[str, Any] | None = None, *, steps: int | None = None) -> Path:
        assembled = assemble(config_of(table or small()))
        where = RunDirectory(tmp_path / name)
        where.create(f"# command: pyrofl run {name}.toml\n\n{assembled.config.toml()}")
        run = assembled.run(where)
        for now in run:
            if now.number == steps:
                break
        return where.path

    return one


class Elements(HTMLParser):
    """The elements of a page; checks that each one that is opened is closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not set(self.open) & {"style", "svg"}:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.found if name == tag]


class Blank(Figures):
    """Figures that are drawn and not written, which takes most of the time."""

    def picture(self, drawn: Figure, caption: str) -> Picture:
        return Picture("<svg></svg>", caption)


def report(*paths: Path) -> str:
    return page(named(list(paths)))


def plain(text: str) -> str:
    return " ".join(Elements(text).text.split())


def words(*paths: Path) -> str:
    """All that a page says outside its figures."""
    return plain(page(named(list(paths)), figures=Blank()))


def loads(text: str) -> list[str]:
    """What a page would fetch: addresses in attributes that load, and in style sheets."""
    attributes = [
        v
        for tag, attrs in Elements(text).found
        for k, v in attrs.items()
        if (k in ("src", "srcset", "data", "poster") or (k.endswith("href") and tag not in ("a", "use")))
        and not v.startswith(("data:", "#"))
    ]
    return attributes + re.findall(r"@import[^;]*|url\((?![\"']?(?:#|data:))[^)]*\)", text)


# ------------------------------------------------------------------ the page as a file


@pytest.mark.parametrize(
    "table",
    [
        small(evaluate={"every": 1, "draws": 2, "final_draws": 3, "balanced": True, "matched": True}),
        small_of("fedavg"),
        small_of("meta_bayfl", optimizers=["adam:1e-2", "adam:1e-3"]),
        small(data={"name": "synthetic", "likelihood": "poisson", "sites": 3, "rows": 12}),
    ],
    ids=["bayfl", "fedavg", "meta_bayfl", "poisson"],
)
def test_a_page_is_well_formed_loads_nothing_and_describes_its_figures(make: Make, table: dict[str, Any]):
    text = report(make("a", table))
    seen = Elements(text)
    assert loads(text) == [] and not seen.of("script")
    (policy,) = (m["content"] for m in seen.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert all(len(svg["aria-label"]) > 10 and svg["role"] == "img" for svg in seen.of("svg"))
    assert len(seen.of("svg")) == len(seen.of("figure")) >= 2
    ids = [attrs["id"] for _, attrs in seen.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in seen.of("a")} <= set(ids)
    assert {x["for"] for x in seen.of("label")} == {x["id"] for x in seen.of("input")}
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert "<path" in ET.tostring(ET.fromstring(svg.replace("xlink:", "")), default_namespace=None).decode()


def test_loads_finds_what_a_page_would_fetch():
    bad = (
        '<img src="https://a/b.png"><link href="x.css"><style>a{background:url(//c)}</style><a href="http://fine"></a>'
    )
    assert loads(bad) == ["https://a/b.png", "x.css", "url(//c)"]
    assert loads('<img src="data:,"><svg><use href="#a"></use></svg>') == []


def test_what_comes_from_a_run_is_escaped(make: Make):
    evil = "<script>alert('&')</script>"
    path = make(evil.replace("/", "_"))
    config = path / "config.toml"
    config.write_text(f"# command: pyrofl run {evil}\n" + config.read_text())
    for name in ("metrics.csv", "partition.csv"):
        text = (path / name).read_text().replace("client1", evil)
        (path / name).write_text(text)
    size = len((path / "metrics.csv").read_bytes())
    server, meta = load_tree(path / "server.safetensors")
    save_tree(path / "server.safetensors", server, {**meta, "metrics_bytes": str(size)})
    text = page(named([path]), figures=Blank())
    assert "<script" not in text
    assert plain(text).count(evil) >= 3  # in the title, the command and the table


def test_colours_follow_the_theme_and_text_stays_text(make: Make):
    text = report(make("a"))
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "prefers-color-scheme: dark" in text and "var(--blue, #0072b2)" in svgs
    assert not re.search(r"(fill|stroke): #(000000|0072b2)", svgs, re.IGNORECASE)
    assert ">round</text>" in svgs


# ------------------------------------------------------------------ what it says


def test_the_answer_says_the_numbers_of_the_run(make: Make):
    path = make("a", small(data={"name": "synthetic", "sites": 4, "rows": 60}))
    (run,) = named([path])
    said = " ".join(answer([run]).text)
    accuracy = run.last("personal", "accuracy")
    mean = 100 * float(np.mean([v for v in accuracy.values() if v is not None]))
    assert f"bayfl: accuracy {mean:.1f}% on average over clients" in said
    worst = min(accuracy, key=lambda c: accuracy[c])  # type: ignore[arg-type, return-value]
    assert f"It is worst for {worst}: {100 * accuracy[worst]:.1f}% of 12 test rows." in said  # type: ignore[operator]
    right, sure = run.rows["right"], run.rows["confidence"]
    low, high = share_interval(float(right.sum()), len(right))
    assert f"95% interval {100 * low:.1f}% to {100 * high:.1f}%" in said
    assert f"{100 * sure.mean():.1f}% sure on average and {100 * right.mean():.1f}% of the time right" in said
    assert "Method bayfl on synthetic, 4 clients: finished, 3 rounds." in said


def test_share_interval_by_hand():
    """Clopper and Pearson: with no hit of 10 the upper end solves (1 - p)^10 = 0.025."""
    low, high = share_interval(0, 10)
    assert low == 0 and (1 - high) ** 10 == pytest.approx(0.025)
    assert share_interval(10, 10) == (pytest.approx(1 - high), 1.0)


def test_clients_fail_where_they_are_below_the_others_beyond_chance(make: Make):
    """Of 40 rows each, one client has 10 right and the others 36: it alone is named, and marked in the table."""
    path = make("a", small(data={"name": "synthetic", "sites": 4, "rows": 12}))
    client = np.repeat(np.arange(4), 40)
    right = np.concatenate([np.arange(40) < hits for hits in (36, 36, 10, 36)]).astype(float)
    rows = {"client": client, "right": right, "confidence": np.full(160, 0.9), "nll": np.ones(160), "y": right}
    RunDirectory(path).save_record("rows-personal", Record(rows), 3)
    (run,) = named([path])
    assert failing(run) == ["client2"]
    said = " ".join(answer([run]).text)
    assert "It fails, beyond chance, for 1 of 4: client2." in said
    assert "over-confident by 16.2 points" in said and "more than chance can explain" in said
    assert "▼ client2" in plain(page([run], figures=Blank())) and "▼ client1" not in plain(page([run], figures=Blank()))
    rows["right"] = np.tile(np.arange(40) < 36, 4).astype(float)
    RunDirectory(path).save_record("rows-personal", Record(rows), 3)
    (run,) = named([path])
    assert failing(run) == []
    assert "No client is below the others beyond chance" in " ".join(answer([run]).text)


def test_intervals_of_numbers_that_are_too_narrow_are_said_so(make: Make):
    path = make("a", small(data={"name": "synthetic", "likelihood": "gaussian", "sites": 3, "rows": 12}))
    pit = np.concatenate([np.full(30, 0.01), np.full(30, 0.5)])
    rows = {"client": np.repeat(np.arange(3), 20), "pit": pit, "y": pit, "mean": pit, "nll": pit}
    RunDirectory(path).save_record("rows-personal", Record(rows), 3)
    said = " ".join(answer(named([path])).text)
    assert "Its 90% intervals hold 50.0% of the observations" in said and ": too few." in said


def test_sections_that_mean_nothing_are_left_out_with_a_reason(make: Make):
    text = words(make("a", small_of("fedavg")))
    assert "Method fedavg selects nothing." in text
    assert "The weights are point estimates, which have no width." in text
    assert "Coverage of intervals is for numbers and counts, and this run predicts classes." in text
    assert "All clients predict with the same model." in text
    assert "epistemic" not in text
    text = words(make("b", small(data={"name": "synthetic", "likelihood": "poisson", "sites": 3, "rows": 12})))
    assert "A reliability diagram is for classes, and this run predicts numbers." in text


def test_a_run_that_is_not_finished(make: Make):
    table = small(rounds=9)
    text = words(make("a", table, steps=3))
    assert "not finished. 3 of 9 rounds are done; the numbers are of round 2." in text
    text = words(make("b", table, steps=1))
    assert "not finished. 1 of 9 rounds are done; no round was scored yet." in text
    assert "Training rows of each class at each client" in text


def test_reading_a_run_changes_nothing_and_ignores_what_is_not_committed(make: Make):
    path = make("a", small(rounds=9), steps=2)
    whole = words(path)
    with open(path / "metrics.csv", "a") as f:
        f.write("3,client0,test,personal/accuracy,0.12")  # half of a round that is being written
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert words(path) == whole
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_a_run_of_an_older_version_lacks_rows_posteriors_and_partition(make: Make):
    path = make("a")
    for file in (*path.glob("rows-*"), path / "posteriors.safetensors", path / "partition.csv"):
        file.unlink()
    text = words(path)
    assert "No predictions of single rows are kept" in text and "The partition is not recorded" in text
    assert "bayfl: accuracy" in text


def test_several_runs_side_by_side(make: Make):
    paths = [make("a"), make("b", small_of("fedavg")), make("c", small(rounds=9), steps=2)]
    text = page(named(paths), figures=Blank())
    said = plain(text)
    assert re.search(r"[abc] leads with the clients’ own models: accuracy [\d.]+% on average over clients", said)
    assert "c: method bayfl on synthetic, 3 clients: not finished." in said
    assert "paired over clients" in said
    assert said.count("training rows a client from") == 1  # one partition for the three of them
    assert text.count("<details>") == 3
    mixed = plain(report(paths[0], make("d", small(data={"name": "synthetic", "likelihood": "gaussian", "sites": 3}))))
    assert "These runs have no score in common." in mixed
    assert "root mean squared error" in mixed and "Brier score" in mixed


def test_runs_of_the_same_name_are_told_apart(make: Make, tmp_path: Path):
    (tmp_path / "x").mkdir(), (tmp_path / "y").mkdir()
    paths = [make("x/same"), make("y/same")]
    assert [r.name for r in named(paths)] == [str(p) for p in paths]


def test_the_command_reproduces_the_run(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = make("a")
    (run,) = named([path])
    words = again(run).split()
    assert words[:2] == ["pyrofl", "run"]
    assert CliRunner().invoke(app, words[1:], catch_exceptions=False).exit_code == 0
    assert (Path(words[-1]) / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()


def crowd(clients: int) -> dict[str, Any]:
    table = small_of("bayfl", finetune=True)
    return table | {"rounds": 1, "data": {"name": "synthetic", "sites": clients, "rows": 6}, "engine": "vectorised"}


@pytest.mark.parametrize("clients", [4, 200])
def test_any_number_of_clients(make: Make, clients: int):
    text = page(named([make("a", crowd(clients))]), figures=Blank())
    assert len([row for row in Elements(text).of("tr") if "--c5" in row.get("style", "")]) >= clients
    assert "Wasserstein-2 distance between two clients" in plain(text)


@pytest.mark.slow
def test_a_page_of_200_clients_stays_small_and_opens(make: Make, tmp_path: Path):
    path = write_report([make("a", crowd(200))])
    assert path.stat().st_size < 1_500_000
    assert opened(path, tmp_path / "profile").console == []


# ------------------------------------------------------------------ tables


def test_ranks_sort_numbers_by_value_text_by_letters_and_what_is_undefined_last():
    rows = [[Cell("b", "b"), Cell("10", 10.0)], [Cell("a", "a"), Cell("–")], [Cell("c", "c"), Cell("9", 9.0)]]
    assert Table("", ["name", "n"], rows).ranks() == [[1, 1], [0, 2], [2, 0]]


def test_cells_write_numbers_for_people():
    texts = [Cell.number(0.1234).text, Cell.number(0.5, share=True, more="(1)").text, Cell.number(None).text]
    assert texts == ["0.123", "50.0% (1)", "–"]
    assert Cell.number(float("nan")).key is None
    assert Cell.number(float("inf")).text == "infinite"


# ------------------------------------------------------------------ command line, browser


def test_the_command_writes_into_the_run_or_where_it_is_told(make: Make, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    make("a"), make("b")
    monkeypatch.setattr("pyrofl.report.html.page", lambda runs: " ".join(r.name for r in runs))

    def call(*arguments: str) -> None:
        assert CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False).exit_code == 0

    call("a"), call("a", "b"), call("b", "--out", "deep/er/b.html")
    written_pages = {p.as_posix(): p.read_text() for p in Path().rglob("*.html")}
    assert written_pages == {"a/report.html": "a", "report.html": "a b", "deep/er/b.html": "b"}


def test_what_is_no_run_or_has_not_begun_is_said(make: Make, tmp_path: Path):
    make("begun")
    with pytest.raises(ValueError, match='is not a run directory; did you mean "begun"'):
        report(tmp_path / "begin")
    (tmp_path / "begun" / "server.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no round yet"):
        Recorded.read(tmp_path / "begun", "begun")


def test_a_browser_opens_it_without_a_complaint(make: Make, tmp_path: Path):
    path = write_report([make("a", small_of("meta_bayfl", optimizers=["adam:1e-2", "adam:1e-3"]))])
    seen = opened(path, tmp_path / "profile", width=390)
    assert seen.console == []
    assert seen.document.count("<svg") == path.read_text().count("<svg")
    broken = tmp_path / "broken.html"
    broken.write_text(path.read_text().replace("<main>", '<main><img src="http://pyrofl.invalid/x.png">'))
    assert "Content Security Policy" in " ".join(opened(broken, tmp_path / "profile2").console)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("server.safetensors", lambda b: b[:20], "not a readable safetensors file"),
        ("config.toml", lambda _: b"", "has no method"),
        ("config.toml", lambda b: b + b"[", "not valid TOML"),
        ("metrics.csv", lambda b: b[:-30], "were committed: it was changed after the run"),
        ("metrics.csv", lambda b: b.replace(b"value", b"worth", 1), "no column 'value'"),
        ("metrics.csv", lambda b: b[:-2] + b"x\n", "it was changed after the run"),
        ("timings.csv", lambda _: b"", "not a readable CSV file"),
        ("timings.csv", lambda _: b'a,b\n1,2,3\n"', "not a readable CSV file"),
    ],
)
def test_damaged_files_are_named(make: Make, file: str, damage: Callable[[bytes], bytes], message: str):
    path = make("one", small(rounds=1))
    (path / file).write_bytes(damage((path / file).read_bytes()))
    for command in ("report", "compare"):
        with pytest.raises(ValueError, match=re.escape(message)) as error:
            CliRunner().invoke(app, [command, str(path)], catch_exceptions=False)
        assert str(path / file) in str(error.value)


def test_a_page_is_not_written_in_the_place_of_a_directory(make: Make, tmp_path: Path):
    with pytest.raises(ValueError, match="is a directory: --out names a file"):
        write_report([make("one", small(rounds=1))], tmp_path)
