"""Retrievers over passages: built, opened, changed, explained, and the same as brute force."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from small_world import WordEncoder, documents, write_beir
from typer.testing import CliRunner

from sluice.encoders import BM25Encoder, DenseEncoder, SpladeEncoder
from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FaissIndex, FlatIndex, InvertedIndex, PassageIndex
from sluice.retrieval import Document, Passages, Retriever
from sluice.retrieval.cli import app
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.passage_indexing import mean_vectors

QUERIES = {"a": "gold water", "b": "the number of word7 stone", "c": "about vector rank"}
CUT = Passages(12, 3)


def long_documents() -> list[Document]:
    """Documents of one to six passages, among them an empty one and a title alone."""
    made = [
        document._replace(text=" ".join([document.text] * (1 + 5 * place % 7)))
        for place, document in enumerate(documents())
    ]
    return [*made, Document("empty", "", ""), Document("titled", "about gold water", "")]


def found(retriever: Retriever) -> dict[str, dict[str, float]]:
    return retriever.run(QUERIES, k=100).to_dict()


def expected(encoder: Any, passages: Passages, docs: list[Document]) -> dict[str, Any]:
    """Brute force: every passage scored by itself, the best or the mean of each document."""
    cut = list(passages.split(encoder, docs))
    inputs = [document_input(encoder, part) for parts in cut for part in parts]
    if hooks_of(encoder).learner is not None:
        vectors = BM25Encoder(encoder.k1, encoder.b).fit_documents(inputs).toarray()
    else:
        vectors = encoder.encode_documents(inputs)
    counts = np.array([len(parts) for parts in cut])
    if passages.aggregate == "mean":
        normal = hooks_of(encoder).similarity == "cosine"
        vectors, counts = mean_vectors(vectors, counts, normalize=normal), np.ones_like(counts)
    asked = encoder.encode_queries(list(QUERIES.values()))
    asked = asked if isinstance(asked, np.ndarray) else asked.toarray()
    scores = asked.astype(np.float64) @ vectors.astype(np.float64).T
    best = np.maximum.reduceat(scores, np.cumsum(counts) - counts, axis=1)
    sparse = hooks_of(encoder).learner is not None
    return {
        query: {
            document.id: pytest.approx(float(score), rel=1e-5, abs=1e-6)
            for document, score in zip(docs, line, strict=True)
            if score > 0 or not sparse
        }
        for query, line in zip(QUERIES, best, strict=True)
    }


@pytest.mark.parametrize("make", [WordEncoder, BM25Encoder])
@pytest.mark.parametrize("aggregate", ["max", "first", "mean"])
def test_found_as_by_brute_force_whatever_changes(
    make: Callable[[], Any], aggregate: Any, tmp_path: Path
) -> None:
    docs, cut = long_documents(), Passages(12, 3, aggregate)
    encoder = make()
    retriever = Retriever.build(encoder, docs[:30], path=tmp_path / "r", passages=cut)
    assert isinstance(retriever.index, PassageIndex) == (aggregate == "max")
    assert found(retriever) == expected(encoder, cut, docs[:30])
    own = {} if make is BM25Encoder else {"encoder": encoder}
    allow = ["small_world:WordEncoder"]
    retriever = Retriever.open(tmp_path / "r", allow=allow, **own)
    assert found(retriever) == expected(retriever.encoder, cut, docs[:30])

    changed = docs[5]._replace(text=docs[6].text + " and gold water again " * 5)
    retriever.add(docs[30:])
    retriever.update([changed])
    retriever.delete(["d03", "d31"])
    retriever.compact()  # BM25's average length is that of the build until then
    kept = [each for each in docs if each.id not in ("d03", "d05", "d31")] + [changed]
    assert found(retriever) == expected(retriever.encoder, cut, kept)
    opened = Retriever.open(tmp_path / "r", allow=allow, **own)
    assert found(opened) == found(retriever)
    assert opened.head.passages == cut.settings()
    assert [hit.doc_id for hit in opened.search("gold water", 3)] == list(
        opened.run({"q": "gold water"}, k=3)["q"].doc_ids
    )


@pytest.mark.parametrize("make", [WordEncoder, BM25Encoder])
@pytest.mark.parametrize("aggregate", ["max", "first", "mean"])
def test_documents_that_fit_are_found_as_without_passages(
    make: Callable[[], Any], aggregate: Any
) -> None:
    docs = [*documents(), Document("empty", "", "")]
    whole = Retriever.build(make(), docs)
    cut = Retriever.build(make(), docs, passages=Passages(60, 20, aggregate))
    assert found(cut) == found(whole)
    assert cut.head.passages is not None
    assert whole.head.passages is None
    assert "passages" not in json.loads((whole.path / "retriever.json").read_text())


@pytest.mark.thorough
def test_a_transformer(bert: Path, masked_bert: Path) -> None:
    dense = DenseEncoder.from_pretrained(bert, device="cpu", document_length=30)
    docs = long_documents()[:12] + long_documents()[-2:]
    for cut in (CUT, Passages(12, 3, "mean"), Passages(28, 3, repeat_title=False)):
        retriever = Retriever.build(dense, docs, passages=cut)
        assert found(retriever) == expected(dense, cut, docs)
    with pytest.raises(ConfigError, match=r"passages.length: 29 tokens; .* reads 28"):
        Retriever.build(dense, docs, passages=Passages(29, 3))
    normal = Retriever.build(dense, docs, passages=Passages(12, 3, "mean"))
    np.testing.assert_allclose(
        np.linalg.norm(normal.index.documents(np.arange(14)), axis=1), 1, rtol=1e-6
    )
    splade = SpladeEncoder.from_pretrained(masked_bert, device="cpu", document_length=30)
    sparse = Retriever.build(splade, docs, passages=CUT)
    assert isinstance(sparse.index, PassageIndex)
    assert isinstance(sparse.index.inner, InvertedIndex)
    whole = found(sparse)["a"]
    parts = list(CUT.split(splade, docs))
    query = splade.encode_queries([QUERIES["a"]])
    for document, each in zip(docs, parts, strict=True):
        vectors = splade.encode_documents([part.full_text for part in each])
        best = float((vectors @ query.T).toarray().max())
        assert whole.get(document.id, 0.0) == pytest.approx(best, rel=1e-4)


def test_indexes_of_other_kinds() -> None:
    docs, encoder = long_documents(), WordEncoder()
    usual = found(Retriever.build(encoder, docs, passages=CUT))
    for index in (FaissIndex("Flat"), PassageIndex(FlatIndex()), FaissIndex("IVF2,Flat")):
        built = Retriever.build(encoder, docs, passages=CUT, index=index)
        assert isinstance(built.index, PassageIndex)
        if not isinstance(index, FaissIndex) or index.factory == "Flat":
            assert found(built) == usual
    means = Passages(12, 3, "mean")
    assert found(Retriever.build(encoder, docs, passages=means, index=FaissIndex("Flat"))) == {
        query: {doc: pytest.approx(score, rel=1e-6) for doc, score in line.items()}
        for query, line in found(Retriever.build(encoder, docs, passages=means)).items()
    }
    with pytest.raises(ConfigError, match=r"passages.aggregate: 'mean' makes one vector"):
        Retriever.build(encoder, docs, passages=means, index=PassageIndex(FlatIndex()))
    with pytest.raises(ConfigError, match="given vectors cannot be cut"):
        Retriever.build(encoder, docs, passages=CUT, vectors=[])


class CountingEncoder(WordEncoder):
    """Notes the texts that it encodes as documents."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        return super().encode_documents(texts)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return super().encode_documents(texts)


