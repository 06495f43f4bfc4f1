"""BM25Encoder against its formula in plain Python, bm25s, refits, and published figures."""

import copy
import json
import logging
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import pytrec_eval
import scipy.sparse as sp
from forging import forge
from hypothesis import given, settings, strategies as st

import sluice.encoders.lexical.term_counts
from sluice.encoders.encoder import Encoder
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    ModelError,
    SluiceError,
)
from sluice.encoders.lexical.analyzer import analyzer
from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.encoders.lexical.long_query import LongQuery
from sluice.encoders.lexical.variants import Variant

THREE = ["the red fox runs", "red red cars", "a quick running fox and foxes"]
TEXTS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=8).map(" ".join), max_size=12)


def scores(documents: list[str], query: str, k1: float = 0.9, b: float = 0.4) -> list[float]:
    """BM25 with nothing but counters, in float64."""
    terms = [analyzer("en")(text) for text in documents]
    average = sum(map(len, terms)) / len(terms)
    result = []
    for own in terms:
        score = 0.0
        for term, times in Counter(analyzer("en")(query)).items():
            frequency = sum(term in others for others in terms)
            idf = math.log(1 + (len(terms) - frequency + 0.5) / (frequency + 0.5))
            tf = own.count(term)
            damping = k1 * (1 - b + b * len(own) / average) if average else k1
            score += times * idf * tf / (tf + damping) if tf else 0.0
        result.append(score)
    return result


def product(queries: sp.csr_array, documents: sp.csr_array) -> np.ndarray:
    return (queries @ documents.T).toarray()


def canonical(matrix: sp.csr_array) -> bool:
    rows = np.split(matrix.indices, matrix.indptr[1:-1])
    ascending = all((np.diff(row) > 0).all() for row in rows)
    types = matrix.dtype == np.float32 and matrix.indices.dtype == np.int32
    return ascending and types and bool((matrix.data > 0).all())


def same(left: sp.csr_array, right: sp.csr_array) -> bool:
    return left.shape == right.shape and all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("data", "indices", "indptr")
    )


def test_three_documents_by_hand() -> None:
    encoder = BM25Encoder()
    documents = encoder.fit_documents(THREE)
    assert list(encoder.vocabulary) == ["red", "fox", "run", "car", "quick"]
    assert encoder.average_length == pytest.approx(10 / 3)
    # "red" in the second document: tf 2, dl 3; in two of three documents.
    impact = 2 / (2 + 0.9 * (1 - 0.4 + 0.4 * 3 / (10 / 3)))
    assert documents[1, 0] == pytest.approx(impact, rel=1e-6)
    queries = encoder.encode_queries(["red red"])
    assert queries[0, 0] == pytest.approx(2 * math.log(1 + (3 - 2 + 0.5) / (2 + 0.5)), rel=1e-6)
    assert product(queries, documents)[0] == pytest.approx(scores(THREE, "red red"), rel=1e-6)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(TEXTS, TEXTS, st.floats(0, 3), st.floats(0, 1))
def test_scores_equal_the_formula(
    documents: list[str], queries: list[str], k1: float, b: float
) -> None:
    encoder = BM25Encoder(k1, b)
    vectors = encoder.fit_documents(documents)
    asked = encoder.encode_queries(queries)
    assert canonical(vectors)
    assert canonical(asked)
    expected = [scores(documents, query, k1, b) if documents else [] for query in queries]
    np.testing.assert_allclose(
        product(asked, vectors), np.reshape(expected, (len(queries), len(documents))), rtol=1e-5
    )
    assert same(BM25Encoder(k1, b).fit(documents).encode_documents(documents), vectors)


