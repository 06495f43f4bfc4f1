"""Each end point answers as the library does, whatever else is asked meanwhile."""

from __future__ import annotations

import asyncio
import base64
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from serving import asker
from small_world import SUBJECTS

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.text import matches
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.pipelines.fitting.probability_fit import ProbabilityFit
from sluice.retrieval.pipelines.hit import Hit
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.serving.http.call import unless_gone
from sluice.retrieval.serving.work import searching

PIPELINES = ("bm25", "dense", "hybrid", "cascade")


def _agree(answer: dict[str, Any], hits: list[Hit]) -> None:
    """Scores agree; so do ids, except among scores that rounding could have exchanged."""
    scores = [hit["score"] for hit in answer["hits"]]
    np.testing.assert_allclose(scores, [hit.score for hit in hits], atol=2e-5)
    assert [hit["rank"] for hit in answer["hits"]] == list(range(1, len(hits) + 1))
    expected = {hit.doc_id: hit.score for hit in hits}
    last = hits[-1].score if hits else 0.0
    for hit, at_rank in zip(answer["hits"], hits, strict=True):
        if hit["id"] != at_rank.doc_id:
            assert abs(expected.get(hit["id"], last) - at_rank.score) < 4e-5


@pytest.mark.thorough
def test_random_requests_at_once(ask: Any, library: Experiment) -> None:
    draw = random.Random(7)
    requests = []
    for _ in range(60):
        several = draw.random() < 0.3
        queries = [" ".join(draw.sample(SUBJECTS, draw.randint(1, 3))) for _ in range(3)]
        body = {"query": queries if several else queries[0], "k": draw.choice([1, 3, 10])}
        requests.append({**body, "pipeline": draw.choice(PIPELINES)})
    responses = ask(*(("POST", "/search", body) for body in requests))
    together = 0
    for body, response in zip(requests, responses, strict=True):
        assert response.status_code == 200, response.text
        stage = library.stage(body["pipeline"])
        queries = body["query"] if isinstance(body["query"], list) else [body["query"]]
        content = response.json()
        answers = content["results"] if isinstance(body["query"], list) else [content]
        for query, answer in zip(queries, answers, strict=True):
            assert (answer["query"], answer["pipeline"]) == (query, body["pipeline"])
            assert answer["complete"]
            _agree(answer, stage.search(query, body["k"]))
            together = max(together, answer["together"])
    assert together > 3  # requests were searched together