@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_passages_are_cached_and_encoded_once(aggregate: Any, tmp_path: Path) -> None:
    docs, cut = long_documents(), Passages(12, 3, aggregate)
    encoding = Encoding(shard=16, cache=tmp_path / "cache")
    first, second = CountingEncoder(), CountingEncoder()
    built = Retriever.build(first, docs, passages=cut, encoding=encoding)
    parts = {part.full_text for each in cut.split(first, docs) for part in each}
    assert sorted(first.texts) == sorted(parts)
    again = Retriever.build(second, docs, passages=cut, encoding=encoding)
    assert second.texts == []
    assert found(again) == found(built)


def test_the_best_passage_is_explained(tmp_path: Path) -> None:
    docs = [
        Document("long", "", "stone " * 10 + "gold gold river " * 3 + "stone " * 10),
        Document("short", "", "gold stone"),
        Document("other", "", "water"),
    ]
    for encoder in (BM25Encoder(), BM25Encoder(fields={"title": 1.0, "text": 1.0})):
        titled = [each._replace(title="about") for each in docs]
        retriever = Retriever.build(encoder, titled, passages=Passages(5, 1))
        told = retriever.explain("gold river", "long")
        assert told.passage is not None
        assert told.passage > 1
        assert sum(part.contribution for part in told.terms) == pytest.approx(told.score)
        assert told.score == pytest.approx(found_score(retriever, "gold river", "long"))
        assert told.rank == 1
        assert told.plan is not None
        assert retriever.explain("gold", "short").passage == 1
        nothing = retriever.explain("gold", "other")
        assert (nothing.score, nothing.passage) == (0.0, None)
    shown = CliRunner().invoke(app, ["explain", str(retriever.path), "gold river", "long"])
    assert f"rank 1, by its passage {told.passage}" in shown.output
    dense = Retriever.build(WordEncoder(), docs, passages=CUT)
    with pytest.raises(ConfigError, match="explain needs a sparse index"):
        dense.explain("gold", "long")
    with pytest.raises(DataError, match="no document 'none'"):
        retriever.explain("gold", "none")


