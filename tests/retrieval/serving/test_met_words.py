"""Words that tokens of a query met, in a text and over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from serving import EXTRA, asker

from sluice.encoders import TokenEncoder
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.serving.work.searching import met_snippet


def match(word: str, text: str, adds: float, *, in_query: bool = True, nth: int = 0) -> TokenMatch:
    place = -1
    for _ in range(nth + 1):
        place = text.index(word, place + 1)
    return TokenMatch("q" + word, word, adds, 0, 0, in_query, ((place, place + len(word)),))


def test_words_are_whole_and_their_parts_add_up() -> None:
    document = Document("d", "The title", "aeroelastic\nmodels, of 🪙 models")
    text = document.full_text
    matches = [
        match("elastic", text, 0.5), match("aero", text, 0.25), match("title", text, 9.0),
        match("models", text, 1.0, nth=1), match("of", text, 7.0, in_query=False),
        match(",", text, 0.125),
    ]  # fmt: skip
    found = met_snippet(document, matches)
    assert found is not None
    assert found.text == "aeroelastic models, of 🪙 models"
    assert [(found.text[w.start : w.end], w.adds, w.tokens) for w in found.words] == [
        ("aeroelastic", 0.75, ["qelastic", "qaero"]), (",", 0.125, ["q,"]),
        ("models", 1.0, ["qmodels"]),
    ]  # fmt: skip
    assert found.words[2].start == len("aeroelastic models, of 🪙 ")
    assert met_snippet(document, [matches[2], matches[4]]) is None  # the title, and a mask
    assert met_snippet(document, [TokenMatch("[0]", "[1]", 1.0, 0, 0)]) is None


def test_a_long_text_is_cut_around_the_words_that_met() -> None:
    text = "other words " * 100 + "gold in the river " + "more words " * 100
    found = met_snippet(
        Document("d", "", text), [match("gold", text, 0.5), match("river", text, 0.5)]
    )
    assert found is not None
    assert [found.text[word.start : word.end] for word in found.words] == ["gold", "river"]
    assert found.text.startswith("... ")
    assert found.text.endswith(" ...")
    assert len(found.text) <= 320 + 8
    chinese = "金河石水" * 3  # no spaces: a token stands for itself
    found = met_snippet(Document("d", "", chinese), [match("河", chinese, 0.5)])
    assert found is not None
    assert [(word.start, word.end) for word in found.words] == [(1, 2)]


def test_text_without_words_is_marked_where_the_token_is() -> None:
    """Base64, say: its end is not looked for either, which took a second for each token."""
    text = "gold " + "x" * 3_000 + "gold" + "x" * 400_000
    inside = [match("gold", text, 0.5, nth=1)] * 50
    start = time.process_time()
    found = met_snippet(Document("d", "", text), inside)
    assert time.process_time() - start < 2
    assert found is not None
    assert [found.text[word.start : word.end] for word in found.words] == ["gold"]
    assert len(found.words[0].tokens) == 50
    longest = "x" * 36 + "gold"
    words = [f"{longest} y", f"x{longest} y"]
    for word, whole in zip(words, (longest, "gold"), strict=True):
        found = met_snippet(Document("d", "", word), [match("gold", word, 0.5)])
        assert found is not None
        assert word[found.words[0].start : found.words[0].end] == whole


def test_explaining_shows_the_words_that_tokens_met(bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import Service

    documents = [
        Document("a", "A title", "gold in the river"), Document("b", "", "stone. water!"),
        Document("c", "", ""),
    ]  # fmt: skip
    encoder = TokenEncoder.from_pretrained(bert, dim=8, query_length=8, document_length=20)
    late = Retriever.build(encoder, documents, path=tmp_path / "late")
    service = Service.open(tmp_path / "late")
    try:
        answer = asker(service)("POST", "/explain", {"query": "gold stone", "k": 3}).json()
    finally:
        service.close()
    by_id = {each["id"]: each for each in answer["documents"]}
    for name, text in (("a", documents[0].text), ("b", documents[1].text)):
        (matches,) = by_id[name]["matches"].values()
        score = sum(each["similarity"] for each in matches)
        assert score == pytest.approx(by_id[name]["score"], abs=1e-4)
        assert [each["query_token"] for each in matches if each["in_query"]] == ["gold", "stone"]
        assert not any(each["in_query"] for each in matches if each["query_token"] == "[MASK]")
        expected = [each for each in late.explain("gold stone", name).matches if each.in_query]
        inside = [each for each in expected if own_part(documents, name, each)]
        met = by_id[name]["met"]
        assert (met is None) == (not inside)
        shown = [] if met is None else met["words"]
        assert met is None or met["text"] == text
        assert sum(word["adds"] for word in shown) == pytest.approx(
            sum(each.similarity for each in inside), abs=1e-4
        )


def own_part(documents: list[Document], name: str, found: TokenMatch) -> bool:
    """Return whether the document's token stands in its text rather than in its title."""
    document = next(each for each in documents if each.id == name)
    title = len(document.full_text) - len(document.text)
    return any(end > title for _, end in found.spans)