def test_scores_equal_bm25s() -> None:
    random = np.random.default_rng(7)
    texts = [" ".join(random.choice(list("bcdefghkmnpqruvwz"), 12)) for _ in range(80)]
    encoder = BM25Encoder()
    vectors = encoder.fit_documents(texts)
    other = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    other.index([analyzer("en")(text) for text in texts], show_progress=False)
    for query in texts[:10]:
        expected = other.get_scores(analyzer("en")(query))
        found = product(encoder.encode_queries([query]), vectors)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def lower_bounded(
    documents: list[str], query: str, variant: str, k1: float, b: float
) -> list[float]:
    """Lv and Zhai's BM25+ (delta 1) and BM25L (delta 0.5) with nothing but counters."""
    terms = [analyzer("en")(text) for text in documents]
    average = sum(map(len, terms)) / len(terms)
    result = []
    for own in terms:
        score = 0.0
        for term, times in Counter(analyzer("en")(query)).items():
            frequency = sum(term in others for others in terms)
            tf = own.count(term)
            if not tf:
                continue
            norm = 1 - b + b * len(own) / average
            if variant == "plus":
                part = (k1 + 1) * tf / (k1 * norm + tf) + 1.0
                score += times * part * math.log((len(terms) + 1) / frequency)
            else:
                c = tf / norm
                part = (k1 + 1) * (c + 0.5) / (k1 + c + 0.5)
                score += times * part * math.log((len(terms) + 1) / (frequency + 0.5))
        result.append(score)
    return result


@pytest.mark.parametrize("variant", ["plus", "l"])
@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), max_size=8).map(" ".join), TEXTS, st.floats(0, 3))
def test_variants_equal_the_papers_formula(
    variant: Variant, query: str, documents: list[str], k1: float
) -> None:
    for b in (0.0, 0.4, 1.0):
        encoder = BM25Encoder(k1, b, variant=variant)
        vectors = encoder.fit_documents(documents)
        found = product(encoder.encode_queries([query]), vectors)[0] * (k1 + 1)
        expected = lower_bounded(documents, query, variant, k1, b) if documents else []
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert canonical(vectors)


@pytest.mark.parametrize(
    ("variant", "name", "delta"), [("plus", "bm25+", 1.0), ("l", "bm25l", 0.5)]
)
def test_variants_equal_bm25s(variant: Variant, name: str, delta: float) -> None:
    """It also counts delta for the terms a document lacks, which the papers do not."""
    random = np.random.default_rng(7)
    texts = [" ".join(random.choice(list("bcdefghkmnpqruvwz"), size)) for size in range(2, 82)]
    terms = [analyzer("en")(text) for text in texts]
    encoder = BM25Encoder(variant=variant)
    vectors = encoder.fit_documents(texts)
    other = bm25s.BM25(method=name, k1=0.9, b=0.4, delta=delta)
    other.index(terms, show_progress=False)
    idf = dict(zip(encoder.vocabulary, encoder.idf(), strict=True))
    lacked = delta if variant == "plus" else 1.9 * delta / (0.9 + delta)
    for query in ["b", "c d", *texts[:8]]:
        asked = analyzer("en")(query)
        found = 1.9 * product(encoder.encode_queries([query]), vectors)[0]
        absent = [sum(idf[term] * lacked for term in asked if term not in own) for own in terms]
        np.testing.assert_allclose(found + absent, other.get_scores(asked), rtol=1e-5)


def test_a_long_document_is_not_below_one_without_the_term() -> None:
    """What the variants are for: BM25's part of a term goes to 0 as documents grow."""
    long = "gold " + "sand " * 5000
    for variant, least in [("lucene", 0.0), ("plus", 1 / 1.9), ("l", 0.5 / 1.4)]:
        encoder = BM25Encoder(b=1.0, variant=variant)  # type: ignore[arg-type]
        impact = encoder.fit_documents([long, *["mud"] * 500])[0, 0]
        assert least < impact < least + 0.01


