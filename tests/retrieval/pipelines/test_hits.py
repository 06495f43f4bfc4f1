"""A hit has title, metadata and the passage it was found by, whichever stage found it."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.retrieval import Document, Hit, Passage, Passages, Rerank, Retriever, Stage
from sluice.retrieval.cli.terminal.printing import snippet
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.stages.feedback.dense import prf
from sluice.retrieval.stages.rerankers.long_documents import PassageScorer

CUT = Passages(12, 3)
QUERY = "gold water word7"


def long_documents() -> list[Document]:
    """Documents of one to seven passages, each passage with words of its own."""
    return [
        document._replace(
            text="  ".join(
                f"{document.text} gold\nwater{part}" for part in range(1 + 5 * place % 7)
            ),
            metadata={"even": place % 2 == 0},
        )
        for place, document in enumerate(documents())
    ]


class WordCounter:
    """Scores a passage by how often it has the query's first word."""

    def score(self, pairs: Any) -> list[float]:
        return [float(document.split().count(query.split()[0])) for query, document in pairs]


def sound(hits: list[Hit]) -> list[Passage]:
    """Return the hits' passages, which are what their offsets say."""
    by_id = {document.id: document for document in long_documents()}
    passages = []
    for hit in hits:
        document = by_id[hit.doc_id]
        assert hit[2:5] == (document.text, document.title, document.metadata)
        assert hit.full_text == document.full_text
        assert hit.passage is not None
        number, start, end, text = hit.passage
        assert number >= 1
        assert hit.text[start:end] == text
        passages.append(hit.passage)
    return passages


@pytest.mark.parametrize("make", [WordEncoder, BM25Encoder])
@pytest.mark.parametrize("cut", [CUT, Passages(12, 3, repeat_title=False), Passages(500, 0)])
def test_the_passage_is_the_one_that_scores_best(make: Callable[[], Any], cut: Passages) -> None:
    docs = long_documents()
    retriever = Retriever.build(make(), docs, passages=cut)
    hits = retriever.search(QUERY, 12)
    parts = dict(zip((d.id for d in docs), cut.split(retriever.encoder, docs), strict=True))
    for hit, passage in zip(hits, sound(hits), strict=True):
        texts = [part.full_text for part in parts[hit.doc_id]]
        if make is WordEncoder:  # brute force over the document's passages
            scores = (
                WordEncoder().encode_documents(texts) @ WordEncoder().encode_queries([QUERY])[0]
            )
            assert passage.number == int(np.argmax(scores)) + 1
        else:
            assert passage.number == retriever.explain(QUERY, hit.doc_id).passage
        assert texts[passage.number - 1].endswith(passage.text)
    many = {hit.passage.number for hit in hits if hit.passage is not None}
    assert (len(many) > 1) == (cut.length == 12)


def test_of_first_passages_it_is_the_first_and_of_means_none() -> None:
    docs = long_documents()
    first = Retriever.build(WordEncoder(), docs, passages=Passages(12, 3, "first"))
    assert {passage.number for passage in sound(first.search(QUERY, 9))} == {1}
    for cut in (Passages(12, 3, "mean"), None):
        whole = Retriever.build(WordEncoder(), docs, passages=cut)
        hits = whole.search(QUERY, 9)
        assert [hit.passage for hit in hits] == [None] * 9
        assert hits[0].title == next(d.title for d in docs if d.id == hits[0].doc_id)


def test_pipelines_name_the_passage_of_the_part_that_decided() -> None:
    docs = long_documents()
    bm25 = Retriever.build(BM25Encoder(), docs, passages=CUT, name="bm25")
    words = Retriever.build(WordEncoder(), docs, passages=Passages(30, 5), name="words")
    whole = Retriever.build(BM25Encoder(), docs, name="whole")

    def alone(stage: Stage) -> dict[str, tuple[int, Passage | None]]:
        return {hit.doc_id: (rank, hit.passage) for rank, hit in enumerate(stage.search(QUERY, 40))}

    one, two = alone(bm25), alone(words)
    hits = (bm25 | words | whole).search(QUERY, 20)
    sound(hits)
    for hit in hits:  # the first of equals
        ranked = [found[hit.doc_id] for found in (one, two) if hit.doc_id in found]
        assert hit.passage == min(ranked, key=lambda each: each[0])[1]
    for stage in (whole >> Rerank(LengthScorer(), 5), whole | whole):
        assert {hit.passage for hit in stage.search(QUERY, 20)} == {None}
    below = (bm25 >> Rerank(LengthScorer(), 5)).search(QUERY, 8)  # which reads documents whole
    assert {hit.doc_id: hit.passage for hit in below} == {
        hit.doc_id: one[hit.doc_id][1] for hit in below
    }
    filtered = sound((bm25 % 20).filtered({"even": True}).search(QUERY, 5))
    assert filtered == [
        one[hit.doc_id][1] for hit in bm25.filtered({"even": True}).search(QUERY, 5)
    ]
    first = Retriever.build(WordEncoder(), docs, passages=Passages(12, 3, "first"))
    assert {passage.number for passage in sound(prf(first, depth=3).search(QUERY, 5))} == {1}

    with tracing() as spans:  # an outer trace sees the search, and no more than a run leaves in it
        (bm25 | whole).search(QUERY, 3)
    assert [span.stage.name for span in spans[0].walk()] == ["bm25", "whole", "(bm25 | whole)"]


