"""BM25 over several fields against its formula in plain Python, refits, and published figures."""

import json
import math
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st

import sluice.encoders.lexical.term_counts
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.lexical.analyzer import analyzer
from sluice.encoders.lexical.bm25 import BM25Encoder

WEIGHTS = {"title": 2.0, "text": 1.0, "note": 0.5}
RIVER = [
    {"title": "Gold rivers", "text": "The river and its gold, all of the gold"},
    {"title": "", "text": "a river, deep and slow"},
    {"title": "Rivers", "text": ""},
]
CELL = st.lists(st.sampled_from("abcdef"), max_size=6).map(" ".join)
DOCUMENTS = st.lists(st.fixed_dictionaries(dict.fromkeys(WEIGHTS, CELL)), max_size=9)
Corpus = list[dict[str, str]]


def scores(
    documents: Corpus, query: str, weights: dict[str, float], *, plus: bool = False
) -> list[float]:
    """BM25 of each field with nothing but counters, in float64; N is the documents that have it."""
    result = [0.0] * len(documents)
    for name, weight in weights.items():
        terms = [analyzer("en")(document.get(name, "")) for document in documents]
        count = sum(map(bool, terms))
        average = sum(map(len, terms)) / count if count else 0.0
        for term, times in Counter(analyzer("en")(query)).items():
            frequency = sum(term in own for own in terms)
            idf = math.log(1 + (count - frequency + 0.5) / (frequency + 0.5))
            if plus and frequency:
                idf = math.log((count + 1) / frequency)
            for place, own in enumerate(terms):
                if tf := own.count(term):
                    damping = 0.9 * (1 - 0.4 + 0.4 * len(own) / average)
                    impact = tf / (tf + damping) + (1 / 1.9 if plus else 0.0)
                    result[place] += weight * times * idf * impact
    return result


def product(queries: sp.csr_array, documents: sp.csr_array) -> np.ndarray:
    return (queries @ documents.T).toarray()


def same(left: sp.csr_array, right: sp.csr_array) -> bool:
    return left.shape == right.shape and all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("data", "indices", "indptr")
    )


def test_each_field_is_scored_by_the_variant() -> None:
    weights = {"title": 2.0, "text": 1.0}
    encoder = BM25Encoder(fields=weights, variant="plus")
    vectors = encoder.fit_documents(RIVER)
    for query in ("gold river", "rivers", "deep slow rivers of gold", ""):
        found = product(encoder.encode_queries([query]), vectors)[0]
        np.testing.assert_allclose(found, scores(RIVER, query, weights, plus=True), rtol=1e-5)


def test_by_hand() -> None:
    encoder = BM25Encoder(fields={"title": 2.0, "text": 1.0})
    documents = encoder.fit_documents(RIVER)
    columns = ["title:gold", "title:river", "text:river", "text:it", "text:gold"]
    assert list(encoder.vocabulary)[:3] == columns[:3]
    assert encoder.fields == {"title": 2.0, "text": 1.0}
    assert encoder.documents == 3
    # "river" in the third document's title: tf 1, dl 1, avgdl (2 + 1) / 2 of the two titles.
    impact = 1 / (1 + 0.9 * (1 - 0.4 + 0.4 * 1 / 1.5))
    assert documents[2, 1] == pytest.approx(impact, rel=1e-6)
    query = encoder.encode_queries(["river"])
    assert query[0, 1] == pytest.approx(2 * math.log(1 + (2 - 2 + 0.5) / (2 + 0.5)), rel=1e-6)
    assert query[0, 2] == pytest.approx(math.log(1 + (2 - 2 + 0.5) / (2 + 0.5)), rel=1e-6)
    assert encoder.terms([0, 2]) == ["title:gold", "text:river"]
    assert BM25Encoder().fields is None


@settings(max_examples=60, derandomize=True, deadline=None)
@given(DOCUMENTS, st.lists(CELL, max_size=4))
def test_scores_equal_the_formula(documents: Corpus, queries: list[str]) -> None:
    encoder = BM25Encoder(fields=WEIGHTS)
    vectors = encoder.fit_documents(iter(documents))
    asked = encoder.encode_queries(queries)
    expected = [scores(documents, query, WEIGHTS) for query in queries]
    np.testing.assert_allclose(
        product(asked, vectors), np.reshape(expected, (len(queries), len(documents))), rtol=1e-5
    )
    for row in np.split(vectors.indices, vectors.indptr[1:-1]):
        assert (np.diff(row) > 0).all()
    assert vectors.dtype == np.float32
    assert same(encoder.encode_documents(documents), vectors)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(CELL.filter(analyzer("en")), max_size=8), st.lists(CELL, max_size=4))
