"""A headless browser, where the machine has one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
)


class Seen(NamedTuple):
    """A page as the browser built it, and what it wrote to its console."""

    document: str
    console: list[str]


def browser() -> str:
    """The path of a browser; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


def opened(page: Path, profile: Path, *, width: int = 1280) -> Seen:
    """Open a page from the disk in a fresh profile."""
    command = [
        browser(),
        *QUIET,
        f"--user-data-dir={profile}",
        f"--window-size={width},900",
        "--enable-logging=stderr",
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return Seen(done.stdout, re.findall(r"CONSOLE.*", done.stderr))