@pytest.mark.parametrize("how", ["max", "sum"])
def test_a_reranker_of_passages_names_the_one_it_scored_best(how: Any) -> None:
    docs = long_documents()
    whole = Retriever.build(BM25Encoder(), docs)
    scorer = PassageScorer(WordCounter(), how=how, length=10, overlap=2)
    hits = (whole >> Rerank(scorer, 6)).search("gold " + QUERY, 10)
    passages = sound(hits[:6])
    for hit, passage in zip(hits[:6], passages, strict=True):
        cut = scorer._cut([hit.full_text])[hit.full_text]
        counts = [hit.full_text[start:end].split().count("gold") for start, end in cut]
        assert passage.number == int(np.argmax(counts)) + 1
    assert [hit.passage for hit in hits[6:]] == [None] * 4  # below its depth


def test_a_hit_is_a_plain_record() -> None:
    hit = Hit("d1", 1.5, "the gold river", "Gold", {"year": 1849}, Passage(2, 4, 8, "gold"))
    doc_id, score, text, *_ = hit
    assert (doc_id, score, text) == ("d1", 1.5, "the gold river")
    shown = "Hit(doc_id='d1', score=1.5, title='Gold', passage=Passage(2, 4:8, 'gold'))"
    assert repr(hit) == shown
    assert pickle.loads(pickle.dumps(hit)) == hit
    assert len({hit, Hit("d1", 1.5, "x")}) == 2
    assert pickle.loads(pickle.dumps(Hit("d1", 1.5, "x"))) == Hit("d1", 1.5, "x")
    assert json.loads(json.dumps(hit.as_dict()))["passage"]["start"] == 4


def test_the_command_line_shows_title_passage_and_the_words_of_the_query(
    sluice: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    filler = "stone " * 100
    docs = [
        Document("long", "A title", f"{filler} the river of gold {filler}", {"year": 1849}),
        Document("short", "", "gold"),
    ]
    Retriever.build(BM25Encoder(), docs, path=tmp_path / "whole")
    Retriever.build(BM25Encoder(), docs, path=tmp_path / "cut", passages=Passages(50, 10))
    _, out, _ = sluice("search", tmp_path / "whole", "golden river gold")
    lines = out.splitlines()
    assert lines[0].endswith("long  A title")
    assert lines[1].startswith("     ... ")
    assert "the river of gold stone" in lines[1]
    assert len(lines[1]) < 260
    _, out, _ = sluice("search", tmp_path / "cut", "river")
    assert "passage 3, characters " in out
    assert "river of gold" in out
    _, out, _ = sluice("search", tmp_path / "cut", "river gold", "--json")
    hit = json.loads(out.splitlines()[0])
    assert (hit["doc_id"], hit["title"], hit["metadata"]) == ("long", "A title", {"year": 1849})
    passage = hit["passage"]
    assert hit["text"][passage["start"] : passage["end"]] == passage["text"]
    assert sluice("search", tmp_path / "cut", "nothing of it")[1].strip() == "no hits"


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("short", "gold", "short"),
        ("stone " * 20 + "gold\n rivers", "river", "... stone stone gold rivers"),
        ("gold a " + "stone " * 20, "river", "gold a stone stone stone ..."),
        ("石" * 30 + "金" + "石" * 30, "金", "..."),
        ("x" * 100, "gold", "x" * 24 + " ..."),
        ("", "gold", ""),
    ],
)
def test_a_snippet_is_the_part_with_the_words_of_the_query(
    text: str, query: str, expected: str
) -> None:
    shown = snippet(text, query, 24)
    assert len(shown) <= 24 + 8
    assert expected in shown
    if "金" in query:
        assert "金" in shown