def test_one_field_of_weight_one_is_plain_bm25(texts: list[str], queries: list[str]) -> None:
    plain, field = BM25Encoder(), BM25Encoder(fields={"body": 1.0})
    assert same(field.fit_documents([{"body": text} for text in texts]), plain.fit_documents(texts))
    assert same(field.encode_queries(queries), plain.encode_queries(queries))
    assert [term.removeprefix("body:") for term in field.vocabulary] == list(plain.vocabulary)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.lists(CELL, max_size=3))
def test_added_and_removed_documents_leave_the_idf_of_a_refit(
    first: Corpus, second: Corpus, queries: list[str]
) -> None:
    encoder, refit = BM25Encoder(fields=WEIGHTS), BM25Encoder(fields=WEIGHTS)
    old = encoder.fit_documents(first)
    columns = encoder.vocabulary
    new = encoder.add_documents(second)
    refit.fit(first + second)
    assert encoder.vocabulary == refit.vocabulary
    assert {term: encoder.vocabulary[term] for term in columns} == columns  # no column moved
    assert same(encoder.encode_queries(queries), refit.encode_queries(queries))
    if all(any(document[name] for document in first) for name in WEIGHTS):
        together = encoder.encode_documents(first + second)
        stacked = sp.vstack([sp.csr_array(old, shape=(len(first), encoder.dim)), new])
        np.testing.assert_array_equal(together.toarray(), stacked.toarray())
    encoder.remove_documents(second)
    alone = BM25Encoder(fields=WEIGHTS).fit(first).encode_queries(queries)
    np.testing.assert_array_equal(
        encoder.encode_queries(queries).toarray()[:, : alone.shape[1]], alone.toarray()
    )
    assert encoder.encode_queries(queries).nnz == alone.nnz


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = (
        BM25Encoder(fields={"title": 1, "text": 2}),
        BM25Encoder(fields={"title": 1, "text": 2}),
    )
    vectors = whole.fit_documents([*RIVER, *RIVER])
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "BATCH_CHARACTERS", 1)
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "CHUNK_WORDS", 1)
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "CACHED_WORDS", 2)
    assert same(parts.fit_documents(iter([*RIVER, *RIVER])), vectors)
    assert parts.fingerprint == whole.fingerprint


@pytest.mark.parametrize("language", ["de", "zh", "none"])
def test_other_languages(language: str) -> None:
    encoder = BM25Encoder(fields={"title": 1.0, "text": 1.0}, language=language)
    documents = encoder.fit_documents([{"title": "信息 v1.2", "text": "信息检索 v1.2"}, *RIVER])
    for query in ("信息", "v1.2", "gold"):
        found = product(encoder.encode_queries([query]), documents)[0]
        assert (found > 0).tolist() == [query != "gold", query == "gold", False, False]


def test_save_and_load(tmp_path: Path) -> None:
    encoder = BM25Encoder(k1=1.2, b=0.7, fields={"text": 1.0, "title": 3.0})
    encoder.fit(RIVER)
    encoder.add_documents([{"title": "New", "text": "entirely new"}])
    encoder.save_pretrained(tmp_path)
    loaded = BM25Encoder.from_pretrained(tmp_path)
    assert loaded.fingerprint == encoder.fingerprint
    assert loaded.fields == {"text": 1.0, "title": 3.0}
    assert list(loaded.fields) == ["text", "title"]
    assert loaded.average_length == encoder.average_length
    assert same(loaded.encode_queries(["new gold"]), encoder.encode_queries(["new gold"]))
    assert same(loaded.encode_documents(RIVER), encoder.encode_documents(RIVER))
    assert same(loaded.add_documents(RIVER), encoder.add_documents(RIVER))
    assert loaded.fingerprint == encoder.fingerprint
    assert pickle.loads(pickle.dumps(loaded)).fingerprint == encoder.fingerprint
    assert read_json(tmp_path / "manifest.json")["version"] == 2
    BM25Encoder().fit(["plain"]).save_pretrained(tmp_path / "plain")
    assert read_json(tmp_path / "plain" / "manifest.json")["version"] == 1


