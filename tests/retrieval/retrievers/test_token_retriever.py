"""Late interaction as a retriever: MaxSim against a straight loop, changes, filters, parts."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_functions import DIM, straight_max_sim, token_vectors, word_vector

from sluice.encoders import FunctionEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import FlatIndex, Index, TokenIndex
from sluice.indexing.tokens.gather import state as gathering
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.measurements import gather_recalls
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.retrievers.retriever import Retriever

WORDS = ["gold", "river", "sluice", "stone", "water", "deep", "dense", "sparse", "rank", "token"]
RNG = np.random.default_rng(5)
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(1, 9))) for _ in range(60)]
CORPUS = [
    Document(f"d{n}", text=text, metadata={"part": n % 3}) for n, text in enumerate([*TEXTS, ""])
]
QUERIES = {"q1": "gold in the river", "q2": "dense vector index", "q3": "rank", "q4": " "}


def encoder() -> FunctionEncoder:
    return FunctionEncoder(token_vectors, name="words")


def build(corpus: Any, index: Index | None = None, **options: Any) -> Retriever:
    """Build with vectors as they are; by default they are stored with 8 bits a dimension."""
    index = TokenIndex("float32") if index is None else index
    return Retriever.build(encoder(), corpus, index=index, **options)


def expected(query: str, documents: list[Document], k: int) -> list[tuple[str, float]]:
    """Return the best documents by a straight loop; those without a word are never found."""
    asked = token_vectors([query]).text(0)
    scored = [
        (each.id, straight_max_sim(asked, token_vectors([each.full_text]).text(0)))
        for each in documents
        if each.full_text
    ]
    return sorted(scored, key=lambda each: -each[1])[:k]


def agrees(retriever: Retriever, documents: list[Document], k: int = 10) -> None:
    for query in ("gold in the river", "dense vector index", "rank"):
        found = retriever.search(query, k)
        best = expected(query, documents, len(documents))
        assert len(found) == min(k, len(best))
        np.testing.assert_allclose(
            [hit.score for hit in found], [score for _, score in best[: len(found)]], atol=1e-5
        )
        scores = dict(best)
        assert all(abs(scores[hit.doc_id] - hit.score) < 1e-5 for hit in found)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    path = tmp_path_factory.mktemp("r") / "tokens"
    return build(CORPUS, path=path)


def test_a_function_of_token_vectors_is_searched_by_max_sim(retriever: Retriever) -> None:
    agrees(retriever, CORPUS)
    agrees(retriever, CORPUS, 1000)
    run = retriever.run(QUERIES, k=5)
    assert [len(run[query]) for query in QUERIES] == [5, 5, 5, 0]
    assert retriever.least_score is None  # how long a query may be is not known
    agrees(Retriever.open(retriever.path, encoder=encoder()), CORPUS)


def test_the_usual_index_is_one_of_token_vectors() -> None:
    usual = Retriever.build(encoder(), CORPUS)
    assert isinstance(usual.index, TokenIndex)
    assert usual.name == "function"
    for query in QUERIES.values():
        best = dict(expected(query, CORPUS, 1000))
        for hit in usual.search(query, 20) if query.strip() else ():
            assert hit.score == pytest.approx(best[hit.doc_id], abs=0.05)


def test_a_query_may_be_vectors(retriever: Retriever) -> None:
    by_text = retriever.search("gold river", 7)
    vectors = np.array([word_vector("gold"), word_vector("river")])
    for given in (vectors, vectors.tolist(), token_vectors(["gold river"])):
        assert retriever.search(vector=given, k=7) == by_text
    for wrong in (vectors[0], np.zeros((0, DIM)), np.zeros((1, 2, DIM))):
        with pytest.raises(DataError, match=r"expected \[tokens, dim\]"):
            retriever.search(vector=wrong)
    with pytest.raises(DataError, match="2 texts; search one at a time"):
        retriever.search(vector=token_vectors(["gold", "river"]))


def test_filters_search_the_documents_that_match(retriever: Retriever) -> None:
    some = [each for each in CORPUS if each.metadata["part"] == 1]
    for query in ("gold in the river", "rank"):
        found = retriever.search(query, 30, where={"part": 1})
        best = expected(query, some, 30)
        np.testing.assert_allclose([hit.score for hit in found], [s for _, s in best], atol=1e-5)
        assert {hit.doc_id for hit in found} == {doc for doc, _ in best}
    few = retriever.filtered({"part": 1}).search("rank", 30)
    assert few == found


def test_documents_are_added_replaced_and_deleted(tmp_path: Path) -> None:
    changed = build(CORPUS[:30], path=tmp_path / "r")
    assert changed.add(CORPUS[30:45]) == 15
    agrees(changed, CORPUS[:45])
    replaced = [Document("d3", text="gold gold rank"), Document("new", text="river water")]
    assert changed.update(replaced)[:2] == (1, 1)
    now = [*(each for each in CORPUS[:45] if each.id != "d3"), *replaced]
    agrees(changed, now)
    changed.delete(["d0", "d44", "new"])
    now = [each for each in now if each.id not in ("d0", "d44", "new")]
    agrees(changed, now, 100)
    before = changed.run(QUERIES, k=50)
    changed.compact()
    assert changed.run(QUERIES, k=50) == before
    agrees(Retriever.open(tmp_path / "r", encoder=encoder()), now, 100)
    assert len(changed) == len(now)


def test_given_vectors_are_indexed(tmp_path: Path) -> None:
    vectors = token_vectors([each.full_text for each in CORPUS])
    for given in (vectors, [vectors[:20], vectors[20:]]):
        built = build(CORPUS, vectors=given)
        agrees(built, CORPUS)
    with pytest.raises(DataError, match="expected"):
        build(CORPUS, FlatIndex(), vectors=vectors)


def test_one_document_and_none(tmp_path: Path) -> None:
    one = build(CORPUS[:1], path=tmp_path / "one")
    agrees(one, CORPUS[:1])
    none = build([], path=tmp_path / "none")
    assert none.search("gold") == []
    none.add(CORPUS)
    agrees(none, CORPUS)


@pytest.mark.parametrize("store", ["float32", "float16", "int8"])
def test_a_small_shard_and_a_cache_change_nothing(tmp_path: Path, store: str) -> None:
    encoding = Encoding(shard=7, cache=tmp_path / "cache", store=store)  # type: ignore[arg-type]
    built = build(CORPUS, encoding=encoding)
    again = build(CORPUS, encoding=encoding)
    assert built.run(QUERIES, k=20) == again.run(QUERIES, k=20)
    if store == "float32":
        agrees(built, CORPUS)
    best = dict(expected("rank", CORPUS, 100))
    assert all(abs(hit.score - best[hit.doc_id]) < 0.02 for hit in built.search("rank", 20))


def test_copies_and_pickles(retriever: Retriever, tmp_path: Path) -> None:
    run = retriever.run(QUERIES, k=20)
    for other in (copy.copy(retriever), copy.deepcopy(retriever),
                  pickle.loads(pickle.dumps(retriever))):  # fmt: skip
        assert other.run(QUERIES, k=20) == run
    retriever.save(tmp_path / "copy")
    assert Retriever.open(tmp_path / "copy", encoder=encoder()).run(QUERIES, k=20) == run


@pytest.mark.parametrize("aggregate", ["max", "first"])
def test_long_documents_are_found_by_their_passages(aggregate: str) -> None:
    passages = Passages(length=3, overlap=1, aggregate=aggregate)  # type: ignore[arg-type]
    built = build(CORPUS, passages=passages)
    for query in ("gold in the river", "rank"):
        asked = token_vectors([query]).text(0)
        best = {}
        for each in CORPUS:
            parts = [part.full_text for part in passages.parts(encoder(), [each])]
            parts = parts[:1] if aggregate == "first" else parts
            scores = [straight_max_sim(asked, token_vectors([p]).text(0)) for p in parts if p]
            if scores:
                best[each.id] = max(scores)
        found = built.search(query, 100)
        assert {hit.doc_id for hit in found} == set(best)
        for hit in found:
            assert hit.score == pytest.approx(best[hit.doc_id], abs=1e-5)
        explanation = built.explain(query, found[0].doc_id)
        parts_sum = sum(match.similarity for match in explanation.matches)
        assert parts_sum == pytest.approx(found[0].score, abs=1e-5)


def test_a_mean_of_passages_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"aggregate.*'max'"):
        build(CORPUS, passages=Passages(length=3, overlap=1, aggregate="mean"))


def test_the_parts_of_a_score_are_the_tokens_that_met(retriever: Retriever) -> None:
    for hit in retriever.search("gold in the river", 5):
        explanation = retriever.explain("gold in the river", hit.doc_id)
        assert explanation.score == hit.score
        assert not explanation.terms
        assert [each.query_place for each in explanation.matches] == [0, 1, 2, 3]
        document = token_vectors([hit.text]).text(0)
        for place, match in enumerate(explanation.matches):
            asked = token_vectors(["gold in the river"]).text(0)[place]
            assert match.similarity == pytest.approx(max(float(asked @ d) for d in document))
            assert match.document_token == f"[{match.document_place}]"
        total = sum(match.similarity for match in explanation.matches)
        assert total == pytest.approx(hit.score, abs=1e-5)
    assert retriever.explain("gold", "d60").matches == ()  # it has no text
    with pytest.raises(DataError, match="no document 'nobody'"):
        retriever.explain("gold", "nobody")
    facts = explanation.as_dict()
    assert facts["matches"][0]["query_token"] == "[0]"


class Named(FunctionEncoder):
    """Names its tokens, as a transformer's tokenizer does."""

    @property
    def token_names(self) -> "Named":
        return self

    def token_texts(self, texts: list[str], side: str) -> list[list[str]]:
        return [text.split() for text in texts]

    def token_places(self, texts: list[str], side: str) -> Any:
        return None


