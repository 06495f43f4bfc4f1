"""Filters on metadata against a plain evaluation of the same conditions, row by row."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from small_world import LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FaissIndex, FlatIndex
from sluice.retrieval import Document, Fuse, Rerank, Retriever, Run, Stage
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.documents.where import conditions, matching_rows, parse_where
from sluice.retrieval.runs.queries import Queries

ORDERS = {
    "gte": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "lte": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
}


def kind(value: Any) -> type:
    """The kinds that compare: booleans, numbers, texts."""
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float


def equals(found: Any, wanted: Any) -> bool:
    if wanted is None or found is None:
        return found is wanted
    if isinstance(found, list):
        return wanted in found
    return kind(found) is kind(wanted) and bool(found == wanted)


def holds(found: Any, operator: str, wanted: Any) -> bool:
    several = wanted if isinstance(wanted, list) else [wanted]
    if operator in ORDERS:
        same = found is not None and not isinstance(found, list) and kind(found) is kind(wanted)
        return same and bool(ORDERS[operator](found, wanted))
    return any(equals(found, one) for one in several) is (operator == "any")


def plainly(metadata: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    return all(
        holds(metadata.get(key), operator, value)
        for key, wanted in asked.items()
        for operator, value in (wanted if isinstance(wanted, dict) else {"any": wanted}).items()
    )


def store_of(folder: str | Path, *segments: list[dict[str, Any]]) -> DocumentStore:
    store, number = write_documents(folder, []), 0
    for segment in segments:
        made = [Document(f"d{number + n}", "", "", metadata) for n, metadata in enumerate(segment)]
        number += len(store.append(made))
    return store


texts = st.sampled_from(["", "a", "B", "b", "ba", "é", "12"])
numbers = st.integers(-3, 3) | st.sampled_from([-0.5, 0.0, 1.0, 2.5, 1e9])
scalars = st.none() | st.booleans() | numbers | texts
stored = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "number": numbers,
        "flag": st.booleans(),
        "list": st.lists(texts, max_size=3),
        "any": scalars | st.lists(texts, max_size=2),
    },
)
limits = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(ORDERS, numbers | texts), "not": scalars | st.lists(scalars)}
)
wheres = st.dictionaries(
    st.sampled_from(["text", "number", "flag", "list", "any"]),
    scalars | st.lists(scalars, max_size=3) | limits.filter(bool),
    max_size=3,
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.lists(stored, max_size=12), max_size=3), wheres)
@example([[{"any": 1}, {"any": True}, {"any": 1.0}, {"any": "1"}]], {"any": 1})
@example([[{"number": 1}], [{"number": 1.0}]], {"number": {"gte": 1, "lt": 1.5}})
def test_masks_equal_a_plain_evaluation(
    segments: list[list[dict[str, Any]]], asked: dict[str, Any]
) -> None:
    rows = [metadata for segment in segments for metadata in segment]
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):  # which takes longest
        store = store_of(folder, *segments)
        try:
            mask = matching_rows(store, conditions(asked))
        except ConfigError:
            mask = None
    assert (mask is None) is (bool(rows) and refused(rows, asked))
    if mask is None:
        return
    assert mask.dtype == np.bool_
    assert mask.tolist() == [plainly(metadata, asked) for metadata in rows]


def refused(rows: list[dict[str, Any]], asked: Mapping[str, Any]) -> bool:
    """Whether a key is nobody's, or a value of a kind that nobody has there."""
    for key, wanted in asked.items():
        values = [row[key] for row in rows if row.get(key) is not None]
        if not values:
            return True
        own = {list if isinstance(value, list) else kind(value) for value in values}
        for operator, value in (wanted if isinstance(wanted, dict) else {"any": wanted}).items():
            for one in value if isinstance(value, list) else [value]:
                listed = isinstance(one, str) and operator not in ORDERS and list in own
                if one is not None and kind(one) not in own and not listed:
                    return True
    return False


