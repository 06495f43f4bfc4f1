"""Who may ask and how much: keys, hosts, sizes, rates; and that no request brings it down."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from serving import asker

from sluice.encoders.foundation.disk import files
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.serving import settings as keys_file
from sluice.retrieval.serving.settings import Keys, ServeSettings, add_key, digest, read_keys
from sluice.retrieval.serving.work.lane import Job

SEARCH = ("POST", "/search", {"query": "gold", "pipeline": "bm25"})
ADD = ("POST", "/documents", {"documents": [{"id": "z", "text": "zebra"}]})


def test_keys_are_kept_hashed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "page", ["search"])
    text = file.read_text()
    assert key not in text
    assert hashlib.sha256(key.encode()).hexdigest() in text
    assert file.stat().st_mode & 0o077 == 0
    keys = Keys(file)
    found = keys.find(key)
    assert found is not None
    assert (found.name, found.scopes) == ("page", {"search"})
    assert keys.find(key + "x") is None
    other = add_key(file, "page", ["search", "admin"])
    assert keys.find(key) is None  # the file is read again, and the name has another key
    assert keys.find(other) is not None


def test_keys_made_at_the_same_time_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = tmp_path / "new" / "keys.json", keys_file.read_keys
    modes = []

    def slow(path: Path) -> list[Any]:
        found = read(path)
        time.sleep(0.02)  # the others come between reading and writing
        modes.append(path.stat().st_mode & 0o777)
        return found

    monkeypatch.setattr(keys_file, "read_keys", slow)
    names = [f"key {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda name: add_key(file, name, ["search"]), names))
    assert sorted(key.name for key in read(file)) == names
    assert all(Keys(file).find(key) for key in made)
    assert set(modes) == {0o600}
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]


def test_a_file_of_keys_is_its_owners_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    monkeypatch.setattr(
        files, "commit", lambda draft, _: modes.append(draft.stat().st_mode & 0o777)
    )
    before = os.umask(0)
    try:
        with files.replaced_file(tmp_path / "other") as stream:
            pass
        monkeypatch.setattr(Path, "chmod", lambda *_: None)
        add_key(tmp_path / "keys.json", "one", ["search"])
    finally:
        os.umask(before)
    assert not stream.readable()
    assert modes == [0o666, 0o600]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a file of keys"),
        ('{"keys": [{"name": "a"}]}', r"keys\[0\]: expected name, sha256 and scopes"),
        ('{"keys": [{"name": 1, "sha256": "a", "scopes": ["search"]}]}', "are texts"),
        ('{"keys": [{"name": "a", "sha256": "a", "scopes": ["serch"]}]}', "did you mean 'search'"),
        ('{"keys": [{"name": "a", "sha256": "a", "scopes": []}]}', "expected some of search"),
        ('{"keys": [{"name": "a", "sha256": "\u00fc", "scopes": ["write"]}]}', "64 hexadecimal"),
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises((ConfigError, DataError), match=message):
        read_keys(tmp_path / "keys.json")


def test_scopes(own: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    texts = {scope: add_key(file, scope, [scope]) for scope in ("search", "write", "admin")}
    service = own(keys=file, writable=True)
    requests = {"search": SEARCH, "write": ADD, "admin": ("GET", "/metrics")}
    for held, text in texts.items():
        ask = asker(service, authorization=f"Bearer {text}")
        for needed, request in requests.items():
            response = ask(*request)
            assert response.status_code == (200 if held == needed else 403), (held, needed)
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {text}"}):
        refused = asker(service, **headers)(*SEARCH)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
    nobody = asker(service)
    for path in ("/", "/page.js", "/health", "/ready", "/openapi.json"):
        assert nobody("GET", path).status_code == 200
    for path in ("/documents/d01", "/info", "/v1/models", "/mcp", "/nothing"):
        assert nobody("GET", path).status_code == 401


def test_a_line_break_in_a_path_needs_the_scope_all_the_same(own: Any, tmp_path: Path) -> None:
    """The router ignores one at the end of a path, except behind an id, which may have one."""
    file = tmp_path / "keys.json"
    ask = asker(
        own(keys=file, writable=True), authorization=f"Bearer {add_key(file, 'a', ['search'])}"
    )
    for path in ("/documents/d01%0A", "/documents/d01%0Aa", "/documents/%0A"):
        assert ask("DELETE", path).status_code == 403
        missing = ask("GET", path)
        assert missing.status_code == 404
        assert repr(unquote(path)[len("/documents/") :]) in missing.json()["error"]["message"]
    for path in ("/documents%0A", "/documents%0A/d01", "/x%0A/documents/d01"):
        refused = ask("POST", path, ADD[2])
        assert refused.status_code == 400
        assert "path: has a line break" in refused.json()["error"]["message"]
    assert ask("GET", "/metrics%0A").status_code == 400
    assert ask("DELETE", "/documents/").status_code == 403
    assert ask("GET", "/documents/d01").status_code == 200
    from sluice.retrieval.serving.http.app import scope_of

    needed = scope_of(frozenset())
    assert needed("DELETE", "/documents/d01\n") == needed("POST", "/documents\n") == "write"
    assert needed("GET", "/metrics\n") == "admin"


def test_no_key_is_valid_while_their_file_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    text = add_key(file, "one", ["search"])
    keys = Keys(file)
    content = file.read_text()
    file.write_text("{half")
    assert keys.find(text) is None
    file.write_text(content.replace(digest(text), "ü" * 64))  # cannot be compared with a hash
    assert keys.find(text) is None
    file.unlink()
    assert keys.find(text) is None
    file.write_text(content)
    assert keys.find(text) is not None


def test_work_that_its_tokens_do_not_show_is_bounded(own: Any) -> None:
    """A query is read anew with each document, and hits are many times their query."""
    ask = asker(own(depth=20))
    long = "gold " * 4_001
    for path, body in (
        ("/search", {"query": long}), ("/search", {"query": ["gold", long]}),
        ("/explain", {"query": long}), ("/rerank", {"query": long, "texts": ["gold"]}),
    ):  # fmt: skip
        refused = ask("POST", path, body)
        assert refused.status_code == 413, path
        assert "query: 20,005 characters; expected at most 20,000" in refused.text
    many = {"query": ["gold"] * 17, "k": 20, "pipeline": "bm25"}
    refused = ask("POST", "/search", many)
    assert refused.status_code == 413
    assert "17 queries of 20 hits; expected at most 320 hits" in refused.text
    assert len(ask("POST", "/search", {**many, "k": 18}).json()["results"]) == 17


def test_filters_nested_without_end_are_named(ask: Any) -> None:
    response = ask("GET", "/search?q=gold&where=" + '{"a":' * 5_000)
    assert response.status_code == 400
    assert "where: not JSON" in response.json()["error"]["message"]


def test_filters_are_bounded_and_large_ones_hold_nobody_up(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.retrieval.retrievers import updates

    ask, threads, check = asker(own()), set(), updates.conditions
    monkeypatch.setattr(
        updates, "conditions", lambda w: (threads.add(threading.current_thread().name), check(w))
    )
    names = {f"n{number}": number for number in range(101)}
    several = {"a": {"not": ["x" * 20] * 5_000}, "id": ["x" * 20] * 7_000}
    for path in ("/search", "/explain"):
        for where, said in (
            (names, "101 names, 0 characters"), (several, "2 names, 288,024 characters"),
        ):  # fmt: skip
            refused = ask("POST", path, {"query": "gold", "pipeline": "bm25", "where": where})
            assert refused.status_code == 413
            assert f"where: {said}; expected at most 100 names and 262,144" in refused.text
        assert not threads
        ids = {"id": ["d01", *["no"] * 9_999]}
        fine = ask("POST", path, {"query": "gold", "pipeline": "bm25", "where": ids})
        assert fine.status_code == 200, fine.text
        assert "MainThread" not in threads
        threads.clear()


def test_only_names_of_this_service_are_answered(own: Any) -> None:
    service = own(hosts=("Search.Example.org",))
    for name in ("localhost:80", "127.0.0.1", "[::1]:8080", "search.example.org:443"):
        assert asker(service, host=name)(*SEARCH).status_code == 200
    for name in ("evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example"):
        refused = asker(service, host=name)(*SEARCH)
        assert (refused.status_code, refused.json()["error"]["type"]) == (421, "unknown_host")


def test_bodies_have_a_size_a_type_and_a_time(own: Any) -> None:
    service = own(body_bytes=1_000, arrive_within=0.05)
    ask = asker(service)
    large = ask("POST", "/search", {"query": "x" * 2_000})
    assert (large.status_code, large.headers["connection"]) == (413, "close")
    assert "above 1,000 bytes" in large.json()["error"]["message"]
    assert _raw(service, [b'{"query": "gold"}'], kind=b"text/plain")[0] == 415
    assert _raw(service, [b'{"query": "', b"gold", b'"}'])[0] == 200
    assert _raw(service, [b"x" * 400] * 3)[0] == 413  # no length was announced
    assert _raw(service, [b'{"query"', None])[0] == 408  # the rest never comes


def test_a_client_that_leaves_is_no_error(own: Any) -> None:
    service = own()
    status, _ = _raw(service, [b'{"query": "gold"}'], stays=False)
    assert status in (200, 499)
    end = time.monotonic() + 10
    while service.budget.used:  # what a batch had taken already
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_rate_is_kept_for_each_client(own: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    one, two = (add_key(file, name, ["search"]) for name in ("one", "two"))
    service = own(keys=file, rate=0.001)
    first = asker(service, authorization=f"Bearer {one}")
    assert first(*SEARCH).status_code == 200
    refused = first(*SEARCH)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert asker(service, authorization=f"Bearer {two}")(*SEARCH).status_code == 200


def test_a_full_queue_refuses_at_once(own: Any) -> None:
    """TEI's issue 662 over HTTP: one input and a list of one are refused by the same rule."""
    service = own(queue_tokens=100, batch_tokens=100)
    service.budget.take(100)
    ask = asker(service)
    for body in ({"inputs": "gold"}, {"inputs": ["gold"]}):
        refused = ask("POST", "/embed", body)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    service.budget.give_back(100, done=False)
    assert ask("POST", "/embed", {"inputs": "gold"}).status_code == 200
    never = ask("POST", "/embed", {"inputs": ["gold river"] * 50})
    assert (never.status_code, never.json()["error"]["type"]) == (413, "too_large")


