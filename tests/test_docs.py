"""Every block of code in docs/ runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT, blocks, run_document, working_directory
from support.stand_in import write_data_root

DOCUMENTS = sorted(p for p in (ROOT / "docs").glob("*.md") if p.stem != "shrinkage")
LANGUAGES = {"python", "toml", "bash", "text", ""}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_root(tmp_path_factory.mktemp("data"))


@pytest.fixture
def here(tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYROFL_DATA", str(data_root))
    with working_directory(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_block_runs(document: Path, here: Path):
    seen = run_document(document, here)
    assert seen.keys() <= LANGUAGES and seen.keys() & {"python", "toml", "bash"}


@pytest.mark.parametrize("document", [ROOT / "README.md", *DOCUMENTS], ids=lambda p: p.name)
def test_every_link_into_the_repository_leads_somewhere(document: Path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_documents_hold_blocks_of_known_languages_only():
    found = {(p.name, b.language) for p in DOCUMENTS for b in blocks(p)}
    assert {language for _, language in found} <= LANGUAGES