def test_a_variant_is_saved_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    plain, plus = BM25Encoder().fit(THREE), BM25Encoder(variant="plus").fit(THREE)
    plain.save_pretrained(tmp_path / "plain")
    plus.save_pretrained(tmp_path / "plus")
    opened = BM25Encoder.from_pretrained(tmp_path / "plus")
    assert opened.variant == "plus"
    assert opened.fingerprint == plus.fingerprint != plain.fingerprint
    assert same(opened.encode_documents(THREE), plus.encode_documents(THREE))
    assert same(opened.encode_queries(THREE), plus.encode_queries(THREE))
    manifests = [
        json.loads((tmp_path / n / "manifest.json").read_text()) for n in ("plain", "plus")
    ]
    assert [manifest["version"] for manifest in manifests] == [1, 3]
    assert "variant" not in (tmp_path / "plain" / "manifest.json").read_text()
    with pytest.raises(
        ConfigError, match=r"variant: 'pluss'; expected one of lucene, plus, l; did"
    ):
        BM25Encoder(variant="pluss")  # type: ignore[arg-type]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_added_and_removed_documents_leave_the_idf_of_a_refit(
    first: list[str], second: list[str], queries: list[str]
) -> None:
    encoder, refit = BM25Encoder(), BM25Encoder()
    old = encoder.fit_documents(first)
    average = encoder.average_length
    new = encoder.add_documents(second)
    refit.fit(first + second)
    assert encoder.vocabulary == refit.vocabulary
    assert same(encoder.encode_queries(queries), refit.encode_queries(queries))
    assert encoder.average_length == average or average == 0
    if average:
        together = encoder.encode_documents(first + second)
        stacked = sp.vstack([sp.csr_array(old, shape=(len(first), encoder.dim)), new])
        np.testing.assert_array_equal(together.toarray(), stacked.toarray())
    before = encoder.vocabulary
    encoder.remove_documents(second)
    assert encoder.vocabulary == before  # columns stay
    alone = BM25Encoder().fit(first).encode_queries(queries)
    np.testing.assert_array_equal(
        encoder.encode_queries(queries).toarray()[:, : alone.shape[1]], alone.toarray()
    )
    assert canonical(encoder.encode_queries(queries))
    assert encoder.encode_queries(queries).nnz == alone.nnz


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BM25Encoder()
    vectors = whole.fit_documents([*THREE, "", "zebra red"])
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "CHUNK_WORDS", 1)
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "CACHED_WORDS", 2)
    parts = BM25Encoder()
    assert same(parts.fit_documents(iter([*THREE, "", "zebra red"])), vectors)
    assert parts.fingerprint == whole.fingerprint
    assert same(parts.encode_queries(THREE), whole.encode_queries(THREE))


def test_unknown_terms_count_for_the_length_only() -> None:
    encoder = BM25Encoder().fit(THREE)
    vector = encoder.encode_documents(["fox zebra zebra"])
    expected = 1 / (1 + 0.9 * (0.6 + 0.4 * 3 / (10 / 3)))
    assert vector.nnz == 1
    assert vector.data[0] == pytest.approx(expected, rel=1e-6)
    assert encoder.encode_queries(["zebra"]).nnz == 0


def test_empty_is_valid() -> None:
    encoder = BM25Encoder()
    assert encoder.fit_documents([]).shape == (0, 0)
    assert encoder.encode_queries(["anything"]).shape == (1, 0)
    assert encoder.encode_documents(["anything"]).shape == (1, 0)
    assert encoder.encode_queries([]).shape == (0, 0)
    assert encoder.add_documents(["", "the of"]).nnz == 0
    vectors = encoder.add_documents(THREE)
    assert encoder.average_length == pytest.approx(10 / 5)
    assert vectors.nnz == 8
    assert encoder.encode_queries(["", "red"]).sum(axis=1)[0] == 0
    assert BM25Encoder().fit(["", ""]).encode_documents(["", ""]).shape == (2, 0)


def test_save_and_load(tmp_path: Path) -> None:
    encoder = BM25Encoder(k1=1.2, b=0.75, language="de")
    texts = ["Die Häuser am Fluss", "Straße, größer"]
    encoder.fit(texts)
    encoder.add_documents(["Ein Fluss mehr und noch einer"])
    encoder.save_pretrained(tmp_path / "e")
    loaded = BM25Encoder.from_pretrained(tmp_path / "e")
    assert loaded.fingerprint == encoder.fingerprint
    assert (loaded.k1, loaded.b, loaded.language) == (1.2, 0.75, "german")
    assert loaded.vocabulary == encoder.vocabulary
    assert loaded.average_length == encoder.average_length
    assert same(loaded.encode_queries(texts), encoder.encode_queries(texts))
    assert same(loaded.encode_documents(texts), encoder.encode_documents(texts))
    assert same(loaded.add_documents(["neu"]), encoder.add_documents(["neu"]))
    assert loaded.fingerprint == encoder.fingerprint
    encoder.save_pretrained(tmp_path / "e")
    assert "neu" in BM25Encoder.from_pretrained(tmp_path / "e").vocabulary
    first = BM25Encoder.from_pretrained(tmp_path / "e", generation="g000001")
    assert "neu" not in first.vocabulary
    BM25Encoder().fit([]).save_pretrained(tmp_path / "empty")
    assert BM25Encoder.from_pretrained(tmp_path / "empty").dim == 0