def test_a_late_event_loop_refuses_before_it_reads(own: Any) -> None:
    service = own(longest_wait=0.2)
    ask = asker(service)
    from sluice.retrieval.serving.http.guard import BUSY

    service.lag = 0.3
    assert ask(*SEARCH).status_code == 200  # one request: others make the machine late
    go = threading.Event()
    held = service._lanes["indexes"]
    for number in range(len(held._threads)):
        held.submit(Job(number, [1], [1], lambda units: [go.wait(10)]))
    threading.Timer(0.5, go.set).start()
    responses = ask(*[SEARCH] * (BUSY + 8), ("POST", "/search", b"{never read"), ("GET", "/health"))
    codes = [response.status_code for response in responses]
    assert codes == [200] * BUSY + [429] * 9 + [200]
    assert responses[-2].headers["retry-after"] == "1"
    assert "the service is 0.3 s late" in responses[-2].json()["error"]["message"]


def test_limits_are_named(own: Any) -> None:
    ask = asker(own(inputs=2, depth=5))
    many = ask("POST", "/search", {"query": ["a", "b", "c"]})
    assert (many.status_code, many.json()["error"]["param"]) == (413, "query")
    assert ask("POST", "/embed", {"inputs": ["a", "b", "c"]}).json()["error"]["param"] == "inputs"
    deep = ask("POST", "/search", {"query": "a", "k": 6})
    assert (deep.status_code, deep.json()["error"]["message"]) == (400, "k: 6; expected 5 or less")


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/search", b"{", None, "body: not JSON"),
        ("/search", b"[]", "body", "body: []; expected an object"),
        ("/search", {}, "query", "query: missing; it is required"),
        ("/search", {"query": "a", "k": 0}, "k", "k: 0; expected 1 or more"),
        ("/search", {"query": "a", "k": "3"}, "k", "k: '3'; expected a whole number"),
        ("/search", {"query": 1}, "query", "query: 1; expected a text or a list"),
        ("/search", {"query": "a", "fields": ["x"]}, "fields[0]", "expected 'title', 'text'"),
        ("/search", {"query": "a", "kk": 1}, "kk", "did you mean 'k'?"),
        ("/search", {"query": "a", "where": {"x": {"about": 1}}}, None, "unknown condition"),
        ("/search", {"query": "a", "deadline_ms": 0}, "deadline_ms", "expected a number above 0"),
        ("/embed", {"inputs": ["a", 1]}, "inputs[1]", "inputs[1]: 1; expected a text"),
        ("/v1/embeddings", {"input": [1, 2], "model": "dense"}, "input", "token ids"),
        ("/v1/embeddings", {"input": "", "model": "dens"}, "model", "did you mean 'dense'?"),
        ("/embed", {"inputs": "a", "model": "bm25"}, "model", "ask /embed_sparse"),
        ("/search", {"query": "a", "pipeline": "x"}, "pipeline", "known: bm25, dense, hybrid"),
    ],
)
def test_faults_name_the_field(
    ask: Any, path: str, body: Any, param: str | None, message: str
) -> None:
    response = ask("POST", path, body)
    error = response.json()["error"]
    assert response.status_code in (400, 404)
    assert message in error["message"]
    assert error["param"] == param


