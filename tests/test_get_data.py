"""``scripts/get_data.py`` against a server that fails in every way, and then one that does not."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from places import ROOT

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import load_dataset

Handler = Callable[[BaseHTTPRequestHandler], None]
FILES = {
    "corpus.jsonl": '{"_id": "d1", "title": "", "text": "a red fox"}\n',
    "queries.jsonl": '{"_id": "q1", "text": "fox"}\n',
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
}


def zipped(files: dict[str, str], *, packed: bool = False) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as out:
        for name, text in files.items():
            out.writestr(name, text)
    return held.getvalue()


GOOD = zipped({f"toy/{name}": text for name, text in FILES.items()})


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import get_data

    return get_data


@contextlib.contextmanager
def serving(handle: Handler) -> Iterator[str]:
    """Yield the address of a folder on the loopback device whose every file ``handle`` answers."""

    class Own(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):
                handle(self)
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/sets"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sending(
    body: bytes, *, length: int | None = -1, status: int = 200, pause: float = 0
) -> Handler:
    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        if length is not None:
            request.send_header("Content-Length", str(len(body) if length < 0 else length))
        request.end_headers()
        parts = [body] if not pause else [body[n : n + 8] for n in range(0, len(body), 8)]
        for part in parts:
            request.wfile.write(part)
            time.sleep(pause)

    return handle


def redirecting(to: str) -> Handler:
    def handle(request: BaseHTTPRequestHandler) -> None:
        if request.path.startswith("/moved"):
            sending(GOOD)(request)
            return
        request.send_response(302)
        request.send_header("Location", to)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return handle


def closing(request: BaseHTTPRequestHandler) -> None:
    request.connection.close()


OTHER = bytes(reversed(GOOD))
FAILING: dict[str, tuple[Handler, str]] = {
    "404": (sending(b"", status=404), "answers 404 Not Found"),
    "503": (sending(b"busy", status=503), "answers 503"),
    "hangs up": (closing, "."),
    "cut in the middle": (sending(GOOD[:99], length=len(GOOD)), f"after 99 of {len(GOOD)} bytes"),
    "cut without a length": (sending(GOOD[:99], length=None), f"ends after 99 of {len(GOOD)}"),
    "another size": (sending(GOOD + b"x"), f"has {len(GOOD) + 1} bytes, expected {len(GOOD)}"),
    "more than it says": (sending(GOOD + b"x", length=None), "sends more than"),
    "another hash": (sending(OTHER), "has md5 [0-9a-f]{32}, expected"),
    "slow": (sending(GOOD, pause=0.02), "too slow: [0-9]+ bytes a second"),
    "no answer": (lambda _: time.sleep(0.6), "timed out"),
    "redirects elsewhere": (redirecting("http://127.0.0.2:9/toy.zip"), "redirects to http://127.0.0.2:9"),
    "redirects to a file": (redirecting("file:///etc/hosts"), "answers 302"),
    "redirects in a circle": (redirecting("/sets/toy.zip"), "answers 302"),
    "nonsense": (lambda request: request.wfile.write(b"hello\n"), "."),
}  # fmt: skip


def row(script: ModuleType, *addresses: str, body: bytes = GOOD, **known: Any) -> Any:
    facts = {"bytes": len(body), "md5": hashlib.md5(body, usedforsecurity=False).hexdigest()}
    return script.Archive("toy", addresses, **{**facts, **known})


@pytest.mark.parametrize("kind", FAILING)
def test_the_next_address_is_asked(script: ModuleType, tmp_path: Path, kind: str) -> None:
    handle, why = FAILING[kind]
    with serving(handle) as bad, serving(sending(GOOD)) as good:
        with pytest.raises(
            DataError, match=f"no address has it:\n  {re.escape(bad)}/toy.zip: .*{why}"
        ):
            script.get("toy", tmp_path, row(script), [bad], patience=0.3)
        assert list(tmp_path.iterdir()) == []
        found = script.get("toy", tmp_path, row(script, f"{good}/x.zip"), [bad], patience=0.3)
    assert list(tmp_path.iterdir()) == [found] == [tmp_path / "toy"]
    data = load_dataset(found, "test")
    assert [document.text for document in data.corpus] == ["a red fox"]
    assert data.qrels == {"q1": {"d1": 1}}


def test_nobody_listens(script: ModuleType, tmp_path: Path) -> None:
    with serving(sending(GOOD)) as closed:
        pass
    with pytest.raises(DataError, match=r"toy\.zip: .*refused"):
        script.get("toy", tmp_path, row(script), [closed])
    with pytest.raises(DataError, match="unknown url type"):
        script.get("toy", tmp_path, row(script, "nonsense"))


def test_a_redirect_on_the_same_host_is_followed(script: ModuleType, tmp_path: Path) -> None:
    with serving(redirecting("/moved/toy.zip")) as address:
        assert script.get("toy", tmp_path, row(script), [address]).is_dir()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (OTHER, "is no archive that can be read"),
        (zipped({"other/corpus.jsonl": "{}"}), "holds no toy/corpus.jsonl"),
        (zipped({"../corpus.jsonl": "{}", "toy/../../corpus.jsonl": "{}"}), "holds no toy"),
        (zipped({"toy/corpus.jsonl": " " * 9_000_000}, packed=True), "more than 60 times its size"),
    ],
)
def test_archives_that_are_not_opened(
    script: ModuleType, tmp_path: Path, body: bytes, why: str
) -> None:
    home = tmp_path / "home"
    with serving(sending(body)) as address, pytest.raises(DataError, match=why):
        script.get("toy", home, row(script, body=body), [address])
    assert list(home.iterdir()) == []
    assert list(tmp_path.iterdir()) == [home]


def test_only_data_is_taken_out(script: ModuleType, tmp_path: Path) -> None:
    body = zipped(
        {"toy/corpus.jsonl": "{}", "toy/a.py": "", "toy/x/corpus.jsonl": "{}", "b.tsv": ""}
    )
    with serving(sending(body)) as address:
        found = script.get("toy", tmp_path, row(script, body=body), [address])
    files = sorted(str(each.relative_to(found)) for each in found.rglob("*") if each.is_file())
    assert files == ["corpus.jsonl", "x/corpus.jsonl"]


def test_an_unknown_hash_is_said(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(sending(GOOD, length=None)) as address:
        script.get("toy", tmp_path, row(script, md5=None, bytes=None), [address])
    assert "its hash is unknown, and was not checked" in capsys.readouterr().err


def test_what_is_there_stays(script: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "toy"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds no corpus\.jsonl; move it away"):
        script.get("toy", tmp_path, row(script))
    (place / "corpus.jsonl").write_text("{}")
    assert script.get("toy", tmp_path, row(script)) == place
    assert (place / "notes.txt").read_text() == "mine"


def test_the_manifest(script: ModuleType) -> None:
    rows = script.manifest()
    assert len(rows) == 16
    for name, each in rows.items():
        assert each.addresses, name
        assert all(address.startswith("https://") for address in each.addresses), name
        assert each.md5 is None or re.fullmatch("[0-9a-f]{32}", each.md5), name
        assert each.bytes is None or each.bytes > 1_000_000, name
    assert len({each.md5 for each in rows.values()}) == len(rows)
    assert rows["scifact"].addresses[0].endswith("/scifact.zip")
    assert rows["webis-touche2020-v1"].folder == "webis-touche2020"


@pytest.mark.parametrize(
    ("words", "home", "message"),
    [(["scifcat"], "here", "'scifcat': unknown"), (["scifact"], "", "SLUICE_DATA: not set")],
)
def test_the_command_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], home: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SLUICE_DATA", home)
    with pytest.raises(SystemExit) as ended:
        script.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