def test_a_folder_with_decomposed_terms_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    BM25Encoder(language="fr").fit(["cafe\u0301"]).save_pretrained(tmp_path / "new")
    BM25Encoder.from_pretrained(tmp_path / "new")
    assert not caplog.records
    with monkeypatch.context() as old:  # an analyser that left texts as they were
        old.setattr("sluice.encoders.lexical.analyzer.unicodedata.normalize", lambda _, text: text)
        BM25Encoder(language="fr").fit(["cafe\u0301"]).save_pretrained(tmp_path / "old")
    with caplog.at_level(logging.WARNING, "sluice"):
        assert BM25Encoder.from_pretrained(tmp_path / "old").dim == 1
    assert "a rebuild mends it" in caplog.text


def test_damaged_folder_is_refused(tmp_path: Path) -> None:
    BM25Encoder().fit(THREE).save_pretrained(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format"] == "sluice.bm25"
    vocabulary = tmp_path / manifest["generation"] / "vocabulary.txt"
    vocabulary.write_text(vocabulary.read_text().replace("fox", "box"))
    with pytest.raises(IndexFormatError, match="checksum"):
        BM25Encoder.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("frequencies.npy", b"no array"), ("vocabulary.txt", b"\xff"),
        *(("frequencies.npy", values) for values in ([-1] * 9, [99] * 9, [[1] * 9], [1.0] * 9)),
        *(("manifest.json", {key: value}) for key in ("documents", "length", "average_length", "k1")
          for value in (None, "x", 10**400, [])),
    ],
)  # fmt: skip
def test_a_forged_folder_is_refused(tmp_path: Path, file: str, data: Any) -> None:
    BM25Encoder().fit(["a quick brown fox", "jumps over lazy dogs now and then"]).save_pretrained(
        tmp_path
    )
    (folder,) = tmp_path.glob("g*")
    if isinstance(data, dict):
        manifest = tmp_path / file
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | data))
    elif isinstance(data, bytes):
        (folder / file).write_bytes(data)
    else:
        np.save(folder / file, np.array(data))
    forge(tmp_path, folder / "frequencies.npy")
    forge(tmp_path, folder / "vocabulary.txt")
    with pytest.raises(SluiceError, match=r"rebuild|k1"):
        BM25Encoder.from_pretrained(tmp_path)


def test_fingerprint_follows_settings_and_counts() -> None:
    prints = {
        BM25Encoder().fit(THREE).fingerprint,
        BM25Encoder(k1=1.0).fit(THREE).fingerprint,
        BM25Encoder(language="none").fit(THREE).fingerprint,
        BM25Encoder().fit([*THREE, ""]).fingerprint,
        BM25Encoder().fit([*THREE, "red"]).fingerprint,
    }
    assert len(prints) == 5
    encoder = BM25Encoder().fit(THREE)
    before = encoder.fingerprint
    encoder.add_documents(["red"])
    assert encoder.fingerprint != before
    encoder.remove_documents(["red"])
    assert encoder.fingerprint == before
    assert isinstance(encoder, Encoder)
    assert pickle.loads(pickle.dumps(encoder)).fingerprint == before


def test_a_failing_text_changes_nothing() -> None:
    encoder = BM25Encoder().fit(THREE)
    before = encoder.fingerprint

    def broken() -> Iterator[str]:
        yield "entirely new terms"
        raise OSError("line 2")

    with pytest.raises(OSError, match="line 2"):
        encoder.add_documents(broken())
    with pytest.raises(OSError, match="line 2"):
        encoder.fit(broken())
    for texts in (["never seen"], THREE + THREE, [*THREE, ""]):
        with pytest.raises(DataError, match="never fitted or added"):
            encoder.remove_documents(texts)
    encoder._fingerprint = None
    assert encoder.fingerprint == before


