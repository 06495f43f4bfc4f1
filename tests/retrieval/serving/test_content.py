"""What can be served: a retriever with metadata, a saved pipeline, models; and what cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import asker
from small_world import documents
from tiny_generators import save_t5

from sluice.encoders import BM25Encoder, CrossEncoder, DenseEncoder, SealEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Document, Rerank, Retriever
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.serving.content.content import kind_of


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagged") / "notes"
    texts = [
        Document(f"d{n}", "", f"gold {n}", {"lang": "de" if n % 2 else "en", "year": 2000 + n})
        for n in range(10)
    ]
    Retriever.build(BM25Encoder(), texts, path=folder)
    return folder


def test_what_writes_its_queries_is_searched_and_makes_no_vectors(own: Any, tmp_path: Path) -> None:
    encoder = SealEncoder.from_pretrained(save_t5(tmp_path / "t5"), beams=2, length=2)
    Retriever.build(encoder, documents(12), path=tmp_path / "seal")
    ask = asker(own(tmp_path / "seal"))
    assert ask("POST", "/search", {"query": "gold"}).status_code == 200
    answer = ask("POST", "/embed_sparse", {"inputs": "gold"})
    assert (answer.status_code, "nothing here makes sparse vectors" in answer.text) == (404, True)


def test_filters(own: Any, tagged: Path) -> None:
    ask = asker(own(tagged))
    filters = {each["name"]: each for each in ask("GET", "/info").json()["filters"]}
    assert filters["lang"] == {"name": "lang", "kinds": ["text"], "values": ["de", "en"]}
    assert filters["year"] == {"name": "year", "kinds": ["integer"], "values": None}
    body = {"query": "gold", "where": {"lang": "de", "year": {"gte": 2005}}}
    expected = {"d5", "d7", "d9"}
    answer = ask("POST", "/search", body).json()
    assert {hit["id"] for hit in answer["hits"]} == expected
    assert all(hit["metadata"]["lang"] == "de" for hit in answer["hits"])
    address = '/search?q=gold&where={"lang":"de","year":{"gte":2005}}'
    assert {hit["id"] for hit in ask("GET", address).json()["hits"]} == expected
    explained = ask("POST", "/explain", body).json()["documents"]
    assert {path["id"] for path in explained} == expected
    wrong = ask("POST", "/search", {"query": "gold", "where": {"land": "de"}})
    assert wrong.status_code == 400
    assert "did you mean 'lang'" in wrong.json()["error"]["message"]


def test_filters_that_differ_are_not_searched_together(own: Any, tagged: Path) -> None:
    ask = asker(own(tagged))
    where = [{"lang": "de"}, {"lang": "en"}, None, {"year": 2003}]
    sizes = [5, 5, 10, 1]
    bodies = [{"query": "gold", "where": each} for each in where * 5]
    for response, size in zip(
        ask(*(("POST", "/search", body) for body in bodies)), sizes * 5, strict=True
    ):
        assert len(response.json()["hits"]) == size


def test_a_saved_pipeline(own: Any, tmp_path: Path, pair_bert: Path) -> None:
    bm25 = Retriever.build(BM25Encoder(), documents(), name="bm25")
    pipeline = bm25 % 20 >> Rerank(CrossEncoder.from_pretrained(pair_bert), depth=5)
    pipeline.save(tmp_path / "saved")
    ask = asker(own(tmp_path / "saved"))
    answer = ask("POST", "/search", {"query": "gold river", "k": 5}).json()
    assert answer["pipeline"] == "saved"
    expected = pipeline.search("gold river", 5)
    assert [hit["id"] for hit in answer["hits"]] == [hit.doc_id for hit in expected]
    assert len(ask("POST", "/rerank", {"query": "gold", "texts": ["a", "b"]}).json()) == 2
    with pytest.raises(ConfigError, match="is a saved pipeline, whose documents do not change"):
        own(tmp_path / "saved", writable=True)


def test_models_alone(own: Any, bert: Path, pair_bert: Path) -> None:
    ask = asker(own(bert))
    vectors = DenseEncoder.from_pretrained(bert).encode_documents(["gold"])
    np.testing.assert_allclose(ask("POST", "/embed", {"inputs": "gold"}).json(), vectors, atol=1e-5)
    nothing = ask("POST", "/search", {"query": "gold"})
    assert (nothing.status_code, nothing.json()["error"]["type"]) == (404, "not_found")
    assert ask("GET", "/documents/a").status_code == 404
    assert ask("GET", "/info").json()["documents"] is None
    ask = asker(own(pair_bert))
    assert len(ask("POST", "/rerank", {"query": "gold", "texts": ["a"]}).json()) == 1
    assert ask("POST", "/embed", {"inputs": "gold"}).status_code == 404
    with pytest.raises(ConfigError, match="is a model and has no pipelines"):
        own(bert, pipelines=("x",))


def test_a_model_has_no_documents_to_write(own: Any, bert: Path) -> None:
    with pytest.raises(ConfigError, match="is a saved model, whose documents do not change"):
        own(bert, writable=True)


def test_only_the_pipelines_that_are_named(own: Any, library: Experiment) -> None:
    ask = asker(own(pipelines=("hybrid", "bm25")))
    info = ask("GET", "/info").json()
    assert [each["name"] for each in info["pipelines"]] == ["bm25", "hybrid"]
    assert info["pipelines"][1]["default"]
    assert [each["name"] for each in info["models"]] == ["bm25", "dense"]
    refused = ask("POST", "/search", {"query": "gold", "pipeline": "cascade"})
    assert refused.status_code == 404
    with pytest.raises(ConfigError, match="did you mean 'hybrid'"):
        own(pipelines=("hybird",))


def test_folders_that_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to serve; expected an experiment's output"):
        kind_of(tmp_path)
    suite = tmp_path / "datasets" / "one"
    suite.mkdir(parents=True)
    (suite / "experiment.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"serve one of them: .*datasets/NAME \(one\)"):
        kind_of(tmp_path)


def test_passages_are_named(own: Any, tmp_path: Path) -> None:
    from sluice.retrieval import Passages

    long = Document("long", "", "water " * 40 + "gold " * 40 + "stone " * 40)
    built = Retriever.build(
        BM25Encoder(), [long, *documents(5)], path=tmp_path / "cut",
        passages=Passages(length=40, overlap=0),
    )  # fmt: skip
    answer = asker(own(tmp_path / "cut"))("POST", "/search", {"query": ["gold", "stone"], "k": 3})
    for query, result in zip(("gold", "stone"), answer.json()["results"], strict=True):
        for hit, expected in zip(result["hits"], built.search(query, 3), strict=True):
            assert hit["passage"] == (expected.passage and expected.passage._asdict())
            assert hit["id"] == expected.doc_id
