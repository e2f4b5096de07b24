"""Every Python block of docs/shrinkage.md runs, in order, in one namespace; every shell line parses."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pyrofl.empirical_bayes.command import shrink

PAGE = (Path(__file__).parents[2] / "docs" / "shrinkage.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_the_python_blocks_run_and_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(blocks("python")) == 6
    space: dict = {}
    for block in blocks("python"):
        exec(compile(block, "docs/shrinkage.md", "exec"), space)
    assert space["fit"].converged


TABLES = {
    "sites.csv": "site,effect,stderr\n" + "".join(f"s{i},{i % 4},0.5\n" for i in range(9)),
    "deaths.csv": "hospital,r,n\nA,0,47\nB,18,148\nC,8,119\n",
    "cases.csv": "county,y,expected\nA,9,1.4\nB,39,8.7\nC,11,3.0\n",
    "new.csv": "effect,stderr\n1.0,0.5\n",
}


def test_the_shell_lines_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(shrink)
    for name, text in TABLES.items():
        Path(name).write_text(text, encoding="utf-8")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        program, command, *arguments = shlex.split(line)
        assert (program, command) == ("pyrofl", "shrink")
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.mark.parametrize("ending", ["shrunken.csv", "prior.json", "caterpillar.png", "prior.png"])
def test_the_page_names_the_files_that_are_written(ending):
    assert f"-{ending}" in PAGE
