"""MaxSim over stored vectors: the exact scores of any candidates, recall, explanations, YAML."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_functions import straight_max_sim, token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import TokenIndex
from sluice.retrieval import Document, Rerank, Retriever, Run
from sluice.retrieval.pipelines.expression import names_in, parse
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.retrievers.measurements import gather_recalls, gathers
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.stages.rerankers.stored_vectors import StoredMaxSim

WORDS = ["gold", "river", "sluice", "stone", "water", "deep", "dense", "sparse", "rank", "token"]
RNG = np.random.default_rng(7)
CORPUS = [
    Document(f"d{n}", text=" ".join(RNG.choice(WORDS, RNG.integers(1, 7))), metadata={"n": n % 2})
    for n in range(80)
] + [Document("blank")]
TEXTS = {each.id: each.text for each in CORPUS}
QUERIES = {"a": "gold of the river", "b": "dense vector index", "c": "rank"}


class Counting(FunctionEncoder):
    """Remembers the documents that it encodes."""

    def __init__(self) -> None:
        super().__init__(token_vectors, name="words")
        self.documents: list[str] = []

    def encode_documents(self, texts: Any) -> Any:
        self.documents += texts
        return super().encode_documents(texts)

    @property
    def token_names(self) -> "Counting":
        return self

    def token_texts(self, texts: list[str], side: str) -> list[list[str]]:
        return [text.split() for text in texts]

    def token_places(self, texts: list[str], side: str) -> None: ...


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), CORPUS, name="bm25")


@pytest.fixture(scope="module")
def tokens() -> Retriever:
    return Retriever.build(Counting(), CORPUS, index=TokenIndex("float32"), name="tokens")


def expected(query: str, doc: str) -> float:
    asked, text = (token_vectors([each]).text(0) for each in (query, TEXTS[doc]))
    return straight_max_sim(asked, text)


def test_candidates_get_the_scores_of_an_exact_search(bm25: Retriever, tokens: Retriever) -> None:
    tokens.encoder.documents.clear()
    found = (bm25 % 30 >> Rerank(StoredMaxSim(tokens), depth=20)).run(QUERIES)
    first = (bm25 % 30).run(QUERIES)
    exact = tokens.run(QUERIES)
    assert tokens.encoder.documents == []  # no text is encoded again
    for query, text in QUERIES.items():
        head = found[query][:20]
        assert set(head.doc_ids) == set(first[query].doc_ids[:20])
        scores = dict(exact[query])
        for doc, score in head:
            assert score == scores[doc]
            assert score == pytest.approx(expected(text, doc), abs=1e-5)
        assert list(head.scores) == sorted(head.scores, reverse=True)


def test_unknown_documents_are_encoded_and_blank_ones_are_last(tokens: Retriever) -> None:
    few = Retriever.build(Counting(), CORPUS[:20], index=TokenIndex("float32"), name="few")
    few.encoder.documents.clear()
    listed = ("d70", "blank", "d3", "d71", "d5")
    given = Run({"a": [(doc, 9.0 - place) for place, doc in enumerate(listed)]})
    stage = Rerank(StoredMaxSim(few), 5, documents=tokens.store)
    found = stage.run({"a": QUERIES["a"]}, given)["a"]
    assert few.encoder.documents == [TEXTS["d70"], "", TEXTS["d71"]]  # and no stored one
    for doc, score in found:
        assert score == pytest.approx(expected(QUERIES["a"], doc), abs=1e-5)
    assert found.doc_ids[-1] == "blank"
    assert found.scores[-1] == -4.0
    without = Rerank(StoredMaxSim(few), 5).run({"a": QUERIES["a"]}, given)["a"]
    assert list(without.doc_ids[2:]) == ["d70", "blank", "d71"]
    assert without.scores[2] < without.scores[1]
    blank = Rerank(StoredMaxSim(tokens), 5).run({"a": "  "}, given)["a"]
    assert list(blank.doc_ids) == list(given["a"].doc_ids)


def test_passages_score_by_their_best(bm25: Retriever) -> None:
    from sluice.retrieval.retrievers.corpus.passages import Passages

    cut = Retriever.build(Counting(), CORPUS, passages=Passages(length=2, overlap=0), name="cut")
    found = (bm25 % 30 >> Rerank(StoredMaxSim(cut), 30)).run(QUERIES)
    exact = cut.run(QUERIES)
    for query in QUERIES:
        scores = dict(exact[query])
        assert all(score == scores[doc] for doc, score in found[query])


def test_the_recall_of_a_gather_is_that_of_brute_force(bm25: Retriever, tokens: Retriever) -> None:
    stage = bm25 % 12 >> Rerank(StoredMaxSim(tokens), 12)
    assert gathers(stage)
    assert not gathers(bm25 % 12)
    (recall,) = gather_recalls(stage, {**QUERIES, "blank": " "})
    assert (recall.retriever, recall.queries) == ("tokens", 3)
    shares = []
    for text in QUERIES.values():
        best = sorted(TEXTS, key=lambda doc: -expected(text, doc))
        least = expected(text, best[9])
        top = [doc for doc, _ in stage.run({"q": text})["q"][:10]]
        shares.append(sum(expected(text, doc) >= least - 1e-6 for doc in top) / 10)
    assert recall.recall["10"] == pytest.approx(np.mean(shares))
    assert 0 < recall.recall["10"] < 1
    assert f"{100 * np.mean(shares):.1f}% of the best 10" in str(recall)
    (whole,) = gather_recalls(tokens % 1000 >> Rerank(StoredMaxSim(tokens), 1000), QUERIES)
    assert whole.recall == {"10": 1.0, "100": 1.0}
    assert gather_recalls(bm25, QUERIES) == []
    (one,) = gather_recalls(stage, QUERIES, sample=1)
    assert (one.queries, one) == (1, gather_recalls(stage, QUERIES, sample=1)[0])


def test_a_filter_holds_for_the_recall_too(bm25: Retriever, tokens: Retriever) -> None:
    stage = (bm25 % 80 >> Rerank(StoredMaxSim(tokens), 80)).filtered({"n": 1})
    assert all(TEXTS[hit.doc_id] for hit in stage.search("gold"))
    filtered = bm25.filtered({"n": 1}) % 80 >> Rerank(StoredMaxSim(tokens.filtered({"n": 1})), 80)
    (recall,) = gather_recalls(filtered, {"a": "gold river"})
    known = filtered.run({"a": "gold river"})["a"]
    best = tokens.filtered({"n": 1}).run({"a": "gold river"}, k=10)["a"]
    share = len(set(known.doc_ids[:10]) & set(best.doc_ids)) / 10
    assert recall.recall["10"] >= share


def test_an_explanation_shows_which_tokens_met(bm25: Retriever, tokens: Retriever) -> None:
    stage = bm25 % 12 >> Rerank(StoredMaxSim(tokens), 5, name="late")
    trace = explain_pipeline(stage, "gold river", 7)
    for place, path in enumerate(trace.documents):
        met = path.matches.get("late", [])
        assert bool(met) == (place < 5)  # the others were not scored
        if met:
            assert sum(each.similarity for each in met) == pytest.approx(path.score, abs=1e-5)
            assert [each.query_token for each in met] == ["gold", "river"]
            words = TEXTS[path.doc_id].split()
            assert all(words[each.document_place] == each.document_token for each in met)
    late = next(step for step in trace.steps if step.name == "late")
    exact = {doc for doc, _ in tokens.run({"q": "gold river"}, k=7)["q"]}
    assert late.facts["of the exact best"].endswith(" of 7")
    assert int(late.facts["of the exact best"].split()[0]) >= len(
        exact & {path.doc_id for path in trace.documents}
    )
    assert "gold ~ gold 1.000" in str(trace)
    assert trace.as_dict()["documents"][0]["matches"]["late"][0]["query_token"] == "gold"
    alone = explain_pipeline(tokens, "gold river", 2)
    assert set(alone.documents[0].matches) == {"tokens"}


def test_the_expression(bm25: Retriever, tokens: Retriever) -> None:
    names = {"bm25": lambda: bm25, "tokens": lambda: tokens}
    stage = parse("bm25 % 30 >> max_sim(tokens, depth=20)", names)
    written = stage.run(QUERIES)
    assert written == (bm25 % 30 >> Rerank(StoredMaxSim(tokens), 20)).run(QUERIES)
    assert list(names_in("bm25 >> max_sim(tokens, depth=20)", where="p")) == ["bm25", "tokens"]
    for wrong, message in [
        ("bm25 >> max_sim", "max_sim is a function"),
        ("bm25 >> max_sim()", "missing a required"),
        ("bm25 >> max_sim(tokens, deep=3)", "max_sim takes no 'deep'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse(wrong, names)
    with pytest.raises(ConfigError, match="holds one vector a document"):
        parse("bm25 >> max_sim(bm25)", names).run(QUERIES)
    # A reranker may have the name too, as before there was such a function.
    own = {**names, "max_sim": lambda: lambda pairs: [0.0] * len(pairs)}
    assert list(names_in("bm25 >> max_sim(depth=2)", where="p")) == ["bm25", "max_sim"]
    assert parse("bm25 >> max_sim(depth=2)", own).name == "bm25 >> max_sim(depth=2)"


def test_a_scorer_says_what_it_approximates(tokens: Retriever, tmp_path: Path) -> None:
    assert ScorerHooks(StoredMaxSim(tokens)).approximates is tokens
    assert ScorerHooks(len).approximates is None
    assert Rerank(StoredMaxSim(tokens)).inner == (tokens,)
    with pytest.raises(ConfigError, match="expected a retriever of token vectors"):
        StoredMaxSim("tokens")  # type: ignore[arg-type]
