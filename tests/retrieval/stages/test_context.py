from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from small_world import WordEncoder

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Document, Hit, Passages, Retriever, pack
from sluice.retrieval.documents.text import word_pieces
from sluice.retrieval.pipelines.hit import Passage
from sluice.retrieval.stages.context import ends_first


class Nothing(Retriever):
    """A stage whose search is not asked."""

    def __init__(self) -> None: ...


def words(text: str) -> int:
    return len(text.split())


def packed(hits: list[Hit], tokens: int, order: Any = "rank", count: Any = words) -> Any:
    return pack(Nothing(), tokens, order, count=count).packed(hits)


def hits(*texts: str, title: str = "") -> list[Hit]:
    return [Hit(f"d{rank}", -rank, text, title) for rank, text in enumerate(texts, 1)]


@given(st.integers(0, 40))
def test_the_best_are_at_both_ends(count: int) -> None:
    order = ends_first(count)
    assert sorted(order) == list(range(count))
    if count > 1:
        assert (order[0], order[-1]) == (0, 1)
    distances = [min(place, count - 1 - place) for place in map(order.index, range(count))]
    assert distances == sorted(distances)


def test_six_documents_in_each_order() -> None:
    found = hits(*"abcdef")
    for order, ranks in (
        ("ends", [1, 3, 5, 6, 4, 2]),
        ("rank", [1, 2, 3, 4, 5, 6]),
        ("reversed", [6, 5, 4, 3, 2, 1]),
    ):
        context = packed(found, 100, order)
        assert [each.rank for each in context.documents] == ranks
        assert context.text == "\n\n".join(f"[{rank}] {'abcdef'[rank - 1]}" for rank in ranks)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab ", max_size=30), max_size=9),
    st.integers(1, 30),
    st.sampled_from(["ends", "rank", "reversed"]),
)
def test_the_budget_is_kept_and_nothing_is_lost(texts: list[str], tokens: int, order: str) -> None:
    found = hits(*texts, title="a title")
    context = packed(found, tokens, order)
    assert words(context.text) == context.tokens <= tokens
    inside = [each.doc_id for each in context.documents]
    assert sorted([*inside, *context.left_out, *context.repeated]) == sorted(
        hit.doc_id for hit in found
    )
    keys = [" ".join(each.text.split()) for each in context.documents if each.whole]
    assert len(set(keys)) == len(keys)
    for each in context.documents:
        assert f"{each.mark} a title\n{each.text}" in context.text


def test_a_smaller_document_enters_where_a_larger_does_not_fit() -> None:
    context = packed(hits("a b c", "d e f g h", "i"), 6)
    assert [each.doc_id for each in context.documents] == ["d1", "d3"]
    assert context.left_out == ("d2",)


def test_only_the_first_is_cut_and_between_words() -> None:
    context = packed(hits("one  two three four", "five six seven"), 3)
    assert context.text == "[1] one  two"
    assert context.documents[0].whole is False
    assert context.left_out == ("d2",)
    assert packed(hits("one two"), 1).documents == ()


def test_equal_and_blank_texts_are_read_once_or_never() -> None:
    context = packed(hits("Gold  river", "gold river", " ", "stone"), 100)
    assert [each.doc_id for each in context.documents] == ["d1", "d4"]
    assert context.repeated == ("d2", "d3")


def test_a_passage_is_read_in_place_of_its_document() -> None:
    passage = Passage(2, 5, 10, "river")
    context = packed([Hit("a", 1.0, "gold river", passage=passage)], 100)
    assert context.text == "[1] river"


def test_citations_are_those_of_documents() -> None:
    context = packed(hits("a", "b", "c"), 100, "ends")
    assert context.cited("So [3], and [1][3]; not [7], [x].") == ["d3", "d1"]


def test_of_a_retriever() -> None:
    documents = [Document(f"d{row}", "", f"gold number {row}") for row in range(8)]
    retriever = Retriever.build("bm25", documents)
    context = pack(retriever % 5, tokens=1_000)("gold")
    assert [each.rank for each in context.documents] == [1, 3, 5, 4, 2]
    ids = [hit.doc_id for hit in retriever.search("gold", 5)]
    assert sorted(each.doc_id for each in context.documents) == sorted(ids)
    assert pack(retriever)("").documents == ()
    long = [Document("a", "", "stone " * 40 + "gold river")]
    parts = Retriever.build(WordEncoder(), long, passages=Passages(length=10, overlap=0))
    (cited,) = pack(parts)("gold river").documents
    assert len(cited.text.split()) < 15


def test_what_it_refuses() -> None:
    stage = Nothing()
    with pytest.raises(ConfigError, match="order: 'end'; known: ends, rank, reversed"):
        pack(stage, order="end")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tokens"):
        pack(stage, 0)
    with pytest.raises(ConfigError, match="depth"):
        pack(stage, depth=0)
    with pytest.raises(ConfigError, match="expected a retriever or a pipeline"):
        pack("bm25")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="count: int; expected a function"):
        pack(stage, count=5)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"count returned 1\.5 for a text"):
        packed(hits("a"), 10, count=lambda text: 1.5)


def test_words_and_marks_are_counted() -> None:
    assert word_pieces("[1] It's gold, no?") == 10
