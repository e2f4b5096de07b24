"""kill -9 at random moments of runs with states of their own, then `pyrofl resume`: no difference to a whole run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.compare import same
from support.tables import small_of, written

from pyrofl.store import load_tree

KILLS, ROUNDS = 5, 14  # a method
METHODS = {
    "alone": {},
    "meta_bayfl": {"optimizers": ["sgd:0.1", "adam:1e-2"]},
}
# a forked child is at work at once, where a new interpreter would import for seconds
SERVER = """
import os, sys
import pyrofl.cli, support.nets, torch
torch.set_num_threads(1)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv = ["pyrofl", *line.split()]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        pyrofl.cli.main()
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Commands:
    """`pyrofl ...` in a process of its own that can be killed."""

    def __init__(self, where: Path):
        self.where, here = where, Path(__file__).parent
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
            "OMP_NUM_THREADS": "1",
        }
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=where,
            env=environment,
        )

    def start(self, line: str) -> int:
        """The process id of a command that is now at work."""
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(line + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def wait(self) -> int:
        """The exit code of the command; negative codes are signals."""
        assert self.server.stdout is not None
        return int(self.server.stdout.readline())

    def close(self) -> None:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(10)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    started = Commands(tmp_path_factory.mktemp("runs"))
    yield started
    started.close()


def kill_when(child: int, reached: Callable[[], bool], delay: float) -> None:
    """SIGKILL `delay` seconds after `reached()`, unless the process ends before."""
    with contextlib.suppress(ProcessLookupError):
        while not reached():
            os.kill(child, 0)
            time.sleep(0.001)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)


def tensors_and_tables(run: Path) -> dict[str, Path]:
    kept = (p for p in run.rglob("*") if p.suffix in (".safetensors", ".csv") and p.name != "timings.csv")
    return {str(p.relative_to(run)): p for p in kept}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("method", METHODS)
def test_kill_and_resume_equals_the_uninterrupted_run(method: str, commands: Commands) -> None:
    table = small_of(method, **METHODS[method])
    table |= {"rounds": ROUNDS, "evaluate": {"every": 3, "draws": 2, "final_draws": 2}}
    written(commands.where / f"{method}.toml", table)
    whole, parts = (commands.where / f"{method}-{name}" for name in ("whole", "parts"))
    commands.start(f"run {method}.toml --out {whole.name}")
    assert commands.wait() == 0
    size = (whole / "metrics.csv").stat().st_size
    metrics, moments, committed = parts / "metrics.csv", random.Random(method), []
    for k in range(KILLS):
        begun = f"resume {parts.name}" if (parts / "config.toml").exists() else f"run {method}.toml --out {parts.name}"
        goal = 0.95 * size * (k + moments.random()) / KILLS if k else 0.0  # the first one before the first round
        child = commands.start(begun)
        kill_when(child, lambda g=goal: metrics.exists() and metrics.stat().st_size >= g, moments.uniform(0, 0.03))
        assert commands.wait() in (-signal.SIGKILL, 0)
        if (parts / "server.safetensors").exists():
            committed.append(int(load_tree(parts / "server.safetensors")[1]["round"]))
    commands.start(
        f"resume {parts.name}" if (parts / "config.toml").exists() else f"run {method}.toml --out {parts.name}"
    )
    assert commands.wait() == 0
    assert committed == sorted(committed)
    assert sum(0 < k < ROUNDS for k in set(committed)) >= 2, "the kills must hit the rounds"
    one, other = tensors_and_tables(whole), tensors_and_tables(parts)
    assert one.keys() == other.keys()
    for name, path in one.items():
        if name.endswith(".safetensors"):  # whose first difference can be named
            same(load_tree(path)[0], load_tree(other[name])[0], name)
        assert path.read_bytes() == other[name].read_bytes(), name
    assert not list(parts.rglob("*.tmp")), "a killed write leaves nothing behind"
