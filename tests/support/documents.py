"""The fenced blocks of a Markdown file, run in order as a reader would: files written, Python executed, commands given.

A block whose first line is a comment with a file name, such as `# my_pkg/priors.py`, is written to that file.
"""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from pyrofl import assemble
from pyrofl.cli import app
from pyrofl.config import config_of

ROOT = Path(__file__).parents[2]
TINY = ("rounds=1", "method.epochs=1", "evaluate.draws=2", "evaluate.final_draws=2")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.(?:py|toml))\n")
_REST: dict[str, Any] = {
    "model": "models.logistic:Logistic",
    "method": "bayfl",
    "data": {"name": "digits", "clients": 2},
}


class Block(NamedTuple):
    """A fenced block: its language and text, and the line where the text begins."""

    language: str
    text: str
    line: int


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


@contextmanager
def working_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in the folder `here` as in a checkout; modules written there are forgotten again."""
    here.mkdir(exist_ok=True)
    for name in ("models", "experiments"):
        (here / name).symlink_to(ROOT / name)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    yield here
    for name in [n for n in sys.modules if n.partition(".")[0] == "my_pkg"]:
        del sys.modules[name]


def run_document(document: Path, here: Path) -> dict[str, int]:
    """Run every block in the folder `here`, the working directory; returns how many of each language there were."""
    names: dict[str, Any] = {"__name__": "__main__"}
    seen: dict[str, int] = {}
    for block in blocks(document):
        seen[block.language] = seen.get(block.language, 0) + 1
        if file := _FILE.match(block.text):
            (here / file[1]).parent.mkdir(parents=True, exist_ok=True)
            (here / file[1]).write_text(block.text)
            importlib.invalidate_caches()
        try:
            if block.language == "python" and not file:
                exec(compile(block.text, str(document), "exec"), names)
            elif block.language == "toml":
                assemble(config_of({**_REST, **tomllib.loads(block.text)}, str(document)))
            elif block.language == "bash":
                for line in block.text.splitlines():
                    command(line)
        except Exception as error:
            error.add_note(f"in the block at {document.name}, line {block.line}")
            raise
    return seen


def command(line: str) -> None:
    """Give one command of a document; `pyrofl` runs in this process, scripts say their help.

    `make` verbs are looked up in the Makefile.
    """
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "make":
        verbs = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in verbs, f"make {words[1]} is no verb of the Makefile"
    elif words[0] == "pyrofl":
        done = CliRunner().invoke(app, [*words[1:], *_less(*words[1:3])], catch_exceptions=False)
        assert done.exit_code == 0, f"{line}\n{done.output}"
    elif words[:2] == ["python", "-m"]:
        says_what_it_does(words[2])
    else:
        assert line in ("source .venv/bin/activate", "export PYROFL_DATA=/path/to/data"), f"{line!r} is not checked"


def says_what_it_does(module: str) -> None:
    """A script that takes minutes is asked for its help: it is there, imports, and has options."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [module, "--help"])
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0


def _less(verb: str, target: str) -> list[str]:
    """Overrides that make a command quick: one round of `run`, one more by `resume`."""
    if verb == "resume":
        return ["rounds=2"]
    if verb != "run":
        return []
    digits = tomllib.loads(Path(target).read_text())["data"]["name"] == "digits"
    return [*TINY, *(["data.limit=20"] if digits else [])]
