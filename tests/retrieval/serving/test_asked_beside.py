"""Several questions, a context and what was seen: the same over HTTP, MCP and the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from command_line import Call
from serving import EXTRA

from sluice.retrieval.experiments.experiment import Experiment

QUESTIONS = ["gold river", "stone water"]
BESIDE = {"context": "the river was named before, and silver", "seen": ["d00", "d10", "nobody"]}


def _ids(hits: list[Any]) -> list[str]:
    return [hit["id"] if isinstance(hit, dict) else hit.doc_id for hit in hits]


@pytest.mark.parametrize("pipeline", ["bm25", "dense", "hybrid", "cascade"])
def test_requests_are_answered_as_in_python(ask: Any, library: Experiment, pipeline: str) -> None:
    stage, body = library.stage(pipeline), {"k": 4, "pipeline": pipeline}
    for beside in ({}, BESIDE):
        fused = {"query": QUESTIONS, "fuse": True, **beside, **body}
        expected = stage.search(QUESTIONS, 4, fuse=True, **beside)
        assert _ids(ask("POST", "/search", fused).json()["hits"]) == _ids(expected)
        several = ask("POST", "/search", {**fused, "fuse": False}).json()["results"]
        alone = stage.search(QUESTIONS, 4, **beside)
        assert [_ids(each["hits"]) for each in several] == list(map(_ids, alone))
    address = f"/search?q=gold&pipeline={pipeline}&k=4&seen=d00,d10&fuse=true"
    found = _ids(ask("GET", address).json()["hits"])
    assert found == _ids(stage.search("gold", 4, seen=["d00", "d10"]))


@pytest.mark.parametrize("pipeline", ["bm25", "cascade"])
def test_a_budget_is_filled_as_in_python(ask: Any, library: Experiment, pipeline: str) -> None:
    stage, body = library.stage(pipeline), {"query": "gold river", "pipeline": pipeline}
    for budget in (3, 40, 2_000):
        for k in (None, 2):
            expected: Any = stage.search("gold river", k, budget_tokens=budget)
            beside = {"budget_tokens": budget, **({} if k is None else {"k": k})}
            answer = ask("POST", "/search", {**body, **beside}).json()
            assert _ids(answer["hits"]) == _ids(expected)
            assert answer["tokens"] == expected.tokens <= budget
            assert answer["left_out"] == len(expected.dropped)
            note = f"left out: {', '.join(expected.repetitions)}" if expected.repetitions else None
            assert answer["note"] == note
            for hit, own in zip(answer["hits"], expected, strict=True):
                assert hit["passage"]["text"] == own.passage.text
                assert hit["text"] is None
    asked = {**body, "budget_tokens": 40, "fields": ["text"]}
    assert all(hit["text"] for hit in ask("POST", "/search", asked).json()["hits"])
    address = f"/search?q=gold river&pipeline={pipeline}&budget_tokens=40"
    assert _ids(ask("GET", address).json()["hits"]) == _ids(
        stage.search("gold river", budget_tokens=40)
    )
    several = ask("POST", "/search", {**asked, "query": QUESTIONS, **BESIDE}).json()["results"]
    alone = stage.search(QUESTIONS, budget_tokens=40, **BESIDE)
    assert [_ids(each["hits"]) for each in several] == list(map(_ids, alone))
    assert ask("POST", "/search", body).json()["tokens"] is None


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"query": ["gold"] * 10_000, "fuse": True}, 413, "query: 10,000 in one request"),
        ({"query": "gold", "seen": ["d"] * 10_000}, 413, "seen: 10,000 in one request"),
        ({"query": "gold", "context": "a" * 20_001}, 413, "context: 20,001 characters"),
        ({"query": "gold", "context": ""}, 400, "context: ''; expected the reasoning so far"),
        ({"query": "gold", "context": "  "}, 400, "context: '  '; expected the reasoning so far"),
        ({"query": [], "fuse": True}, 400, "query: an empty list"),
        ({"query": "gold", "seen": "d"}, 400, "seen: 'd'; expected a list"),
        ({"query": "gold", "fuse": 1}, 400, "fuse: 1; expected true or false"),
        ({"query": "gold", "budget_tokens": 0}, 400, "budget_tokens: 0; expected 1 or more"),
        ({"query": "gold", "budget_tokens": 1.5}, 400, "budget_tokens: 1.5; expected a whole"),
    ],
)
def test_faults_are_named(ask: Any, body: dict[str, Any], status: int, message: str) -> None:
    answer = ask("POST", "/search", body)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text


def test_agents_ask_the_same(service: Any, library: Experiment) -> None:
    client_of = pytest.importorskip("mcp.client.client", reason=EXTRA)
    from sluice.retrieval.serving import mcp_server

    async def asked(arguments: dict[str, Any]) -> Any:
        async with client_of.Client(mcp_server(service)) as client:
            return await client.call_tool("search", arguments)

    found = asyncio.run(asked({"query": QUESTIONS, "limit": 4, **BESIDE}))
    expected = library.stage("cascade").search(QUESTIONS, 4, fuse=True, **BESIDE)
    assert _ids(found.structured_content["results"]) == _ids(expected)
    for arguments, message in (
        ({"query": "gold", "context": ""}, "context"),
        ({"query": ["gold"] * 10_000}, "query: 10,000 in one request"),
    ):
        answer = asyncio.run(asked(arguments))
        assert answer.is_error
        assert message in answer.content[0].text


def test_the_command_line_asks_the_same(shell: Call, built: Any, library: Experiment) -> None:
    seen = [word for name in BESIDE["seen"] for word in ("--seen", name)]
    words = ["search", built, *QUESTIONS, "-k", "4", "--pipeline", "bm25", "--json"]
    code, out, _ = shell(*words, "--fuse", "--context", BESIDE["context"], *seen)
    expected = library.stage("bm25").search(QUESTIONS, 4, fuse=True, **BESIDE)
    hits = [json.loads(line) for line in out.splitlines()]
    assert (code, [hit["doc_id"] for hit in hits]) == (0, _ids(expected))
    code, _, err = shell(*words)
    assert (code, "several questions that are one search go with --fuse" in err) == (2, True)
    code, _, err = shell("search", built, "gold", "--context", "")
    assert (code, "context: ''; expected the reasoning so far" in err) == (2, True)
    code, _, err = shell("search", built, "--queries", built / "q.jsonl", "--output", "r", *seen)
    assert (code, "--seen: is for QUERY" in err) == (2, True)