def test_what_matches(tmp_path: Path) -> None:
    store = store_of(
        tmp_path,
        [{"lang": "en", "year": 2019, "tags": ["x", "y"]}, {"lang": "de", "year": 2020}],
        [{"year": 2020.5, "tags": []}, {"lang": "en", "open": True}, {}],
    )

    def rows(**asked: Any) -> list[int]:
        return np.flatnonzero(matching_rows(store, conditions(asked))).tolist()

    assert rows() == [0, 1, 2, 3, 4]
    assert rows(lang="en") == rows(lang=["en"]) == rows(lang=("en", "en")) == [0, 3]
    assert rows(lang=["en", "de"]) == [0, 1, 3]
    assert rows(lang=[]) == []
    assert rows(lang="fr") == []
    assert rows(lang="en", year=2019) == [0]
    assert rows(lang=None) == [2, 4]
    assert rows(lang={"not": None}) == [0, 1, 3]
    assert rows(lang={"not": "en"}) == [1, 2, 4]
    assert rows(lang={"not": ["en", "de"]}) == [2, 4]
    assert rows(lang={"gt": "de"}) == [0, 3]
    assert rows(year={"gte": 2020}) == rows(year={"gt": 2019}) == [1, 2]
    assert rows(year={"gte": 2020, "lt": 2020.5}) == [1]
    assert rows(year=np.int64(2020)) == [1]
    assert rows(tags="x") == [0]
    assert rows(tags={"not": "x"}) == [1, 2, 3, 4]
    assert rows(open=True) == [3]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("lang=en", "where: 'lang=en'; expected a mapping"),
        (
            {"lnag": "en"},
            r"no document of .* has 'lnag' \(known: lang, open, tags, year\); did you",
        ),
        ({3: "en"}, "where: key 3; expected the name"),
        ({"year": "2020"}, "where.year: '2020' is text, the documents of .* have integer there"),
        ({"open": 1}, "where.open: 1 is integer, .* have boolean there"),
        ({"year": True}, "where.year: True is boolean"),
        ({"year": {"ge": 1}}, "where.year: unknown condition 'ge'.* did you mean 'gte'"),
        ({"year": {}}, "where.year: no condition"),
        ({"year": {"gte": [1, 2]}}, r"where.year.gte: \[1, 2\]; expected one text or finite"),
        ({"year": {"gte": None}}, "where.year.gte: None"),
        ({"open": {"gt": True}}, "where.open.gt: True"),
        ({"tags": {"gt": "a"}}, "where.tags: 'a' is text, .* have texts there, for 'gt'"),
        ({"year": float("nan")}, "where.year: nan; expected a text"),
        ({"year": [{"a": 1}]}, "where.year: {'a': 1}; expected"),
    ],
)
def test_what_is_no_filter(tmp_path: Path, asked: Any, message: str) -> None:
    store = store_of(tmp_path, [{"lang": "en", "year": 1, "open": True, "tags": ["a"]}])
    with pytest.raises(ConfigError, match=message):
        matching_rows(store, conditions(asked))


LANGS = ["en", "de", "fr"]


def labelled() -> list[Document]:
    return [
        document._replace(metadata={"lang": LANGS[number % 3], "n": number})
        for number, document in enumerate(documents())
    ]


@pytest.mark.parametrize("kind_of_index", ["bm25", "flat", "faiss"])
def test_search_finds_the_best_of_those_that_match(kind_of_index: str) -> None:
    made = {"bm25": None, "flat": FlatIndex(), "faiss": FaissIndex("Flat")}[kind_of_index]
    encoder = BM25Encoder() if kind_of_index == "bm25" else WordEncoder()
    retriever = Retriever.build(encoder, labelled(), index=made)
    queries = {"q": "gold river", "r": "the number word7"}
    asked = {"lang": ["en", "fr"], "n": {"gte": 7}}
    allowed = {document.id for document in labelled() if plainly(document.metadata, asked)}
    everything = retriever.run(queries, k=40)
    expected = {q: [hit for hit in everything[q] if hit[0] in allowed] for q in queries}
    found = retriever.run(queries, k=40, where=asked)
    assert {query: list(ranking) for query, ranking in found.items()} == expected
    hits = retriever.search("gold river", 5, where=asked)  # of ties the first rows are chosen
    assert [hit.score for hit in hits] == [score for _, score in expected["q"][:5]]
    assert {hit.doc_id for hit in hits} <= allowed
    pipeline = retriever.filtered(asked) % 5
    assert pipeline.search("gold river", 9) == hits


def test_no_match_is_no_hit_and_no_error() -> None:
    retriever = Retriever.build(BM25Encoder(), labelled())
    assert retriever.search("gold", where={"lang": "xx"}) == []
    assert retriever.search("gold", where={"n": {"gt": 99}}) == []
    empty = Retriever.build(WordEncoder(), [])
    assert empty.search("gold", where={"lang": "en"}) == []
    with pytest.raises(ConfigError, match="none: the documents have no metadata"):
        Retriever.build(BM25Encoder(), documents()).search("gold", where={"lang": "en"})
    with pytest.raises(ConfigError, match="unknown condition"):
        retriever.filtered({"n": {"more": 1}})


