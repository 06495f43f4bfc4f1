"""Runs ``sluice serve`` with workers as a process of its own, and sends requests to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-c", "from sluice.retrieval.cli import main; main()")


class Served:
    """``sluice serve --workers 2`` as a process, and requests to it, each over a new connection."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [*COMMAND, "serve", str(folder), "--port", "0", "--workers", "2", *words]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )  # fmt: skip
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                break
        else:
            raise AssertionError("".join(self.lines))
        errors = self.process.stderr
        self._rest = threading.Thread(target=lambda: self.lines.extend(errors), daemon=True)
        self._rest.start()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; return the status and the answer, parsed where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.getheader("content-type", "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def states(self) -> dict[str, float]:
        """The state that each worker serves."""
        _, text = self.ask("GET", "/metrics")
        pairs = re.findall(r'^sluice_state{pid="(\d+)"} (\S+)', text, re.MULTILINE)
        return {number: float(state) for number, state in pairs}

    def workers(self) -> list[int]:
        """The process ids of workers: descendants that lead a group of their own."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(stat.parent.name)] = int(fields[1]), int(fields[2])
        family = [self.process.pid]
        for pid in family:
            family += [child for child, (parent, _) in parents.items() if parent == pid]
        return [pid for pid in family[1:] if parents[pid][1] == pid]

    def end(self) -> None:
        """Kill the parent, and close what was read."""
        self.process.kill()
        self.process.wait()
        self._rest.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def until(self, right: Callable[[], bool]) -> None:
        """Wait until something is so; what was logged is shown where it never is."""
        end = time.monotonic() + 90
        while not right():
            assert time.monotonic() < end, "".join(self.lines[-30:])
            time.sleep(0.05)