def test_a_folder_with_a_term_of_no_field_is_refused(tmp_path: Path) -> None:
    BM25Encoder(fields={"text": 1.0}).fit([{"text": "gold"}]).save_pretrained(tmp_path)
    for file in (tmp_path / "manifest.json", tmp_path / "g000001" / "manifest.json"):
        file.write_text(file.read_text().replace('"text": 1.0', '"body": 1.0'))
    with pytest.raises(IndexFormatError, match=r"text:gold.*body.*rebuild"):
        BM25Encoder.from_pretrained(tmp_path)


def test_fingerprint_follows_the_fields() -> None:
    prints = {
        BM25Encoder(fields=fields).fit(RIVER).fingerprint
        for fields in ({"title": 1}, {"text": 1}, {"title": 1, "text": 1}, {"title": 2, "text": 1})
    }
    assert len(prints) == 4


def test_empty_is_valid() -> None:
    encoder = BM25Encoder(fields={"title": 1.0, "text": 1.0})
    assert encoder.fit_documents([]).shape == (0, 0)
    assert encoder.encode_queries(["gold"]).shape == (1, 0)
    assert encoder.encode_documents([{}]).shape == (1, 0)
    assert encoder.add_documents([{"title": "", "text": "the of"}, {}]).nnz == 0
    assert encoder.add_documents(RIVER).nnz > 0
    assert encoder.average_length == pytest.approx(3 / 2 + (5 + 3) / 2)


def test_a_field_that_no_document_has_is_refused() -> None:
    encoder = BM25Encoder(fields={"titel": 1.0, "text": 1.0})
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"bm25\.fields\.titel: .*did you mean 'title'"):
            encoder.fit_documents(RIVER)
    # What was there once may go: a corpus may lose its last document with the field.
    encoder = BM25Encoder(fields={"note": 1.0, "text": 1.0})
    encoder.fit([*RIVER, {"note": "gold"}])
    assert encoder.fit_documents(RIVER).shape[0] == 3


def test_bad_arguments() -> None:
    for fields in ({}, [], "title", dict.fromkeys(map(str, range(30)), 1.0)):
        with pytest.raises(ConfigError, match=r"bm25\.fields: .*\{title: 1\.0, text: 1\.0\}"):
            BM25Encoder(fields=fields)
    for name in ("", "a:b", "a\nb", 3):
        with pytest.raises(ConfigError, match="the name"):
            BM25Encoder(fields={name: 1.0})
    for weight in (0, -1.0, math.nan, math.inf, "1", True, None):
        with pytest.raises(ConfigError, match=r"bm25\.fields\.title: .*above 0"):
            BM25Encoder(fields={"title": weight})
    encoder = BM25Encoder(fields={"title": 1.0})
    with pytest.raises(DataError, match=r"documents\[1\]: str; .*mapping with title"):
        encoder.fit([{"title": "x"}, "text"])
    with pytest.raises(DataError, match=r"documents\[0\]\['title'\]: int; expected str"):
        encoder.fit([{"title": 3}])
    with pytest.raises(DataError, match="single str"):
        encoder.fit([{"title": "x"}]).encode_queries("x")
    before = encoder.fingerprint
    for documents in ([{"title": "y"}], [{"title": "x"}] * 2, [{}, {}]):
        with pytest.raises(DataError, match="never fitted or added"):
            encoder.remove_documents(documents)
    assert encoder.fingerprint == before


@pytest.mark.parametrize(("name", "published"), [("scifact", 0.6647), ("nfcorpus", 0.3254)])
def test_published_figures(collections: Path, name: str, published: float) -> None:
    folder = collections / name
    corpus, questions = (
        [json.loads(line) for line in (folder / file).read_bytes().splitlines()]
        for file in ("corpus.jsonl", "queries.jsonl")
    )
    qrels: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    queries = {entry["_id"]: entry["text"] for entry in questions}
    encoder = BM25Encoder(fields={"title": 1.0, "text": 1.0})
    documents = encoder.fit_documents(
        {"title": entry["title"], "text": entry["text"]} for entry in corpus
    )
    found = product(encoder.encode_queries([queries[query] for query in qrels]), documents)
    run = {}
    for query, row in zip(qrels, found, strict=True):
        best = np.argsort(-row, kind="stable")[:1000]
        run[query] = {str(corpus[i]["_id"]): float(row[i]) for i in best if row[i] > 0}
    judged = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    total = sum(values["ndcg_cut_10"] for values in judged.values())
    assert total / len(qrels) == pytest.approx(published, abs=0.005)