def found_score(retriever: Retriever, query: str, doc_id: str) -> float:
    return retriever.run({"q": query}, k=10).to_dict()["q"][doc_id]


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    Retriever.build(BM25Encoder(), long_documents(), passages=CUT, path=tmp_path / "r")
    head = tmp_path / "r" / "retriever.json"
    facts = json.loads(head.read_text())
    for wrong in ({**CUT.settings(), "length": 0}, {"size": 3}):
        head.write_text(json.dumps({**facts, "passages": wrong}))
        with pytest.raises(IndexFormatError, match=r"retriever\.json: passages: "):
            Retriever.open(tmp_path / "r").add([Document("new", "", "text")])
    head.write_text(json.dumps({**facts, "passages": 3}))
    with pytest.raises(IndexFormatError, match="not as Sluice writes it"):
        Retriever.open(tmp_path / "r")


def test_from_a_config(tmp_path: Path) -> None:
    data = write_beir(tmp_path / "data")
    encoder = {"type": "bm25"}
    config = {
        "dataset": str(data),
        "output": str(tmp_path / "out"),
        "retrievers": {
            "best": {"encoder": encoder, "passages": {"length": 6, "overlap": 2}},
            "mean": {"encoder": encoder, "passages": {"length": 6, "aggregate": "mean",
                                                      "overlap": 2}},
            "whole": {"encoder": encoder},
        },
    }  # fmt: skip
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config))
    done = CliRunner().invoke(app, ["index", str(file)])
    assert done.exit_code == 0, done.output
    lines = done.output.replace("\n", " ")
    assert "40 documents in 80 passages" in lines
    opened = Retriever.open(tmp_path / "out" / "retrievers" / "best")
    assert opened.head.passages == Passages(6, 2).settings()
    keys = Dependencies(checked(config, ExperimentConfig))
    assert len({keys.recipe(f"retrievers.{name}") for name in ("best", "mean", "whole")}) == 3

    config["retrievers"]["best"]["passages"] = {"length": 6}  # type: ignore[index]
    file.write_text(yaml.safe_dump(config))
    failed = CliRunner().invoke(app, ["index", str(file)])
    assert "retrievers.best.passages: overlap: 50 of passages of 6" in str(failed.exception)
    config["retrievers"]["best"]["passages"] = {"lenght": 6}  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"passages.lenght: unknown key.*did you mean 'length'"):
        checked(config, ExperimentConfig)