def test_answers_have_ids_and_closed_doors(ask: Any, service: Any) -> None:
    response = ask("GET", "/")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    given_id = asker(service, **{"x-request-id": "mine-1"})("GET", "/health")
    assert given_id.headers["x-request-id"] == "mine-1"
    forged = asker(service, **{"x-request-id": "a b<script>"})("GET", "/nothing")
    assert forged.status_code == 404
    assert forged.headers["x-request-id"] == forged.json()["request_id"] != "a b<script>"
    assert len(forged.json()["request_id"]) == 16


def test_no_path_of_a_request_reaches_the_files(ask: Any) -> None:
    for path in (
        "/documents/..%2f..%2fexperiment.yaml", "/../page.css", "/page/..%2fpage.js",
        "/files/index.html", "/documents/%00",
    ):  # fmt: skip
        assert ask("GET", path).status_code in (200, 404)
        assert "output:" not in ask("GET", path).text


def test_a_failure_keeps_its_cause_to_the_log(
    own: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = own()
    monkeypatch.setattr(service, "documents", lambda ids: 1 / 0)
    with caplog.at_level(logging.ERROR, "sluice.serve"):
        response = asker(service)("GET", "/documents/d01")
    assert response.status_code == 500
    assert "ZeroDivision" not in response.text
    assert response.json()["request_id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_log_has_no_secrets(own: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "page", ["search"])
    ask = asker(own(keys=file), authorization=f"Bearer {key}")
    with caplog.at_level(logging.INFO, "sluice.serve.requests"):
        ask("GET", "/search?q=my+private+words&pipeline=bm25")
        ask("GET", "/documents/d01")
    lines = [json.loads(r.message) for r in caplog.records if r.name == "sluice.serve.requests"]
    assert [(each["path"], each["status"], each["key"]) for each in lines] == [
        ("/search", 200, "page"), ("/documents/{id:path}", 200, "page"),
    ]  # fmt: skip
    assert all(set(each) >= {"time", "id", "ms", "method", "refused"} for each in lines)
    assert key not in caplog.text
    assert "private" not in caplog.text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = ("query", "k", "where", "fields", "inputs", "input", "model", "texts", "documents", "ids")


@given(
    path=st.sampled_from(
        [
            "/search",
            "/explain",
            "/embed",
            "/embed_sparse",
            "/v1/embeddings",
            "/rerank",
            "/documents",
        ]
    ),
    body=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4) | st.binary(max_size=20),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_request_brings_it_down(ask: Any, path: str, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = ask("POST", path, content)
    assert response.status_code < 500, (path, body, response.text)
    assert response.headers["x-request-id"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "other machines reach it, and no keys are set"),
        ({"batch_tokens": 0}, "batch_tokens: 0; expected a whole number, 1 or more"),
        ({"queue_tokens": 10, "batch_tokens": 20}, "expected at least as many"),
        ({"timeout": 0}, "timeout: 0; expected seconds above 0"),
        ({"rate": 0}, "rate: 0; expected a number above 0"),
        ({"window_ms": -1}, "window_ms: -1; expected milliseconds, 0 to"),
        ({"window_ms": float("inf")}, "window_ms: inf; expected milliseconds, 0 to"),
        ({"timeout": 1e300}, "timeout: 1e.300; expected seconds above 0, up to"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServeSettings(**options)
    assert ServeSettings(host="0.0.0.0", open_to_all=True).is_local is False
    assert ServeSettings(host="::1").is_local


def _raw(
    service: Any,
    parts: list[bytes | None],
    *,
    kind: bytes = b"application/json",
    stays: bool = True,
) -> tuple[int, bytes]:
    """Send a body in parts, without its length; None is a part that never comes."""
    from sluice.retrieval.serving import make_app

    sent: list[Any] = []
    left = list(parts)
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not left:
            if stays:
                await done.wait()
            return {"type": "http.disconnect"}
        part = left.pop(0)
        if part is None:
            await asyncio.sleep(5)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/search", "raw_path": b"/search",
        "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", kind)], "client": ("test", 1),
    }  # fmt: skip
    asyncio.run(make_app(service)(scope, receive, send))
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


def test_a_key_is_replaced_in_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    file, link = tmp_path / "keys.json", tmp_path / "link.json"
    link.symlink_to(file)
    first = add_key(link, "page", ["search"])
    file.chmod(0o644)
    keys = Keys(file)
    second = add_key(link, "page", ["search"])
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert keys.find(first) is None
    assert keys.find(second) is not None