def test_bad_arguments() -> None:
    for k1 in (-1, math.nan, "0.9", True):
        with pytest.raises(ConfigError, match=r"bm25\.k1"):
            BM25Encoder(k1=k1)
    with pytest.raises(ConfigError, match=r"bm25\.b is 1\.5, expected a number from 0 to 1"):
        BM25Encoder(b=1.5)
    with pytest.raises(ConfigError, match="language"):
        BM25Encoder(language="xx")
    for call in ("encode_queries", "encode_documents", "add_documents", "remove_documents"):
        with pytest.raises(ModelError, match="fit"):
            getattr(BM25Encoder(), call)(["text"])
    with pytest.raises(DataError, match="single str"):
        BM25Encoder().fit("text")
    with pytest.raises(DataError, match=r"texts\[1\]: NoneType"):
        BM25Encoder().fit(["text", None])


@pytest.mark.parametrize(("name", "published"), [("scifact", 0.6789), ("nfcorpus", 0.3218)])
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
    encoder = BM25Encoder()
    documents = encoder.fit_documents(f"{entry['title']} {entry['text']}" for entry in corpus)
    found = product(encoder.encode_queries([queries[query] for query in qrels]), documents)
    ids = np.array([entry["_id"] for entry in corpus])
    run = {}
    for query, row in zip(qrels, found, strict=True):
        # Where the last places tie it does not matter which of them stay: the cut is at 1,000.
        best = np.argsort(-row, kind="stable")[:1000]
        run[query] = {str(ids[i]): float(row[i]) for i in best if row[i] > 0}
    judged = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    total = sum(values["ndcg_cut_10"] for values in judged.values())
    assert total / len(qrels) == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize("fields", [None, {"title": 2.0, "text": 1.0}])
def test_idf_is_the_weight_of_one_occurrence(fields: dict[str, float] | None) -> None:
    texts = ["gold river", "gold", "stone"]
    given = [{"title": text, "text": "sluice"} for text in texts] if fields else texts
    encoder = BM25Encoder(fields=fields).fit(given)
    encoder.remove_documents(given[2:])
    query = encoder.encode_queries(["gold river stone sluice"]).toarray()[0]
    np.testing.assert_array_equal(encoder.idf().astype(np.float32), query)
    with pytest.raises(ModelError, match="not fitted yet"):
        BM25Encoder().idf()


def test_a_copy_changes_by_itself() -> None:
    encoder = BM25Encoder().fit(["gold river", "gold"])
    before, made = encoder.fingerprint, copy.deepcopy(encoder)
    made.add_documents(["new words"])
    assert (encoder.dim, encoder.documents, encoder.fingerprint) == (2, 2, before)
    assert (made.dim, made.documents) == (4, 3)
    assert made.fingerprint != before
    assert copy.deepcopy(BM25Encoder()).k1 == 0.9


def test_a_long_query_is_weighed_as_a_document() -> None:
    """The boost of Anserini's QuerySideBm25QueryGenerator, times BM25."""
    documents = [*THREE, "", "cars and foxes"]
    question = "red red red fox running unknownword"
    encoder = BM25Encoder(k1=1.2, b=0.75)
    matrix = encoder.fit_documents(documents)
    vectors = encoder.encode_queries([question, LongQuery(question), LongQuery(""), "red"])
    terms = [analyzer("en")(text) for text in documents]
    own, average = analyzer("en")(question), sum(map(len, terms)) / len(terms)
    expected = np.zeros(len(documents))
    for term, times in Counter(own).items():
        frequency = sum(term in others for others in terms)
        idf = math.log(1 + (len(terms) - frequency + 0.5) / (frequency + 0.5))
        boost = idf * times / (times + 1.2 * (0.25 + 0.75 * len(own) / average))
        for place, each in enumerate(terms):
            tf = each.count(term)
            damping = 1.2 * (0.25 + 0.75 * len(each) / average)
            expected[place] += boost * idf * tf / (tf + damping)
    found = (vectors @ matrix.T).toarray()
    np.testing.assert_allclose(found[1], expected, rtol=1e-6)
    np.testing.assert_allclose(found[0], scores(documents, question, 1.2, 0.75), rtol=1e-6)
    np.testing.assert_allclose(found[3], scores(documents, "red", 1.2, 0.75), rtol=1e-6)
    assert not found[2].any()