def test_snippets_of_long_texts_leave_the_loop_to_others(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are made on the event loop, nobody is answered until the snippet is there."""
    import httpx

    from sluice.retrieval.serving import make_app

    service = own(writable=True, pipelines=("bm25",))
    text = "stone " * 5_000 + "zebra crossing " + "river " * 5_000
    asyncio.run(service.add([Document("long", "", text)]))
    entered, gate = threading.Event(), threading.Event()

    def held(line: str, query: str) -> Any:
        entered.set()
        assert gate.wait(20)
        return matches(line, query)

    monkeypatch.setattr(searching, "matches", held)
    body = {"query": "zebra", "k": 3, "highlight": True}

    async def go() -> Any:
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            searched = asyncio.ensure_future(client.post("/search", json=body))
            assert await asyncio.to_thread(entered.wait, 20)
            health = await client.get("/health")
            assert not searched.done()
            gate.set()
            return health, await searched

    health, answer = asyncio.run(go())
    assert (health.status_code, answer.status_code) == (200, 200)
    (hit,) = answer.json()["hits"]
    (mark,) = hit["snippet"]["marks"]
    assert hit["snippet"]["text"][slice(*mark)] == "zebra"


def test_a_hit_has_the_fields_that_were_asked_for(ask: Any, library: Experiment) -> None:
    (expected,) = library.stage("bm25").search("gold river", 1)
    body = {"query": "gold river", "k": 1, "pipeline": "bm25"}
    (hit,) = ask("POST", "/search", body).json()["hits"]
    assert (hit["id"], hit["title"], hit["text"]) == (
        expected.doc_id, expected.title, expected.text,
    )  # fmt: skip
    (hit,) = ask("POST", "/search", {**body, "fields": ["title"]}).json()["hits"]
    assert hit["text"] is hit["metadata"] is hit["snippet"] is None
    assert hit["title"] == expected.title


def test_snippets_mark_the_words_of_the_query(ask: Any) -> None:
    body = {"query": "rivers of gold", "k": 5, "pipeline": "bm25", "highlight": True}
    for hit in ask("POST", "/search", body).json()["hits"]:
        snippet = hit["snippet"]
        marked = [snippet["text"][start:end] for start, end in snippet["marks"]]
        assert marked
        assert set(marked) <= {"gold", "river"}


def test_the_address_asks_as_the_body_does(ask: Any) -> None:
    by_body = ask(
        "POST", "/search",
        {"query": "gold", "k": 2, "pipeline": "bm25", "highlight": True, "fields": ["title"]},
    ).json()  # fmt: skip
    response = ask("GET", "/search?q=gold&k=2&pipeline=bm25&highlight=true&fields=title")
    by_address = response.json()
    for answer in (by_body, by_address):
        answer.pop("stages")
    assert by_address == by_body
    assert response.headers["server-timing"].startswith("s0;dur=")
    wrong = ask("GET", "/search?q=gold&highlight=perhaps")
    assert wrong.json()["error"]["message"] == "highlight: 'perhaps'; expected true or false"
    assert ask("GET", "/search?q=gold&where=x").json()["error"]["param"] == "where"
    assert ask("GET", "/search?q=gold&k=two").json()["error"]["param"] == "k"


def test_a_blank_query_has_no_hits(ask: Any) -> None:
    answer = ask("POST", "/search", {"query": "  ", "pipeline": "hybrid"}).json()
    assert answer["hits"] == []
    assert ask("POST", "/search", {"query": []}).json() == {"results": []}


def test_k_above_the_size_returns_all(ask: Any, library: Experiment) -> None:
    answer = ask("POST", "/search", {"query": "gold", "k": 1000, "pipeline": "dense"}).json()
    assert len(answer["hits"]) == len(library.retriever("dense")) == 40


def test_vectors_are_those_of_the_encoder(ask: Any, library: Experiment) -> None:
    encoder = library.retriever("dense").encoder
    texts = ["gold in the river", "x", "deep water " * 3]
    by_document = encoder.encode_documents(texts)
    answer = ask("POST", "/embed", {"inputs": texts}).json()
    np.testing.assert_allclose(answer, by_document, atol=1e-5)
    by_query = ask("POST", "/embed", {"inputs": texts[0], "prompt_name": "query"}).json()
    np.testing.assert_allclose(by_query, encoder.encode_queries(texts[:1]), atol=1e-5)
    scaled = np.asarray(ask("POST", "/embed", {"inputs": texts, "normalize": True}).json())
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-6)
    assert ask("POST", "/embed", {"inputs": []}).json() == []


def test_openai_vectors_as_numbers_and_bytes(ask: Any, library: Experiment) -> None:
    encoder = library.retriever("dense").encoder
    texts = ["gold", "water and stone"]
    vectors = encoder.encode_documents(texts)
    body = {"input": texts, "model": "dense"}
    answer = ask("POST", "/v1/embeddings", body).json()
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], vectors, atol=1e-5)
    assert [row["index"] for row in answer["data"]] == [0, 1]
    tokens = sum(len(encoder.tokenizer(text)["input_ids"]) for text in texts)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    coded = ask("POST", "/v1/embeddings", {**body, "encoding_format": "base64"}).json()
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in coded["data"]]
    np.testing.assert_allclose(rows, vectors, atol=1e-5)
    short = ask("POST", "/v1/embeddings", {**body, "dimensions": 4}).json()
    cut = vectors[:, :4].astype(np.float64)
    cut /= np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose([row["embedding"] for row in short["data"]], cut, atol=1e-5)
    wide = ask("POST", "/v1/embeddings", {**body, "dimensions": 10_000})
    assert (wide.status_code, wide.json()["error"]["param"]) == (400, "dimensions")


def test_sparse_vectors_name_their_terms(ask: Any, library: Experiment) -> None:
    encoder = library.retriever("bm25").encoder
    row = encoder.encode_documents(["gold in the river"])
    (entries,) = ask("POST", "/embed_sparse", {"inputs": "gold in the river"}).json()
    assert [entry["index"] for entry in entries] == sorted(row.indices.tolist())
    weights = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
    for entry in entries:
        assert entry["value"] == pytest.approx(weights[entry["index"]])
    assert {entry["term"] for entry in entries} == {"gold", "river"}


def test_reranking_in_both_shapes(ask: Any, library: Experiment) -> None:
    texts = ["gold in the river", "a stone", "x", "water"]
    scores = library.scorer("cross").score([("gold", text) for text in texts])
    order = sorted(range(4), key=lambda place: -scores[place])
    body = {"query": "gold", "texts": texts, "raw_scores": True, "return_text": True}
    ranked = ask("POST", "/rerank", body).json()
    assert [entry["index"] for entry in ranked] == order
    np.testing.assert_allclose([e["score"] for e in ranked], [scores[i] for i in order], atol=1e-5)
    assert [entry["text"] for entry in ranked] == [texts[place] for place in order]
    chances = [1 / (1 + np.exp(-float(scores[place]))) for place in order]
    cohere = {"query": "gold", "documents": [texts[0], {"text": texts[1]}, *texts[2:]], "top_n": 2}
    answer = ask("POST", "/v2/rerank", cohere).json()
    assert [entry["index"] for entry in answer["results"]] == order[:2]
    got = [entry["relevance_score"] for entry in answer["results"]]
    np.testing.assert_allclose(got, chances[:2], atol=1e-6)
    assert answer["model"] == "cross"
    assert ask("POST", "/rerank", {"query": "gold", "texts": []}).json() == []


def test_a_fitted_probability_is_the_relevance_and_no_answer_is_said(
    own: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "world"
    ProbabilityFit(0.25, -1.5, "cross", value=0.0).save(folder / "p.json")
    saved = folder / "experiment.yaml"
    config = yaml.safe_load(saved.read_text())
    likely = f"bm25 >> cross(depth=5, probability='{folder / 'p.json'}')"
    config["pipelines"] = {"sure": likely, "none": f"abstain({likely}, threshold=0.999)"}
    saved.write_text(yaml.safe_dump(config, sort_keys=False))
    ask = asker(own())
    texts = ["gold in the river", "a stone", "x"]
    ranked = ask("POST", "/rerank", {"query": "gold", "texts": texts, "raw_scores": True}).json()
    raw = {each["index"]: each["score"] for each in ranked}
    answer = ask("POST", "/v2/rerank", {"query": "gold", "documents": texts}).json()["results"]
    assert [each["index"] for each in answer] == list(raw)
    for each in answer:
        chance = 1 / (1 + np.exp(-(0.25 * raw[each["index"]] - 1.5)))
        assert each["relevance_score"] == pytest.approx(chance, abs=1e-6)
    sure = ask("POST", "/search", {"query": "gold", "pipeline": "sure"}).json()
    assert sure["answer"] is None
    assert all(0 <= hit["score"] <= 1 for hit in sure["hits"])
    none = ask("POST", "/search", {"query": "gold", "pipeline": "none"}).json()
    assert (none["answer"], none["hits"]) == ("none", [])
    top = sure["hits"][0]["score"]
    assert none["note"] == f"no document settles it: the confidence, {top:.3g}, is too low"


def test_long_texts_are_refused_or_cut_as_their_clients_expect(ask: Any) -> None:
    texts = ["gold", "river " * 300]
    for body in (
        {"texts": texts}, {"texts": texts, "truncate": False},
        {"documents": texts, "truncate": False},
    ):  # fmt: skip
        refused = ask("POST", "/rerank", {"query": "gold", **body})
        assert refused.status_code == 413
        field = next(iter(body))
        assert refused.json()["error"] == {
            "message": f"{field}[1]: too long with the query, and the model reads 64; shorten it, "
            "or set truncate: true to have its end left out",
            "type": "too_large", "param": f"{field}[1]", "code": "413",
        }  # fmt: skip
    cut = ask("POST", "/rerank", {"query": "gold", "texts": texts, "truncate": True})
    cohere = ask("POST", "/v2/rerank", {"query": "gold", "documents": texts, "model": "cross"})
    places = [each["index"] for each in cut.json()]
    assert [each["index"] for each in cohere.json()["results"]] == places
    assert ask("POST", "/rerank", {"query": "gold", "texts": ["gold"]}).status_code == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": None}, "texts, documents: expected one of the two"),
        ({"documents": ["a"]}, "texts, documents: expected one of the two"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc: not supported"),
        ({"priority": 1}, "priority: not supported"),
        ({"return_documents": True}, "return_documents: goes with the other shape"),
        ({"texts": None, "documents": [{"text": "a", "b": "c"}]}, "documents[0]: expected a text"),
    ],
)
def test_reranking_refuses_what_it_cannot_do(
    ask: Any, change: dict[str, Any], message: str
) -> None:
    response = ask("POST", "/rerank", {"query": "gold", "texts": ["a"], **change})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_explaining_is_that_of_the_library(ask: Any, library: Experiment) -> None:
    expected = explain_pipeline(library.stage("cascade"), "gold river", 3)
    answer = ask("POST", "/explain", {"query": "gold river", "k": 3}).json()
    assert [path["id"] for path in answer["documents"]] == [
        path.doc_id for path in expected.documents
    ]
    assert [step["name"] for step in answer["steps"]] == [step.name for step in expected.steps]
    for shown, path in zip(answer["documents"], expected.documents, strict=True):
        ranks = [place["rank"] for place in shown["places"]]
        assert ranks == [place.rank for place in path.places]
        terms = {name: [term["term"] for term in parts] for name, parts in shown["terms"].items()}
        assert terms == {n: [part.term for part in parts] for n, parts in path.terms.items()}
    body = {"query": "gold", "ids": ["d33"], "pipeline": "bm25"}
    (path,) = ask("POST", "/explain", body).json()["documents"]
    assert (path["id"], path["rank"]) == ("d33", None)
    lost = ask("POST", "/explain", {"query": "gold", "ids": ["nothing"]})
    assert (lost.status_code, lost.json()["error"]["param"]) == (404, "id")


def test_documents_are_read_by_id(ask: Any, library: Experiment) -> None:
    document = library.retriever("bm25")["d01"]
    answer = ask("GET", "/documents/d01").json()
    assert answer == {"id": "d01", "title": document.title, "text": document.text, "metadata": {}}
    lost = ask("GET", "/documents/no/such/id")
    assert lost.status_code == 404
    assert lost.json()["error"]["message"].startswith("id: no document 'no/such/id' among 40")


def test_what_is_too_long_is_refused_or_cut_as_asked(ask: Any, library: Experiment) -> None:
    encoder = library.retriever("dense").encoder
    long = "gold " * 2_000
    refused = ask("POST", "/embed", {"inputs": ["x", long]})
    assert refused.status_code == 413
    assert refused.json()["error"]["param"] == "inputs[1]"
    assert "tokens, and the model reads" in refused.json()["error"]["message"]
    cut = ask("POST", "/embed", {"inputs": ["x", long], "truncate": True})
    np.testing.assert_allclose(cut.json(), encoder.encode_documents(["x", long]), atol=1e-5)
    openai = ask("POST", "/v1/embeddings", {"input": long, "model": "dense"})
    assert (openai.status_code, openai.json()["error"]["param"]) == (413, "input")


def test_what_the_service_says_of_itself(ask: Any, library: Experiment) -> None:
    assert ask("GET", "/health").json() == {"status": "ok"}
    ready = ask("GET", "/ready").json()
    assert (ready["ready"], ready["state"], ready["fault"]) == (True, 1, None)
    info = ask("GET", "/info").json()
    assert [each["name"] for each in info["pipelines"]] == list(PIPELINES)
    assert [each["name"] for each in info["pipelines"] if each["default"]] == ["cascade"]
    assert [each["stops_early"] for each in info["pipelines"]] == [False, False, False, True]
    models = {each["name"]: each for each in info["models"]}
    assert {name: each["kind"] for name, each in models.items()} == {
        "bm25": "sparse", "dense": "dense", "cross": "reranker",
    }  # fmt: skip
    assert models["dense"]["fingerprint"] == library.retriever("dense").encoder.fingerprint
    assert info["documents"] == 40
    names = [each["id"] for each in ask("GET", "/v1/models").json()["data"]]
    assert names == ["bm25", "dense", "cross"]


def test_metrics_count_requests_and_batches(ask: Any) -> None:
    def count(line: str) -> float:
        text = ask("GET", "/metrics").text
        (found,) = [row for row in text.splitlines() if row.startswith(line + " ")]
        return float(found.rpartition(" ")[2])

    requests = 'te_request_count_total{path="/search"}'
    ask("POST", "/search", {"query": "gold"})
    before = count(requests)
    ask(*[("POST", "/search", {"query": "gold"})] * 5)
    assert count(requests) == before + 5
    ask("POST", "/search", {"query": 1})
    assert count('te_request_failure_total{err="invalid_request"}') >= 1
    assert count("te_queue_size") == 0
    assert count("sluice_queue_tokens") == 0
    assert count("sluice_state") == 1
    assert count('te_batch_next_size_count{lane="models"}') >= 1


def test_the_openapi_document_describes_every_end_point(ask: Any) -> None:
    import jsonschema

    document = ask("GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    described = {(m.upper(), path) for path, each in document["paths"].items() for m in each}
    assert ("POST", "/search") in described
    assert ("DELETE", "/documents/{id}") in described
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) == 25
    checked = 0
    for path, body in [
        ("/search", {"query": "gold", "k": 2}),
        ("/search", {"query": ["gold"], "highlight": True}),
        ("/explain", {"query": "gold"}),
        ("/v1/embeddings", {"input": "x", "model": "dense"}),
        ("/rerank", {"query": "gold", "texts": ["a", "b"]}),
        ("/search", {"query": 1}),
    ]:
        response = ask("POST", path, body)
        operation = document["paths"][path]["post"]
        described_as = operation["responses"][str(response.status_code)]["content"]
        schema = described_as["application/json"]["schema"]
        jsonschema.validate(response.json(), {**schema, "components": document["components"]})
        checked += 1
    assert checked == 6


def test_no_request_hashes_a_model(ask: Any, service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint reads all weights, which would hold up every other request."""

    def hashed(encoder: Any) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr(type(service.content.encoders["dense"]), "fingerprint", property(hashed))
    for request in (
        ("POST", "/embed", {"inputs": "gold"}),
        ("POST", "/search", {"query": "gold"}),
        ("POST", "/rerank", {"query": "gold", "texts": ["a"]}),
        ("GET", "/info"),
        ("GET", "/ready"),
    ):
        assert ask(*request).status_code == 200


def test_who_leaves_as_the_work_ends_cancels_nothing_after_it() -> None:
    async def go() -> int:
        loop = asyncio.get_running_loop()
        done, gone = loop.create_future(), loop.create_future()

        async def work() -> int:
            await done
            return 1

        async def asked() -> int:
            answer = await unless_gone(work(), gone)
            await asyncio.sleep(0)  # as the answer is written
            return answer

        task = asyncio.create_task(asked())
        for _ in range(2):
            await asyncio.sleep(0)
        done.set_result(None)
        gone.set_result(None)
        return await task

    assert asyncio.run(go()) == 1
