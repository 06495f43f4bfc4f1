"""The straight road: a source becomes an index, is searched, served and added to.

Nothing here is a stand-in: ``sluice serve`` runs in its own process, and the clients are those that
users have. Wherever a query is asked, the hits are those of ``sluice search``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from browser import Browser, browsing, chromium
from pdf_files import write_pdf
from serving import EXTRA, asker

from sluice.encoders import CrossEncoder
from sluice.retrieval import Retriever, cli

pytestmark = pytest.mark.thorough

QUERIES = ["blue key of the garage", "gold in the river", "Größe der Schleuse 🪙", "qwertyuiop"]
COMMAND = (sys.executable, "-c", "from sluice.retrieval.cli import main; main()")
PARTS = "".join(f"## Part {n}\n\nWater and stone number {n} of the house.\n\n" for n in range(12))

Hit = tuple[str, float, Any]  # id, score, passage


def sluice(*words: object) -> str:
    """Run the command line in this process; return what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(sys, "argv", ["sluice", *map(str, words)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    assert not stopped.value.code, err.getvalue()
    return out.getvalue()


def searched(folder: Path, query: str, *words: object) -> list[Hit]:
    """What ``sluice search`` finds, which everybody else has to find."""
    lines = sluice("search", folder, query, "--json", *words).splitlines()
    return [
        (hit["doc_id"], pytest.approx(hit["score"], abs=1e-6), hit.get("passage"))
        for hit in map(json.loads, lines)
    ]


def hits_of(answer: Any) -> list[Hit]:
    return [(hit["id"], hit["score"], hit["passage"]) for hit in answer["hits"]]


def write_notes(folder: Path) -> Path:
    """Write a folder of Markdown, HTML, PDF and text."""
    (folder / "house").mkdir(parents=True)
    (folder / "garage.md").write_text(f"# Garage\n\nA car.\n\n## Key\n\nThe key is blue.\n{PARTS}")
    (folder / "house" / "sluice.md").write_text("---\nlang: de\n---\n# Schleuse\n\nDie Größe 🪙.\n")
    (folder / "river.html").write_text(
        "<html><head><title>River</title></head><body><p>Gold in a river.</p></body></html>"
    )
    (folder / "house" / "plain_text_of_the_house.txt").write_text("A river of stone and water.\n")
    write_pdf(folder / "map.pdf", ["gold and a map", "the key"], title="Map", author="Ann")
    return folder


@dataclass
class World:
    """A served folder, its address, and one client of each kind."""

    folder: Path
    address: str
    portal: Any
    stack: contextlib.ExitStack
    added: list[str] = field(default_factory=list)
    _searched: dict[Any, list[Hit]] = field(default_factory=dict)

    def expected(self, query: str, *words: object) -> list[Hit]:
        """What ``sluice search`` finds with the documents that are there now."""
        key = (len(self.added), query, words)
        if key not in self._searched:
            self._searched[key] = searched(self.folder, query, *words)
        return self._searched[key]

    def asked(self, path: str, body: Any = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)

    @cached_property
    def page(self) -> Browser:
        if chromium() is None:
            pytest.skip("no Chromium with its driver: scripts/install-browser")
        browser = self.stack.enter_context(browsing(self.folder.parent / "browser"))
        browser.size(1200, 900)
        return browser

    def _mcp(self, server: Any) -> Any:
        from mcp.client.client import Client

        client = self.portal.wrap_async_context_manager(Client(server))
        return self.stack.enter_context(client)

    @cached_property
    def mcp_http(self) -> Any:
        return self._mcp(f"{self.address}/mcp")

    @cached_property
    def mcp_stdio(self) -> Any:
        from mcp.client.stdio import StdioServerParameters

        words = [*COMMAND[1:], "-q", "serve", str(self.folder), "--mcp", "stdio"]
        path = {"PYTHONPATH": str(Path.cwd()), "PATH": ""}
        return self._mcp(StdioServerParameters(command=sys.executable, args=words, env=path))

    def tool(self, client: Any, name: str, **arguments: Any) -> Any:
        found = self.portal.call(client.call_tool, name, arguments)
        assert not found.is_error, found
        return found.structured_content


@contextlib.contextmanager
def process(folder: Path) -> Iterator[str]:
    """``sluice serve`` in a process of its own; yields its address when it is ready."""
    log = folder.parent / "served.log"
    words = ["serve", str(folder), "--port", "0", "--writable", "--mcp", "http"]
    with log.open("w") as stream:
        running = subprocess.Popen(
            [*COMMAND, *words], stderr=stream, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
        )
    try:
        end = time.monotonic() + 60
        while not (found := re.search(r"at (http://127\.0\.0\.1:\d+), tools", log.read_text())):
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield found.group(1)
    finally:
        running.terminate()
        assert running.wait(20) == 0, log.read_text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, bert: Path, pair_bert: Path) -> Iterator[World]:
    for name in ("starlette", "uvicorn", "prometheus_client", "mcp", "pypdf"):
        pytest.importorskip(name, reason=EXTRA)
    from anyio.from_thread import start_blocking_portal

    folder = tmp_path_factory.mktemp("road")
    sluice("index", write_notes(folder / "notes"), "--output", folder / "my", "--model", bert)
    # A reranker, as a user adds one: for /rerank, and for a pipeline that is not the default.
    saved = folder / "my" / "experiment.yaml"
    config = yaml.safe_load(saved.read_text())
    config["rerankers"] = {"cross": {"type": "cross_encoder", "model": str(pair_bert)}}
    config["pipelines"] = {"reranked": "hybrid >> cross(depth=9)", **config["pipelines"]}
    saved.write_text(yaml.safe_dump(config, sort_keys=False))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(process(folder / "my"))
        portal = stack.enter_context(start_blocking_portal())
        yield World(folder / "my", address, portal, stack)


def add_by_command(world: World) -> None:
    """``sluice add`` beside the running service."""
    file = world.folder.parent / "more.jsonl"
    ids = [".", "..", "two\nlines", "a_long_name/of_a_file_in_a_folder.of_a_folder"]
    rows = [{"id": each, "text": f"gold key {place}"} for place, each in enumerate(ids)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sluice("add", world.folder, file)
    world.added += ids


def add_by_post(world: World) -> None:
    """``POST /documents``."""
    document = {"id": "posted", "title": "Key", "text": "A second blue key, of gold."}
    answer = world.asked("/documents", {"documents": [document]})
    assert answer["served"]
    world.added.append("posted")


@pytest.fixture(scope="module", params=["as indexed", "added by sluice add", "added by POST"])
def road(request: pytest.FixtureRequest, world: World) -> World:
    """The world as it was indexed, then with more documents, which every client sees at last."""
    add = {"added by sluice add": add_by_command, "added by POST": add_by_post}.get(request.param)
    if add is not None:
        add(world)
        last, end = world.added[-1], time.monotonic() + 30

        def seen(query: str) -> bool:
            return all(
                last in [hit["id"] for hit in results]
                for results in (
                    world.asked("/search", {"query": query})["hits"],
                    world.tool(world.mcp_stdio, "search", query=query)["results"],
                )
            )

        while not seen("gold key"):
            assert time.monotonic() < end
            time.sleep(0.1)
    return world


def by_address(world: World, query: str) -> list[Hit]:
    return hits_of(world.asked("/search?" + urllib.parse.urlencode({"q": query})))


def by_post(world: World, query: str) -> list[Hit]:
    return hits_of(world.asked("/search", {"query": query}))


def by_post_among_others(world: World, query: str) -> list[Hit]:
    others = [*QUERIES[2:], query, *QUERIES[:2]]
    return hits_of(world.asked("/search", {"query": others})["results"][2])


CLIENTS: dict[str, Callable[[World, str], list[Hit]]] = {
    "GET": by_address, "POST": by_post, "POST of several": by_post_among_others,
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_rest_finds_what_search_does(road: World, client: str) -> None:
    for query in QUERIES:
        expected = road.expected(query)
        assert len(expected) >= 5
        assert CLIENTS[client](road, query) == expected


@pytest.mark.parametrize("transport", ["mcp_stdio", "mcp_http"])
def test_agents_find_what_search_does(road: World, transport: str) -> None:
    client = getattr(road, transport)
    for query in QUERIES[:2]:
        results = road.tool(client, "search", query=query)["results"]
        expected = road.expected(query)
        assert [each["id"] for each in results] == [doc_id for doc_id, *_ in expected]
        for each, (_, _, passage) in zip(results, expected, strict=True):
            assert passage is None or each["snippet"] == passage["text"]
        whole = road.tool(client, "fetch", id=results[0]["id"])
        assert whole["text"].strip()


def test_the_page_shows_what_search_finds(road: World) -> None:
    page = road.page
    for query in QUERIES[:3]:
        page.visit(f"{road.address}/?{urllib.parse.urlencode({'q': query})}")
        expected = road.expected(query)
        page.wait("return document.querySelectorAll('.hit').length === arguments[0]", len(expected))
        page.wait("return document.querySelector('.note') !== null")  # explained as well
        shown = page.run(
            "return [...document.querySelectorAll('.hit')].map(e => "
            "[e.dataset.id, Number(e.querySelector('.score').textContent)])"
        )
        assert [doc_id for doc_id, _ in shown] == [doc_id for doc_id, *_ in expected]
        for (_, score), (_, found, _) in zip(shown, expected, strict=True):
            assert score == pytest.approx(found.expected, abs=6e-5)
    assert page.messages() == []


@pytest.mark.filterwarnings("ignore")
def test_vectors_and_scores_are_those_of_search(road: World, pair_bert: Path) -> None:
    """OpenAI's client embeds a query, and Cohere's reranks the hits, as the pipelines do."""
    openai = pytest.importorskip("openai", reason="openai is not installed")
    cohere = pytest.importorskip("cohere", reason="cohere is not installed")
    import httpx

    query, folder = QUERIES[0], road.folder / "retrievers" / "dense"
    with openai.OpenAI(base_url=f"{road.address}/v1", api_key="none", max_retries=0) as client:
        made = client.embeddings.create(
            input=[query], model="dense", extra_body={"input_type": "query"}
        )
    vector = np.array(made.data[0].embedding, np.float32)
    hits = Retriever.open(folder).search(vector=vector)
    expected = searched(folder, query)
    assert [hit.doc_id for hit in hits] == [doc_id for doc_id, *_ in expected]
    documents = [hit["text"] for hit in road.asked("/search", {"query": query})["hits"]]
    with httpx.Client(trust_env=False) as http:
        reranker = cohere.ClientV2(api_key="none", base_url=road.address, httpx_client=http)
        ranked = reranker.rerank(model="cross", query=query, documents=documents).results
    scores = CrossEncoder.from_pretrained(pair_bert).score([(query, each) for each in documents])
    assert [each.index for each in ranked] == np.argsort(-scores, kind="stable").tolist()
    assert by_post(road, query) != road.expected(query, "--pipeline", "reranked")
    answer = road.asked("/search", {"query": query, "pipeline": "reranked"})
    assert hits_of(answer) == road.expected(query, "--pipeline", "reranked")


def test_documents_of_any_id_can_be_opened(road: World) -> None:
    """Clients and browsers take ``.`` and ``..`` out of a path: these are asked for beside it."""
    for doc_id in ["garage.md", "house/sluice.md", *road.added]:
        quoted = urllib.parse.quote(doc_id, safe="")
        assert road.asked(f"/documents/?id={quoted}")["id"] == doc_id
        if doc_id not in (".", ".."):
            assert road.asked(f"/documents/{quoted}")["id"] == doc_id
    if not road.added:
        return
    page = road.page
    page.visit(f"{road.address}/?q=gold+key&pipeline=bm25")
    for doc_id in road.added[:4]:
        place = page.wait(
            "const ids = [...document.querySelectorAll('.hit')].map(e => e.dataset.id);"
            "return 1 + ids.indexOf(arguments[0])",
            doc_id,
        )
        page.click(".hit", place - 1)
        page.wait("return document.getElementById('document').open")
        title = page.run("return document.getElementById('document-title').textContent")
        assert title == doc_id
        page.click("#close")
    assert page.run("return document.querySelectorAll('.title wbr').length") > 4


def test_a_failure_is_shown_with_its_id(road: World) -> None:
    page = road.page
    page.visit(f"{road.address}/?q=gold&where=%7B%22colour%22%3A%22red%22%7D")
    page.wait("return document.getElementById('status').className.includes('error')")
    said = page.run("return document.getElementById('status').textContent")
    named = re.fullmatch(r".*colour.* \(request_id ([0-9a-f]{16})\)", said)
    assert named, said
    assert f'"id": "{named.group(1)}"' in (road.folder.parent / "served.log").read_text()
    assert len(page.messages()) == 1  # the browser's own line


ROWS = [
    ("7", "Gold", "Gold in the river."), ("8", "Key", "The key of the garage is blue."),
    ("9", "", "Größe der Schleuse " + "und Wasser " * 90), ("10", "Stone", "Water and stone."),
]  # fmt: skip


def write_source(folder: Path, kind: str) -> Path:
    folder.mkdir()
    if kind in ("folder", "shards"):
        return write_notes(folder / "notes")
    file = folder / f"docs.{kind}"
    if kind == "csv":
        lines = [",".join(f'"{value}"' for value in row) for row in ROWS]
        file.write_text("\n".join(["id,title,text", *lines]) + "\n")
    elif kind == "jsonl":
        rows = [dict(zip(("id", "title", "text"), row, strict=True)) for row in ROWS]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "sqlite":
        with contextlib.closing(sqlite3.connect(file)) as base, base:
            base.execute("create table docs (id text, title text, text text)")
            base.executemany("insert into docs values (?, ?, ?)", ROWS)
    return file


@pytest.mark.parametrize(
    ("kind", "bm25"),
    [("csv", False), ("jsonl", False), ("sqlite", False), ("folder", True), ("shards", False)],
)
def test_whatever_is_indexed_is_served(kind: str, bm25: bool, tmp_path: Path, bert: Path) -> None:
    """Every source, with and without a model, in passages and shards, by its default pipeline."""
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings, Service

    out = tmp_path / "out"
    source = write_source(tmp_path / "source", kind)
    sluice("index", source, "--output", out, *(["--bm25"] if bm25 else ["--model", bert]))
    if kind == "shards":
        for name in ("bm25", "dense"):
            sluice("reshard", out / "retrievers" / name, 2)
    service = Service.open(out, ServeSettings(longest_wait=60))
    try:
        ask = asker(service)
        several = ask("POST", "/search", {"query": QUERIES}).json()["results"]
        for query, answer in zip(QUERIES, several, strict=True):
            expected = searched(out, query)
            assert expected or bm25
            assert hits_of(answer) == expected
            asked = urllib.parse.urlencode({"q": query})
            for one in (ask("GET", f"/search?{asked}"), ask("POST", "/search", {"query": query})):
                assert hits_of(one.json()) == expected
            paths = ask("POST", "/explain", {"query": query}).json()["documents"]
            assert [path["id"] for path in paths] == [doc_id for doc_id, *_ in expected]
        assert any(hit[2] for hit in hits_of(several[0])) != bm25
    finally:
        service.close()
