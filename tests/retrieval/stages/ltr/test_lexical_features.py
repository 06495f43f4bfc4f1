"""Lexical features against a straight-line reading of their definitions, and BM25's own score."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.lexical.analyzer import analyzer
from sluice.retrieval import Document, Retriever
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.stages.ltr.collection_terms import CollectionTerms, collection_terms
from sluice.retrieval.stages.ltr.lexical_features import K1, LEXICAL, MU, B, lexical_features

WORDS = ("gold", "river", "stone", "water", "sluice", "the", "index", "term")
QUERIES = ["gold river", "the stone of gold water gold river", "", "unknown", "water unknown index"]


def drawn(count: int = 30, seed: int = 0) -> list[Document]:
    rng = np.random.default_rng(seed)

    def text(most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(0, most)))

    found = [Document(f"d{n}", text(4), text(25)) for n in range(count)]
    return [*found, Document("empty", "", ""), Document("title only", "gold river", "")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DocumentStore:
    return write_documents(tmp_path_factory.mktemp("store"), drawn())


@pytest.fixture(scope="module")
def terms(store: DocumentStore) -> CollectionTerms:
    return collection_terms(store)


def table(terms: CollectionTerms, query: str, rows: list[int]) -> dict[str, np.ndarray]:
    found = lexical_features(terms, [query], [np.array(rows, np.int64)])
    return dict(zip(LEXICAL, found.T, strict=True))


class Straight:
    """The definitions, one document, one term and one loop at a time."""

    def __init__(self, documents: list[Document]) -> None:
        cut = analyzer("en")
        self.fields = [
            {"title": cut(d.title), "body": cut(d.text), "all": cut(d.title) + cut(d.text)}
            for d in documents
        ]

    def features(self, query: str, document: int) -> dict[str, float]:
        asked = analyzer("en")(query)
        own = self.fields[document]
        found: dict[str, float] = {}
        known = [t for t in asked if any(t in fields["all"] for fields in self.fields)]
        for name in ("title", "body", "all"):
            texts = [fields[name] for fields in self.fields]
            found |= {f"{name}.{k}": v for k, v in self.field(asked, known, own[name], texts, name)}
        everywhere = [fields["all"] for fields in self.fields]
        idf = {t: self.idf(t, everywhere, len(everywhere)) for t in set(asked)}
        hit = {t: idf[t] for t in set(asked) if t in own["all"]}
        total = sum(idf.values())
        found["all.idf_sum"] = sum(hit.values())
        found["all.idf_min"] = min(hit.values(), default=0.0)
        found["all.idf_max"] = max(hit.values(), default=0.0)
        found["all.idf_mean"] = sum(hit.values()) / max(len(hit), 1)
        found["all.idf_share"] = sum(hit.values()) / total if total else 0.0
        found["all.tf_sum"] = sum(own["all"].count(t) for t in hit)
        pieces = {"title": [own["title"]], "all": [own["title"], own["body"]]}
        for name, parts in pieces.items():
            found |= {f"{name}.{k}": v for k, v in self.places(asked, parts)}
        at = [place for place, term in enumerate(own["all"]) if term in asked]
        apart = [abs(i - j) for i in at for j in at if own["all"][i] != own["all"][j]]
        found["all.first_match"] = min(at, default=len(own["all"]))
        found["all.nearest_pair"] = min(apart, default=len(own["all"]))
        found["query.length"] = len(asked)
        found["query.idf_sum"], found["query.idf_max"] = total, max(idf.values(), default=0.0)
        return found

    def idf(self, term: str, texts: list[list[str]], documents: int) -> float:
        df = sum(term in text for text in texts)
        return math.log1p((documents - df + 0.5) / (df + 0.5)) if df else 0.0

    def field(
        self, asked: list[str], known: list[str], own: list[str], texts: list[list[str]], name: str
    ) -> Iterator[tuple[str, float]]:
        holders = len(texts) if name == "all" else sum(bool(text) for text in texts)
        total = sum(map(len, texts))
        average = total / holders
        bm25 = likelihood = inl2 = product = query_norm = 0.0

        def weight(count: int, df: int) -> float:
            return (1 + math.log(count)) * math.log1p(holders / df) if count and df else 0.0

        for term, qtf in Counter(asked).items():
            tf, df = own.count(term), sum(term in text for text in texts)
            cf = sum(text.count(term) for text in texts)
            damping = K1 * (1 - B + B * len(own) / average)
            bm25 += qtf * self.idf(term, texts, holders) * tf / (tf + damping)
            if tf:
                likelihood += qtf * math.log1p(tf * total / (MU * cf))
                normal = tf * math.log2(1 + average / len(own))
                inl2 += qtf * normal / (normal + 1) * math.log2((holders + 1) / (df + 0.5))
            product += weight(qtf, df) * weight(tf, df)
            query_norm += weight(qtf, df) ** 2
        likelihood += len(known) * math.log(MU / (MU + len(own)))
        norm = sum(
            weight(tf, sum(t in text for text in texts)) ** 2 for t, tf in Counter(own).items()
        )
        matched = len(set(asked) & set(own))
        scale = math.sqrt(norm * query_norm)
        yield "bm25", bm25
        yield "likelihood", likelihood
        yield "inl2", inl2
        yield "cosine", product / scale if scale else 0.0
        yield "matched", matched
        yield "coverage", matched / max(len(set(asked)), 1)
        yield "length", math.log1p(len(own))

    def places(self, asked: list[str], parts: list[list[str]]) -> Iterator[tuple[str, float]]:
        count, found, longest = 0, set(), 0
        for part in parts:
            for i in range(len(part)):
                for j in range(len(asked)):
                    if part[i : i + 2] == asked[j : j + 2] and len(part[i : i + 2]) == 2:
                        count += 1
                        found.add(j)
                    run = 0
                    while part[i : i + run + 1] == asked[j : j + run + 1] and i + run < len(part):
                        if j + run >= len(asked):
                            break
                        run += 1
                    longest = max(longest, run)
        yield "bigrams", count
        yield "bigram_share", len(found) / max(len(asked) - 1, 1)
        yield "longest_run", longest
        yield "phrase", float(bool(asked) and longest == len(asked))


def test_every_feature_is_what_its_definition_says(terms: CollectionTerms) -> None:
    documents = drawn()
    straight = Straight(documents)
    rows = [np.arange(len(documents))] * len(QUERIES)
    matrix = lexical_features(terms, QUERIES, rows).reshape(len(QUERIES), len(documents), -1)
    for at, query in enumerate(QUERIES):
        for row in range(len(documents)):
            expected = straight.features(query, row)
            assert set(expected) == set(LEXICAL)
            for name, value in zip(LEXICAL, matrix[at, row].tolist(), strict=True):
                right = pytest.approx(expected[name], rel=1e-5, abs=1e-5)
                assert value == right, (query, row, name)


def test_the_bm25_feature_is_the_bm25_retriever_s_score() -> None:
    documents = drawn(40, 3)
    whole = Retriever.build(BM25Encoder(), documents)
    titles = Retriever.build(BM25Encoder(fields={"title": 1.0}), documents)
    terms = collection_terms(whole.store)
    for retriever, name in ((whole, "all.bm25"), (titles, "title.bm25")):
        ranking = retriever.run({"q": "gold stone gold term"})["q"]
        assert len(ranking) > 5
        rows = whole.store.rows(list(ranking.doc_ids)).tolist()
        found = table(terms, "gold stone gold term", rows)[name]
        np.testing.assert_allclose(found, ranking.scores, rtol=1e-5)


def test_a_batch_gives_what_each_query_gives_alone(
    terms: CollectionTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    rows = [rng.integers(-1, 32, rng.integers(0, 9)) for _ in QUERIES]
    together = lexical_features(terms, QUERIES, rows)
    alone = [lexical_features(terms, [q], [r]) for q, r in zip(QUERIES, rows, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    monkeypatch.setattr("sluice.retrieval.stages.ltr.lexical_features.TERMS_AT_ONCE", 20)
    np.testing.assert_array_equal(together, lexical_features(terms, QUERIES, rows))
    assert lexical_features(terms, [], []).shape == (0, len(LEXICAL))


def test_a_document_nobody_knows_is_an_empty_one(terms: CollectionTerms) -> None:
    unknown, empty = table(terms, "gold river", [-1]), table(terms, "gold river", [30])
    assert {name: v.tolist() for name, v in unknown.items()} == {
        name: v.tolist() for name, v in empty.items()
    }
    assert unknown["all.length"] == 0
    assert unknown["query.length"] == 2


def test_a_phrase_does_not_cross_from_title_to_body(tmp_path: Path) -> None:
    documents = [Document("a", "gold", "river"), Document("b", "", "gold river"),
                 Document("c", "gold river", "stone")]  # fmt: skip
    found = table(collection_terms(write_documents(tmp_path, documents)), "gold river", [0, 1, 2])
    assert found["all.phrase"].tolist() == [0, 1, 1]
    assert found["title.phrase"].tolist() == [0, 0, 1]
    assert found["all.nearest_pair"].tolist() == [1, 1, 1]


def test_terms_are_saved_and_opened_again(terms: CollectionTerms, tmp_path: Path) -> None:
    terms.save(tmp_path / "terms")
    again = CollectionTerms.open(tmp_path / "terms")
    rows = [np.arange(-1, 32)]
    np.testing.assert_array_equal(
        lexical_features(again, ["gold river"], rows), lexical_features(terms, ["gold river"], rows)
    )
    assert again.fingerprint == terms.fingerprint
    (next((tmp_path / "terms").glob("g*")) / "vocabulary.txt").write_text("one\n")
    with pytest.raises(IndexFormatError):
        CollectionTerms.open(tmp_path / "terms")


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("terms", 3, 10**6), ("terms", 3, -9), ("bounds", (2, 1), 10**6), ("bounds", (2, 2), 10**6),
        ("bounds", (0, 0), -1), ("frequencies", (0, 0), -1), ("occurrences", (2, 1), -5),
    ],
)  # fmt: skip
def test_terms_that_lead_elsewhere_are_refused(
    terms: CollectionTerms, tmp_path: Path, name: str, place: Any, value: int
) -> None:
    values = getattr(terms, name).copy()
    values[place] = value
    replace(terms, **{name: values}).save(tmp_path / "terms")
    with pytest.raises(IndexFormatError, match="train"):
        lexical_features(CollectionTerms.open(tmp_path / "terms"), ["gold"], [np.arange(-1, 32)])


def test_deleted_documents_count_no_more(tmp_path: Path) -> None:
    store = write_documents(tmp_path / "a", drawn())
    store.delete([0, 7, 8, 31])
    left = [document for row, document in enumerate(drawn()) if row not in (0, 7, 8, 31)]
    fresh = collection_terms(write_documents(tmp_path / "b", left))
    kept = np.array([row for row in range(32) if row not in (0, 7, 8, 31)])
    both = [
        lexical_features(collection_terms(store), QUERIES, [kept] * 5),
        lexical_features(fresh, QUERIES, [np.arange(28)] * 5),
    ]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-6)


def test_a_large_corpus_is_counted_in_parts(
    store: DocumentStore, terms: CollectionTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.retrieval.stages.ltr.collection_terms.CHUNK", 30)
    parts = collection_terms(store)
    np.testing.assert_array_equal(parts.frequencies, terms.frequencies)
    np.testing.assert_array_equal(parts.occurrences, terms.occurrences)
    np.testing.assert_allclose(parts.norms, terms.norms, rtol=1e-6)


def test_an_empty_corpus(tmp_path: Path) -> None:
    terms = collection_terms(write_documents(tmp_path, []))
    assert np.isfinite(lexical_features(terms, ["gold"], [np.array([-1, -1])])).all()
