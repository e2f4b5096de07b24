"""A SuperLink with TLS and SuperNodes with keys on loopback, each in a process group that can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from .documents import ROOT

PATIENCE = float(os.environ.get("PYROFL_TEST_PATIENCE", "300"))  # seconds, for any one thing to happen


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(what: str, happened: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.2)


class Deployment:
    """Certificates, keys, a SuperLink and SuperNodes under one folder; `close` ends what was started."""

    def __init__(self, folder: Path, *, simulation: bool = False):
        self.folder, self.port, self.simulation = folder, free_port(), simulation
        self.log, self.home = folder / "log", folder / "home"
        for path in (self.log, self.home):
            path.mkdir(parents=True)
        self.groups: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        }
        secure = "insecure = true" if simulation else f'root-certificates = "{folder / "authority.pem"}"'
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{secure}\n'
        (self.home / "config.toml").write_text(connection)

    # ------------------------------------------------------------------ processes

    def begin(self, name: str, *command: str, home: Path | None = None) -> None:
        with open(self.log / name, "ab") as out:
            environment = {**self.environment, **({"FLWR_HOME": str(home)} if home else {})}
            self.groups[name] = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
            )

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        process = self.groups.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def close(self) -> None:
        for name in reversed(list(self.groups)):
            self.kill(name, signal.SIGTERM)

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            ["flwr", *arguments], cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def said(self, name: str) -> str:
        path = self.log / name
        return path.read_text(errors="replace") if path.exists() else ""

    # ------------------------------------------------------------------ parts

    def superlink(self) -> None:
        common = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        common += ["--disable-runtime-dependency-installation"]
        if self.simulation:
            self.begin("superlink", *common, "--insecure", "--simulation")
            trust = None
        else:
            self._certificates()
            files = {"certfile": "server.pem", "keyfile": "server.key", "ca-certfile": "authority.pem"}
            paths = [word for flag, file in files.items() for word in (f"--ssl-{flag}", str(self.folder / file))]
            self.begin("superlink", *common, *paths, "--enable-supernode-auth")
            trust = ssl.create_default_context(cafile=str(self.folder / "authority.pem"))
        scheme = "http" if self.simulation else "https"

        def healthy() -> bool:
            with contextlib.suppress(OSError):
                url = f"{scheme}://127.0.0.1:{self.port}/health"
                return urllib.request.urlopen(url, context=trust, timeout=2).status == 200
            return False

        until("the SuperLink's start", healthy)

    def register(self, name: str) -> None:
        self._key(name)
        self.flwr("supernode", "register", str(self.folder / f"{name}-key.pub"), "--name", name)

    def supernode(self, name: str, data: Path, *, key: str | None = None) -> None:
        """Start the SuperNode of a site, with its own key or that of another name."""
        self._key(key or name)
        config = f'site="{name}" data="{data}" state="{self.state(name)}"'
        self.begin(
            name,
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--root-certificates", str(self.folder / "authority.pem")),
            *("--auth-supernode-private-key", str(self.folder / f"{key or name}-key")),
            *("--node-config", config),
            home=self.folder / f"{name}-home",
        )

    def state(self, name: str) -> Path:
        return self.folder / f"{name}-state"

    def run(self, config: Path, out: Path, *overrides: str, federation: str = "") -> str:
        """Submit a run; returns its number. What its ServerApp says goes to the log `run-NUMBER`."""
        settings = f'config="{config}" out="{out}" set="{" ".join(overrides)}"'
        more = ["--federation-config", federation] if federation else []
        said = self.flwr("run", ".", "--run-config", settings, *more)
        (number,) = re.findall(r"started run (\d+)", said)
        self.begin(f"run-{number}", "flwr", "log", str(number), "--stream")
        return str(number)

    def stop(self, number: str) -> None:
        self.flwr("stop", number)

    # ------------------------------------------------------------------ keys

    def _key(self, name: str) -> None:
        path = self.folder / f"{name}-key"
        if not path.exists():
            self._make("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path))

    def _certificates(self) -> None:
        file = lambda name: str(self.folder / name)
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes")
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._make("openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=test", *usage,
                   "-keyout", file("authority.key"), "-out", file("authority.pem"))  # fmt: skip
        self._make("openssl", "req", *curve, "-subj", "/CN=localhost", "-keyout", file("server.key"),
                   "-out", file("server.csr"))  # fmt: skip
        (self.folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        self._make("openssl", "x509", "-req", "-in", file("server.csr"), "-CA", file("authority.pem"), "-CAkey",
                   file("authority.key"), "-CAcreateserial", "-days", "2", "-extfile", file("names"),
                   "-out", file("server.pem"))  # fmt: skip

    @staticmethod
    def _make(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
