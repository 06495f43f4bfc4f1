"""``sluice serve`` and ``sluice key`` as a user starts them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from serving import EXTRA

from sluice.retrieval.serving.settings import Keys

COMMAND = (sys.executable, "-c", "from sluice.retrieval.cli import main; main()")


def _asked(address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.thorough
def test_texts_become_a_service_that_ends_well(tmp_path: Path) -> None:
    """Documents are indexed, served, asked while slow clients hang on, and stopped by SIGTERM."""
    for name in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(name, reason=EXTRA)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "zebra.md").write_text("# Zebra\n\nA zebra crossing in the rain.\n")
    (notes / "other.md").write_text("# Gold\n\nGold in the river.\n")
    words = ["serve", str(notes), "--bm25", "--output", str(tmp_path / "built"), "--port", "0"]
    process = subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"at (http://127\.0\.0\.1:(\d+))", line):
                break
        else:
            pytest.fail("".join(lines))
        address, port = found.group(1), int(found.group(2))
        rest = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        rest.start()
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for client in slow:  # they never end their headers
            client.sendall(b"POST /search HTTP/1.1\r\nhost: localhost\r\n")
        end = time.monotonic() + 20
        while True:
            try:
                assert _asked(f"{address}/ready")["ready"]  # 503 until it is warm
                break
            except urllib.error.URLError:
                assert time.monotonic() < end
                time.sleep(0.05)
        answer = _asked(f"{address}/search", {"query": "zebra", "highlight": True})
        assert [hit["title"] for hit in answer["hits"]] == ["Zebra"]
        process.send_signal(signal.SIGTERM)
        for client in slow:
            client.close()
        assert process.wait(20) == 0
        rest.join(5)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert "stopped" in lines[-1]
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert {each["path"] for each in logged} >= {"/search", "/ready"}


def test_the_log_of_requests_ends_with_the_service(
    sluice: Call, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a program that goes on, a handler that is left writes to a stream that is closed."""
    pytest.importorskip("uvicorn", reason=EXTRA)
    pytest.importorskip("starlette", reason=EXTRA)
    from sluice.retrieval.serving.processes.server import REQUESTS, logged_requests

    lines = logging.getLogger(REQUESTS)
    before = (lines.handlers[:], lines.propagate, threading.active_count())
    code, _, _ = sluice("serve", built, "--port", "0", "--keys", "no.json")
    assert code == 2
    assert (lines.handlers, lines.propagate, threading.active_count()) == before
    lines.setLevel(logging.INFO)
    try:
        with pytest.raises(KeyboardInterrupt), logged_requests():
            lines.info('{"path": "/search"}')
            raise KeyboardInterrupt
        assert capsys.readouterr().err == '{"path": "/search"}\n'
    finally:
        lines.setLevel(logging.NOTSET)
    assert (lines.handlers, lines.propagate) == before[:2]


def test_keys_are_printed_once(sluice: Call, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    code, out, _ = sluice("key", file, "page", "--scope", "search", "--scope", "write")
    assert code == 0
    found = Keys(file).find(out.strip())
    assert found is not None
    assert found.scopes == {"search", "write"}
    code, _, err = sluice("key", file, "page", "--scope", "reed")
    assert code == 2
    assert "scope 'reed'" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "nothing: no such folder"),
        (["FOLDER", "--host", "0.0.0.0"], "no keys are set; give --keys FILE"),
        (["FOLDER", "--mcp", "sse"], "--mcp: 'sse'; expected one of http, stdio"),
        (["FOLDER", "--mcp", "stdio", "--rate", "3"], "--rate: is not for --mcp stdio"),
        (["FOLDER", "--mcp", "stdio", "--writable"], "--writable: is not for --mcp stdio"),
        (["FOLDER", "--mcp", "stdio", "--body-kb", "9"], "--body-kb: is not for --mcp stdio"),
        (["FOLDER", "--mcp", "stdio", "--port", "9"], "--port: is not for --mcp stdio"),
        (["FOLDER", "--mcp", "stdio", "--most-inputs", "9"], "--most-inputs: is not for --mcp"),
        (["FOLDER", "--bm25"], "--bm25: is for documents, and"),
        (["FOLDER", "--keys", "no.json"], "no.json: no such file; sluice key"),
        (["FOLDER", "--pipeline", "hybird"], "did you mean 'hybrid'?"),
        (["FOLDER", "--queue-tokens", "5"], "queue_tokens: 5, and a batch has up to"),
    ],
)
def test_mistakes_are_named(sluice: Call, built: Path, words: list[str], message: str) -> None:
    if "--keys" in words or "--pipeline" in words:
        pytest.importorskip("starlette", reason=EXTRA)
        pytest.importorskip("uvicorn", reason=EXTRA)
    named = [str(built) if word == "FOLDER" else word for word in words]
    code, _, err = sluice("serve", *named, *(() if "stdio" in words else ("--port", "0")))
    assert code == 2
    assert message in err


def test_a_missing_extra_is_named(
    sluice: Call, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("sluice.retrieval.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = sluice("serve", built)
    assert code == 2
    assert "serving over HTTP needs the package uvicorn" in err
    assert "pip install 'sluice-ir[serve]'" in err


def test_a_port_that_is_taken(sluice: Call, built: Path) -> None:
    pytest.importorskip("uvicorn", reason=EXTRA)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = sluice("serve", built, "--port", port)
    assert code == 2
    assert f"--port {port}:" in err
    assert "choose another one" in err