def test_a_mask_is_made_once_for_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.build(BM25Encoder(), labelled())
    made = []

    def counted(*given: Any) -> Any:
        made.append(given)
        return matching_rows(*given)

    monkeypatch.setattr("sluice.retrieval.retrievers.state.matching_rows", counted)
    for _ in range(3):
        assert len(retriever.search("gold", 40, where={"lang": "en"})) > 0
    assert len(made) == 1
    retriever.search("gold", where={"n": 1})
    retriever.search("gold", where={"n": 1.0})
    assert len(made) == 3
    retriever.add([Document("new", "", "gold", {"lang": "en"})])
    assert "new" in [hit.doc_id for hit in retriever.search("gold", 40, where={"lang": "en"})]
    assert len(made) == 4
    for number in range(20):
        retriever.search("gold", where={"n": number})
    assert len(retriever._state._parts._masks) <= 8


@pytest.mark.parametrize(
    ("given_texts", "expected"),
    [
        ([], {}),
        (["lang=en"], {"lang": "en"}),
        (["lang==en", "year>=2020"], {"lang": "en", "year": {"gte": 2020}}),
        (["year >= 2020", "year<2021.5"], {"year": {"gte": 2020, "lt": 2021.5}}),
        (["code=007"], {"code": "007"}),
        (["code=7"], {"code": 7}),
        (['code="7"'], {"code": "7"}),
        (['lang=["en","de"]'], {"lang": ["en", "de"]}),
        (["lang!=en"], {"lang": {"not": "en"}}),
        (["lang=null", "open=true"], {"lang": None, "open": True}),
        (["title=a=b > c"], {"title": "a=b > c"}),
        (["my key=x"], {"my key": "x"}),
        (["x="], {"x": ""}),
        (["x=NaN"], {"x": "NaN"}),
    ],
)
def test_filters_as_text(given_texts: list[str], expected: dict[str, Any]) -> None:
    assert parse_where(given_texts) == expected


@pytest.mark.parametrize(
    ("given_texts", "message"),
    [
        (["lang"], "--where 'lang': expected KEY=VALUE"),
        (["=en"], "--where '=en': expected KEY=VALUE"),
        (["lang=en", "lang=de"], r'for any of several values write lang=\["a","b"\]'),
        (["n=1", "n>0"], "'n' has another condition"),
        (["n>1", "n=3"], "'n' has another condition"),
        (["n>1", "n>2"], "already has that condition"),
        (['x={"a": 1}'], "--where .*: an object"),
        (["x=[[1]]"], r"where.x: \[1\]; expected a text"),
        (["x>=true"], "where.x.gte: True; expected one text or finite number"),
    ],
)
def test_what_is_no_filter_as_text(given_texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_where(given_texts)


def test_a_filter_reaches_every_retriever_of_a_pipeline() -> None:
    first = Retriever.build(BM25Encoder(), labelled(), name="first")
    second = Retriever.build(BM25Encoder(k1=0.1), labelled(), name="second")
    rerank = Rerank(LengthScorer(), depth=20)
    where = {"lang": "en"}
    matching = {document.id for document in labelled() if document.metadata.get("lang") == "en"}
    fused = Fuse([first, second], method="weighted", weights=[2, 1], normalise="z-score")
    for pipeline in (first % 7, first | second, (fused % 9) >> rerank, first >> (second | rerank)):
        assert {hit.doc_id for hit in pipeline.search("gold river", 40)} - matching
        found = pipeline.filtered(where).search("gold river", 40)
        assert found
        assert {hit.doc_id for hit in found} <= matching
    expected = Fuse(
        [first.filtered(where), second.filtered(where)],
        method="weighted", weights=[2, 1], normalise="z-score",
    )  # fmt: skip
    queries = {"q": "gold river"}
    assert fused.filtered(where).run(queries).to_dict() == expected.run(queries).to_dict()


def test_two_filters_both_hold() -> None:
    corpus = [
        Document(f"d{n}", "", "gold", {"lang": "en" if n % 2 else "de", "year": 2000 + n})
        for n in range(6)
    ]
    english = Retriever.build(BM25Encoder(), corpus).filtered({"lang": "en"})
    late = english.filtered({"year": {"gte": 2003}})
    assert sorted(late.run({"q": "gold"})["q"].doc_ids) == ["d3", "d5"]
    assert english.filtered({"lang": "en"}).where == {"lang": "en"}
    with pytest.raises(ConfigError, match="'lang' is filtered by 'en' already"):
        english.filtered({"lang": "de"})


def test_a_stage_without_metadata_is_not_filtered() -> None:
    class Own(Stage):
        name = "own"

        def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
            return Run({})

    with pytest.raises(ConfigError, match="own: where filters the documents of retrievers"):
        (Own() % 5).filtered({"lang": "en"})
