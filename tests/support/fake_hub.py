"""A hub on the loopback device: one model, its revisions, and a log of what was asked of it."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class FakeHub:
    """Serves folders as the revisions of one model, the last of them as ``main``.

    ``broken`` names a file whose answer ends after half of its bytes, as of a connection that is
    lost.
    """

    def __init__(self, model: str, revisions: dict[str, Path]) -> None:
        self.model, self.revisions = model, revisions
        self.commits = {name: hashlib.sha1(name.encode()).hexdigest() for name in revisions}
        self.log: list[tuple[str, str, str]] = []  # method, path, Range
        self.broken = ""
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self})
        )
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def folder(self, revision: str) -> tuple[str, Path] | None:
        """Return the commit and folder of a revision: its name, its commit, or main."""
        names = list(self.revisions)
        if revision == "main":
            revision = names[-1]
        for name in names:
            if revision in (name, self.commits[name]):
                return self.commits[name], self.revisions[name]
        return None

    @staticmethod
    def files(folder: Path) -> dict[str, bytes]:
        """Return a folder's files by their names below it."""
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        asked = self.headers.get("Range", "")
        self.hub.log.append((self.command, path, asked))
        api, files = f"/api/models/{self.hub.model}", f"/{self.hub.model}/resolve/"
        if path.startswith(api):
            self._tell(path.removeprefix(api).strip("/").split("/"))
        elif path.startswith(files):
            revision, _, name = path.removeprefix(files).partition("/")
            self._file(revision, name, asked)
        else:
            self._send(404, b"{}", {})

    def _tell(self, parts: list[str]) -> None:
        found = self.hub.folder(parts[1] if len(parts) > 1 else "main")
        if found is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        commit, folder = found
        entries = [
            {"type": "file", "path": name, "rfilename": name, "oid": _tag(data),
             "size": len(data)}
            for name, data in self.hub.files(folder).items()
        ]  # fmt: skip
        about = {"id": self.hub.model, "sha": commit, "siblings": entries}
        tree = parts[0] == "tree"
        self._send(200, json.dumps(entries if tree else about).encode(), {})

    def _file(self, revision: str, name: str, asked: str) -> None:
        found = self.hub.folder(revision)
        data = None if found is None else self.hub.files(found[1]).get(name)
        if found is None or data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        start = int(asked.removeprefix("bytes=").split("-")[0] or 0) if asked else 0
        headers = {"ETag": f'"{_tag(data)}"', "X-Repo-Commit": found[0],
                   "Accept-Ranges": "bytes"}  # fmt: skip
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        short = name == self.hub.broken and self.command == "GET"
        self._send(206 if start else 200, data[start:], headers, short=short)

    def _send(
        self, status: int, data: bytes, headers: dict[str, Any], *, short: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if short else data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def _tag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