class Placed(Named):
    """Says where its tokens stand, and fills queries up, as ColBERT does."""

    def token_texts(self, texts: list[str], side: str) -> list[list[str]]:
        return [[*text.split(), *["[MASK]"] * (side == "query")] for text in texts]

    def token_places(self, texts: list[str], side: str) -> list[list[list[tuple[int, int]]]]:
        spans = [[[m.span()] for m in re.finditer(r"\S+", text)] for text in texts]
        return [[*of_text, *[[]] * (side == "query")] for of_text in spans]

    def encode_queries(self, texts: list[str]) -> TokenVectors:
        return super().encode_queries([f"{text} stone" for text in texts])


def test_matches_say_where_their_tokens_stand() -> None:
    documents = [Document("0", "A title", "gold <b> river"), Document("1", text="sluice")]
    built = Retriever.build(Placed(token_vectors, name="p"), documents)
    river, gold, mask = built.explain("river gold", "0").matches
    text = documents[0].full_text
    assert [text[slice(*match.spans[0])] for match in (river, gold)] == ["river", "gold"]
    assert (river.in_query, gold.in_query, mask.in_query) == (True, True, False)
    (unplaced, _) = (
        Retriever.build(Named(token_vectors, name="n"), documents)
        .explain("river gold", "0")
        .matches
    )
    assert (unplaced.in_query, unplaced.spans) == (True, ())


