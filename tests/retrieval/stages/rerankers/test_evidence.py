"""Evidence: parts of documents scored one by one, and joined by soft AND and OR."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Document, Rerank, Retriever
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.evidence import CERTAIN, Evidence, all_of, some_of
from sluice.retrieval.stages.rerankers.score_cache import Cached, ScoreCache

CORPUS = [
    Document("gold", "About gold", "Gold is found here. The river is cold.", {"tags": ["a", "bb"]}),
    Document("river", "About rivers", "The river is cold. Nothing else.", {"place": "the sea"}),
    Document("bare", "", "A stone."),
    Document("empty", "", ""),
]


class Counts:
    """The log-odds of a part: how many letters of the query it has, less 6; counts its calls."""

    fingerprint = "counts"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.asked += pairs
        return [letters(*pair) for pair in pairs]


def letters(query: str, text: str) -> float:
    return sum(letter in query for letter in text.lower()) - 6.0


class Store:
    def documents_of(self, ids: Sequence[str]) -> list[Document]:
        by_id = {document.id: document for document in CORPUS}
        return [by_id[each] for each in ids]

    def texts(self, ids: Sequence[str]) -> list[str]:
        return [document.full_text for document in self.documents_of(ids)]


def scores(evidence: Evidence, query: str = "gold river") -> dict[str, float]:
    ids = [document.id for document in CORPUS]
    heads = {"q": Ranking(ids, np.zeros(len(ids), np.float32))}
    found = evidence.score_lists({"q": query}, heads, Store())["q"]
    return dict(zip(ids, found.tolist(), strict=True))


def chance(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def test_the_formula() -> None:
    """1 - (1 - p)(1 - p') ..., and its products over fields, in plain float64."""
    evidence = Evidence(Counts(), temperature=2.0, threshold=1.0, required=["title", "text"])
    query = "gold river"

    def some(texts: list[str]) -> float:
        parts = [chance((letters(query, text) - 1) / 2) for text in texts]
        return 1 - math.prod(1 - p for p in parts)

    expected = some(["About gold"]) * some(["Gold is found here.", "The river is cold."])
    found = scores(evidence)
    assert found["gold"] == pytest.approx(2 * odds(expected) + 1, rel=1e-6)
    assert found["bare"] == found["empty"] == -2 * CERTAIN + 1  # it has no title
    plain = scores(Evidence(Counts(), by="fields"))
    parts = ["About gold", "Gold is found here. The river is cold.", "a", "bb"]
    expected = 1 - math.prod(1 - chance(letters(query, text)) for text in parts)
    assert plain["gold"] == pytest.approx(odds(expected), rel=1e-6)


def test_a_single_part_scores_as_the_scorer_says() -> None:
    expected = letters("gold river", "A stone.")
    for settings in ({}, {"sharpness": 7.0}, {"temperature": 0.1, "threshold": 3.0}):
        assert scores(Evidence(Counts(), **settings))["bare"] == pytest.approx(expected)  # type: ignore[arg-type]
    required = scores(Evidence(Counts(), required=["text"], sharpness=3.0))
    assert required["bare"] == pytest.approx(expected)
    for value in (-700.0, -40.0, -1.5, 0.0, 2.0, 36.0, 300.0):
        assert some_of([value], 1.0) == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert all_of([value], 4.0) == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_certain_values_follow_boolean_logic() -> None:
    yes, no = math.inf, -math.inf
    for size in (0, 1, 2, 3):
        for values in itertools.product([yes, no], repeat=size):
            for sharpness in (1.0, 5.0):
                assert some_of(values, sharpness) == (yes if yes in values else no)
                assert all_of(values, sharpness) == (no if no in values else yes)
    assert some_of([no, 1.25], 1.0) == pytest.approx(1.25)
    assert all_of([yes, 1.25], 1.0) == pytest.approx(1.25)


def test_the_best_part_alone_is_the_limit() -> None:
    """MaxP, and for required fields the least of their best parts."""
    drawn = np.random.default_rng(3)
    for _ in range(20):
        values = drawn.normal(0, 3, 5).tolist()
        joined = [some_of(values, sharpness) for sharpness in (1.0, 2.0, 8.0, 64.0, 1e6)]
        assert joined == sorted(joined, reverse=True)
        assert joined[-1] == pytest.approx(max(values), abs=1e-4)
        assert all_of(values, 1e6) == pytest.approx(min(values), abs=1e-4)
        plain = odds(1 - math.prod(1 - chance(v) for v in values))
        assert joined[0] == pytest.approx(plain, rel=1e-9)
        assert all_of(values, 1.0) == pytest.approx(odds(math.prod(map(chance, values))), rel=1e-9)
    found = scores(Evidence(Counts(), sharpness=1e6))
    texts = ["About gold", "Gold is found here.", "The river is cold.", "a", "bb"]
    assert found["gold"] == pytest.approx(max(letters("gold river", t) for t in texts), abs=1e-4)


def test_parts_are_scored_once_and_kept(tmp_path: Path) -> None:
    scorer = Counts()
    scores(Evidence(scorer))
    assert len(scorer.asked) == len(set(scorer.asked)) == 9  # a sentence is in two documents
    cached = Cached(Counts(), ScoreCache(tmp_path / "s.sqlite"))
    evidence = Evidence(cached)
    first = scores(evidence)
    assert (cached.hits, cached.misses) == (0, 9)
    assert scores(evidence) == first
    assert (cached.hits, cached.misses) == (9, 9)
    assert scores(Evidence(cached, sharpness=3.0)) != first
    assert cached.misses == 9  # settings of the joining score nothing anew


def test_one_value_can_be_overridden(tmp_path: Path) -> None:
    plain = scores(Evidence(Counts()))
    edit = {("gold river", "The river is cold."): 0.0}
    scorer = Counts()
    edited = scores(Evidence(scorer, overrides=edit))
    assert ("gold river", "The river is cold.") not in scorer.asked
    assert edited["gold"] < plain["gold"]
    assert edited["river"] < plain["river"]
    assert edited["bare"] == plain["bare"]
    assert scores(Evidence(Counts(), overrides=edit), "gold")["gold"] == pytest.approx(
        scores(Evidence(Counts()), "gold")["gold"]
    )
    file = tmp_path / "edits.jsonl"
    line = {"query": "gold river", "part": "The river is cold.", "probability": 0}
    file.write_text(json.dumps(line) + "\n")
    assert scores(Evidence(Counts(), overrides=str(file))) == edited
    sure = Evidence(Counts(), overrides={("gold river", "A stone."): 1.0})
    assert scores(sure)["bare"] == CERTAIN
    marks = {
        each.fingerprint for each in (sure, Evidence(Counts()), Evidence(Counts(), by="fields"))
    }
    assert len(marks) == 3
    for text, message in (
        ("{", "edits.jsonl:1: not JSON"),
        ('{"query": "a"}', r"edits\.jsonl:1: .*; expected \{\"query\""),
        ('{"query": "a", "part": "b", "probability": 2}', "probability 2 of .*; expected 0 to 1"),
        ('{"query": "a", "part": "b"}', "probability None"),
        (2 * '{"query": "a", "part": "b", "probability": 0}\n', "2: this query and part came bef"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            Evidence(Counts(), overrides=str(file))


def test_a_field_that_no_document_has_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    evidence = Evidence(Counts(), required=["titel", "text"])
    with caplog.at_level(logging.WARNING):
        assert set(scores(evidence).values()) == {-CERTAIN}
        scores(evidence)
    assert [r.getMessage() for r in caplog.records] == [
        "evidence: required 'titel': none of 4 candidates has this field, so that none is "
        "relevant; is it spelled as in the corpus?"
    ]
    assert scores(Evidence(Counts(), required=["tags"], by="fields"))["gold"] > -CERTAIN


def test_behind_a_retriever() -> None:
    bm25 = Retriever.build(BM25Encoder(), CORPUS)
    stage = bm25 >> Rerank(Evidence(Counts()), depth=10)
    found = stage.search("gold river", 10)
    expected = scores(Evidence(Counts()))
    assert [hit.score for hit in found] == pytest.approx([expected[h.doc_id] for h in found])
    assert found[0].doc_id == "gold"


def test_a_field_that_no_document_of_the_retriever_has_is_refused_before_a_search() -> None:
    numbered = [*CORPUS, Document("five", "", "Five.", {"year": 5})]
    bm25 = Retriever.build(BM25Encoder(), numbered)
    for name, says in (
        ("titel", "known: title, text, place, tags; did you mean 'title'"),
        ("year", "no document has such a field of text"),
    ):
        evidence = Evidence(Counts(), required=[name, "text"])
        for stage in (bm25, bm25 % 3, bm25 | bm25, bm25 >> Rerank(Counts())):
            with pytest.raises(ConfigError, match=says):
                stage >> Rerank(evidence)
        with pytest.raises(ConfigError, match=says):
            parse(f"bm25 >> evidence(c, required=['{name}'])", {"bm25": lambda: bm25, "c": Counts})
    found = bm25 >> Rerank(Evidence(Counts(), required=["tags", "place", "text", "title"]))
    assert found.search("gold river", 10)
    empty = Retriever.build(BM25Encoder(), [Document("x", "", "x")])
    empty.delete(["x"])
    assert (empty >> Rerank(Evidence(Counts(), required=["tags"]))).search("gold", 3) == []


def test_explain_shows_the_parts_of_a_hit() -> None:
    bm25 = Retriever.build(BM25Encoder(), CORPUS)
    edit = {("gold river", "The river is cold."): 0.25}
    evidence = Evidence(Counts(), temperature=2.0, threshold=1.0, overrides=edit)
    found = explain_pipeline(bm25 >> Rerank(evidence, depth=1), "gold river", 2)
    first, second = found.documents
    ((stage, parts),) = first.parts.items()
    assert stage == "Evidence(depth=1)"
    assert [(part.field, part.text) for part in parts] == [
        ("title", "About gold"), ("text", "Gold is found here."), ("text", "The river is cold."),
        ("tags", "a"), ("tags", "bb"),
    ]  # fmt: skip
    expected = [chance((letters("gold river", part.text) - 1) / 2) for part in parts]
    expected[2] = 0.25
    assert [part.probability for part in parts] == pytest.approx(expected)
    joined = 1 - math.prod(1 - part.probability for part in parts)
    assert first.score == pytest.approx(2 * odds(joined) + 1, rel=1e-5)
    assert second.parts == {}  # below the depth
    assert found.as_dict()["documents"][0]["parts"][stage][2]["probability"] == pytest.approx(0.25)
    assert "text 'The river is cold.' 0.250" in str(found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "sentence"}, "by 'sentence'; known: sentences, fields; did you mean 'sentences'"),
        ({"required": "title"}, "required 'title'; expected a list of fields' names"),
        ({"sharpness": 0.5}, "sharpness is 0.5"),
        ({"temperature": 0}, "temperature 0; expected a number above 0"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"overrides": "nowhere.jsonl"}, "overrides: no file nowhere.jsonl"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Evidence(Counts(), **settings)  # type: ignore[arg-type]


def test_scorers_and_stages_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evidence: .* scores lists; expected a scorer of pairs"):
        Evidence(Evidence(Counts()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs the documents' texts"):
        Evidence(Counts()).score_lists({"q": "a"}, {}, None)

    class Broken:
        fingerprint = "broken"

        def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            return [math.nan] * len(pairs)

    with pytest.raises(DataError, match=r"Broken returned .* one that is not finite"):
        scores(Evidence(Broken()))
