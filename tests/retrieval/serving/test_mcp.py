"""The tools for agents, asked by the client of the SDK in memory; the straight road has others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from serving import EXTRA
from site_scripts import site_script
from small_world import documents

from sluice.encoders import BM25Encoder
from sluice.retrieval import Document, Retriever
from sluice.retrieval.experiments.experiment import Experiment

LONG = " ".join(f"word{number} gold" for number in range(20_000))


@pytest.fixture(scope="module")
def long_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "bm25"
    page = Document("page", "A page", "zebra", {"url": "https://example.org/page", "year": 2020})
    Retriever.build(BM25Encoder(), [*documents(), Document("long", "", LONG), page], path=folder)
    return folder


def _call(service: Any, name: str, arguments: dict[str, Any]) -> Any:
    client_of = pytest.importorskip("mcp.client.client", reason=EXTRA)
    from sluice.retrieval.serving import mcp_server

    async def call() -> Any:
        async with client_of.Client(mcp_server(service)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(call())


@pytest.mark.thorough
def test_search_has_the_published_shape(service: Any, library: Experiment) -> None:
    found = _call(service, "search", {"query": "gold river", "limit": 3})
    content = found.structured_content
    assert json.loads(found.content[0].text) == content
    expected = [hit.doc_id for hit in library.stage("cascade").search("gold river", 3)]
    assert [each["id"] for each in content["results"]] == expected
    assert all(set(each) == {"id", "title", "url", "snippet"} for each in content["results"])
    assert all(each["url"] and each["title"] and each["snippet"] for each in content["results"])


def test_results_keep_to_their_tokens(own: Any, long_texts: Path) -> None:
    service = own(long_texts)
    for most in (100, 400, 4_000):
        content = _call(
            service, "search", {"query": "gold", "limit": 40, "budget_tokens": most}
        ).structured_content
        assert sum(len(json.dumps(each)) for each in content["results"]) <= 4 * most
        hits = service.content.stages["bm25"].search("gold", 40)
        assert len(content["results"]) + content["left_out"] == len(hits)
        assert content["results"]


def test_a_long_document_comes_in_parts(own: Any, long_texts: Path) -> None:
    service = own(long_texts)
    text, offset, parts = "", 0, 0
    while offset is not None:
        part = _call(service, "fetch", {"id": "long", "offset": offset}).structured_content
        assert part["total_characters"] == len(LONG)
        assert len(part["text"]) <= 32_000
        assert part["offset"] == len(text)
        text, offset, parts = text + part["text"], part["next_offset"], parts + 1
    assert text == LONG
    assert parts > 5
    page = _call(service, "fetch", {"id": "page"}).structured_content
    assert (page["url"], page["metadata"]["year"]) == ("https://example.org/page", 2020)
    assert page["next_offset"] is None


def test_faults_are_said_in_words(service: Any) -> None:
    lost = _call(service, "fetch", {"id": "nothing"})
    assert lost.is_error
    assert "no document 'nothing'" in lost.content[0].text
    assert str(service.live.folder.parent) not in lost.content[0].text
    wrong = _call(service, "search", {"query": "gold", "limit": 0})
    assert wrong.is_error


def test_the_page_shows_what_agents_get(shell: Call, tmp_path: Path) -> None:
    """The transcript in docs/agents.md, which the script makes over both transports."""
    client_of = pytest.importorskip("mcp.client.client", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings, Service, mcp_server

    script = site_script("make_mcp_transcript")
    notes = script.write_notes(tmp_path / "notes")
    assert shell("index", notes, "--bm25", "--output", tmp_path / "my")[0] == 0
    service = Service.open(tmp_path / "my", ServeSettings(longest_wait=60))

    async def asked() -> Any:
        async with client_of.Client(mcp_server(service)) as client:
            return await script.transcript(client)

    try:
        assert script.block(asyncio.run(asked())) in script.PAGE.read_text(encoding="utf-8")
    finally:
        service.close()


def test_tools_say_what_they_do(service: Any) -> None:
    client_of = pytest.importorskip("mcp.client.client", reason=EXTRA)
    from sluice.retrieval.serving import mcp_server

    async def tools() -> Any:
        async with client_of.Client(mcp_server(service)) as client:
            return (await client.list_tools()).tools

    listed = {tool.name: tool for tool in asyncio.run(tools())}
    assert set(listed) == {"search", "fetch"}
    assert all(tool.annotations.read_only_hint for tool in listed.values())
    assert listed["search"].input_schema["required"] == ["query"]
    assert listed["search"].input_schema["properties"]["limit"]["maximum"] == 100


def test_the_address_is_asked_as_it_is_written_and_by_post_alone(address: str) -> None:
    """No redirect, which not every client follows, and no stream that stays open and empty."""
    import httpx

    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    body["params"] = {"name": "search", "arguments": {"query": "gold"}}
    headers = {"accept": "application/json, text/event-stream"}
    with httpx.Client(base_url=address, headers=headers, timeout=20, trust_env=False) as client:
        for path in ("/mcp", "/mcp/"):
            response = client.post(path, json=body)
            assert response.status_code == 200
            assert response.json()["result"]["structuredContent"]["results"]
            for method in ("GET", "DELETE"):
                refused = client.request(method, path)
                assert refused.status_code == 405
                assert refused.json()["error"]["message"] == f"{method}: expected POST"


def test_what_stands_beside_a_text_counts_too() -> None:
    pytest.importorskip("mcp", reason=EXTRA)
    from sluice.retrieval.serving.mcp import part_of

    metadata = {f"key{number}": "value " * 20 for number in range(50)} | {"year": 2020}
    document = Document("an id", "A title " * 100, LONG, metadata)
    for most in (100, 400, 4_000):
        parts, offset = [], 0
        while offset is not None and len(parts) < 3:
            part = part_of(document, offset, most)
            beside = json.dumps(part.metadata) + part.id + part.title + part.url
            assert len(part.text) >= most - 20  # a quarter of the characters, to a space
            assert len(part.text) + len(beside) <= 4 * most + 300  # and a title in any case
            assert len(part.metadata) + part.metadata_left_out == 51
            assert part.metadata.items() <= metadata.items()
            parts.append(part.text)
            offset = part.next_offset
        assert LONG.startswith("".join(parts))
    assert part.metadata["year"] == 2020
    assert part_of(Document("a", "", "gold", {"year": 2020}), 0, 100).metadata_left_out == 0
