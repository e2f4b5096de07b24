"""The README runs as printed: its commands, its configuration and its Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT, blocks, run_document, working_directory
from support.stand_in import write_data_root

from pyrofl.methods import METHODS
from pyrofl.priors import PRIORS

README = ROOT / "README.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_data_root(tmp_path / "data")
    monkeypatch.setenv("PYROFL_DATA", str(tmp_path / "data"))
    with working_directory(tmp_path / "checkout", monkeypatch) as folder:
        yield folder


def test_every_block_runs(here: Path):
    seen = run_document(README, here)
    assert seen.keys() == {"bash", "toml", "python", "text"}


def test_opens_with_the_two_commands():
    first = next(b for b in blocks(README) if b.language == "bash")
    assert first.text.splitlines() == ["make demo", "make test"]


def test_shows_the_table_of_the_demo():
    """One line for each run of `make demo`, in the personal models' table."""
    shown = next(b for b in blocks(README) if b.language == "text").text
    (runs,) = re.findall(r"^DEMO := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in runs.split():
        assert len(re.findall(rf"^│ {name} ", shown, re.MULTILINE)) >= 1, name


def test_figures_are_small():
    figures = [README.parent / f for f in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text())]
    assert len(figures) >= 2
    assert all(f.stat().st_size < 150_000 for f in figures)


def test_names_every_method_and_prior():
    text = README.read_text()
    assert [m for m in METHODS if f"`{m}`" not in text] == []
    assert [p for p in PRIORS if p not in text] == []