def test_tokens_are_named_where_the_encoder_names_them() -> None:
    built = Retriever.build(Named(token_vectors, name="n"), ["gold <b> river", "sluice"])
    (first, second) = built.explain("river gold", "0").matches
    assert first[:2] == ("river", "river")
    assert second[:2] == ("gold", "gold")
    assert (first.document_place, second.document_place) == (2, 0)


def test_an_index_of_other_vectors_is_refused(retriever: Retriever) -> None:
    with pytest.raises(DataError, match="documents: TokenVectors"):
        build(CORPUS, FlatIndex())
    with pytest.raises(DataError, match="documents: ndarray"):
        Retriever.build(lambda texts: np.ones((len(texts), 3)), CORPUS, index=TokenIndex())
    assert isinstance(retriever.index.documents(np.array([0])), TokenVectors)


@pytest.mark.parametrize("asked", [None, {"a": "gold river", "b": "rank the token", "c": "deep"}])
def test_a_gather_says_what_it_finds(asked: dict[str, str] | None, tmp_path: Path) -> None:
    index = TokenIndex("float32", mode="gather", candidates=15, probes=4)
    built = build(CORPUS, index, queries=asked, path=tmp_path / "r")
    note = built.index.recall_note  # type: ignore[attr-defined]
    assert note.source == ("documents" if asked is None else "queries")
    assert built.explain("gold", "d1").recall == f"gather: {note}"
    (noted,) = gather_recalls(built % 5, QUERIES)
    assert noted.recall == {"10": note.at_10, "100": note.at_100}
    assert str(noted) == f"{built.name}: {note}"
    exact = build(CORPUS).run(QUERIES, k=20)
    assert built.run(QUERIES, k=20, params={"mode": "exact"}) == exact
    trace = explain_pipeline(built, "gold river", 5)
    assert trace.steps[0].facts["recall"] == f"gather: {note}"
    built.add([Document("new", text="gold")])
    assert "1 added since" in built.explain("gold", "d1").recall
    assert build(CORPUS).explain("gold", "d1").recall == ""


def test_an_index_that_outgrew_its_exact_search_says_so_until_it_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "EXACT_BELOW", 40)
    built = build(CORPUS[:30], TokenIndex("float32", mode="auto"), path=tmp_path / "r")
    assert built.explain("gold", "d1").recall == ""
    built.add(CORPUS[30:])
    advice = built.index.advice  # type: ignore[attr-defined]
    assert "61 documents exactly" in advice
    assert built.explain("gold", "d1").recall == advice
    assert list(map(str, gather_recalls(built % 5, QUERIES))) == [f"{built.name}: {advice}"]
    before = built.run(QUERIES, k=20)
    built.compact()
    assert built.index.recall_note is not None  # type: ignore[attr-defined]
    assert "mode: auto" not in built.explain("gold", "d1").recall
    assert built.run(QUERIES, k=20, params={"mode": "exact"}) == before
