"""RM3 against a straight-line one over the words themselves; its ends and its edges."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder, SpladeEncoder
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.variants import Variant
from sluice.indexing import InvertedIndex
from sluice.retrieval import Document, Retriever, Run
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.runs.queries import SelfExcluding
from sluice.retrieval.stages.feedback.stage import rm3

RNG = np.random.default_rng(11)
WORDS = [f"{first}{second}" for first in ("bor", "dak", "mul", "tiv") for second in "aeiou"]
# Zipf-like words, so that lengths, counts and document frequencies all differ.
TEXTS = [
    " ".join(RNG.choice(WORDS, size=RNG.integers(5, 40), p=np.arange(20, 0, -1) / 210))
    for _ in range(60)
]
MADE = [Document(f"t{number:02d}", "", text) for number, text in enumerate(TEXTS)]
QUERIES = {"a": "bora dako", "b": "muli tivu tivu", "c": "mula bore daku tive"}


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), MADE, name="bm25")


def straight_line_rm3(
    query: str,
    first: list[tuple[str, float]],
    terms: int,
    original: float,
    share: float,
    rarity: Callable[[int], float] = lambda df: math.log(1 + (60 - df + 0.5) / (df + 0.5)),
) -> dict[str, float]:
    """RM3 as Anserini defines it, over words: each word's weight before idf."""
    frequency = Counter(word for text in TEXTS for word in set(text.split()))
    idf = {w: rarity(df) for w, df in frequency.items()}
    kept = {word for word, df in frequency.items() if df / 60 <= share}

    def pruned(weights: Mapping[str, float]) -> dict[str, float]:
        order = sorted(weights, key=lambda word: (-round(weights[word], 12), -idf[word]))
        return {word: weights[word] for word in order[:terms]}

    model: dict[str, float] = defaultdict(float)
    for doc_id, score in first:
        counts = pruned(Counter(w for w in TEXTS[int(doc_id[1:])].split() if w in kept))
        for word, count in counts.items():
            model[word] += score * count / sum(counts.values())
    model = pruned(model)
    total = sum(model.values())
    asked = Counter(query.split())
    mixed: dict[str, float] = defaultdict(float)
    for word, count in asked.items():
        mixed[word] += original * count / sum(asked.values())
    for word, weight in model.items():
        mixed[word] += (1 - original) * weight / total
    return {word: weight * idf[word] for word, weight in mixed.items()}


@pytest.mark.parametrize(
    ("count", "terms", "original", "share"),
    [(10, 10, 0.5, 1.0), (10, 10, 0.5, 0.6), (3, 4, 0.2, 1.0), (99, 99, 0.9, 1.0), (1, 1, 0.0, 1)],
)
def test_bm25_is_the_straight_line_rm3(
    bm25: Retriever, count: int, terms: int, original: float, share: float
) -> None:
    stage = rm3(
        bm25, documents=count, terms=terms, original_weight=original, max_document_share=share
    )
    found, first = stage.run(QUERIES, None, 60), bm25.run(QUERIES, None, count)
    vocabulary = bm25.encoder.vocabulary
    assert set(vocabulary) == set(WORDS)
    impacts = bm25.index.documents(np.arange(60)).toarray().astype(np.float64)
    for query, text in QUERIES.items():
        weights = np.zeros(len(vocabulary))
        for word, weight in straight_line_rm3(
            text, list(first[query]), terms, original, share
        ).items():
            weights[vocabulary[word]] = weight * len(text.split())
        expected = impacts @ weights
        scores = dict(found[query])
        assert len(scores) == np.count_nonzero(expected)
        for row, value in enumerate(expected):
            assert scores.get(f"t{row:02d}", 0.0) == pytest.approx(value, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("variant", "rarity"),
    [("plus", lambda df: math.log(61 / df)), ("l", lambda df: math.log(61 / (df + 0.5)))],
)
def test_variants_have_rm3_over_their_counts(
    variant: Variant, rarity: Callable[[int], float]
) -> None:
    retriever = Retriever.build(BM25Encoder(variant=variant), MADE)
    found = rm3(retriever, max_document_share=1.0).run(QUERIES, None, 60)
    first, vocabulary = retriever.run(QUERIES, None, 10), retriever.encoder.vocabulary
    impacts = retriever.index.documents(np.arange(60)).toarray().astype(np.float64)
    for query, text in QUERIES.items():
        mixed = straight_line_rm3(text, list(first[query]), 10, 0.5, 1.0, rarity)
        expected = sum(
            impacts[:, vocabulary[word]] * weight * len(text.split())
            for word, weight in mixed.items()
        )
        for doc_id, score in found[query]:
            assert score == pytest.approx(expected[int(doc_id[1:])], rel=5e-5)
        assert len(found[query]) == np.count_nonzero(expected)


def test_identities(bm25: Retriever) -> None:
    plain = dict(bm25.run(QUERIES))
    dense = Retriever.build(WordEncoder(), MADE)
    for stage in (rm3(bm25, documents=0), rm3(bm25, original_weight=1.0)):
        assert dict(stage.run(QUERIES)) == plain
        assert dict((dense >> stage).run(QUERIES)) == plain
    assert dict(rm3(bm25, max_document_share=0.0).run(QUERIES)) == plain  # no term is left


def test_its_own_list_is_the_retrievers_first(bm25: Retriever) -> None:
    stage = rm3(bm25, documents=4, max_document_share=1.0)
    assert dict(stage.run(QUERIES)) == dict((bm25 % 4 >> stage).run(QUERIES))
    fewer = (bm25 % 2 >> stage).run(QUERIES)
    assert dict(fewer) == dict(rm3(bm25, documents=2, max_document_share=1.0).run(QUERIES))


def test_scores_that_are_no_weights_count_alike(bm25: Retriever) -> None:
    alike = rm3(bm25, by="equal", max_document_share=1.0)
    scored = rm3(bm25, max_document_share=1.0)
    logits = Run({query: [("t01", 3.0), ("t02", -1.0)] for query in QUERIES})
    positive = Run({query: [("t01", 7.0), ("t02", 2.0)] for query in QUERIES})
    assert dict(scored.run(QUERIES, logits)) == dict(alike.run(QUERIES, positive))
    assert dict(scored.run(QUERIES, positive)) != dict(alike.run(QUERIES, positive))
    fused = Run({query: [("t01", 0.07), ("t02", 0.02)] for query in QUERIES})
    for query, ranking in scored.run(QUERIES, fused).items():
        others = scored.run(QUERIES, positive)[query]
        np.testing.assert_allclose(ranking.scores, others.scores, rtol=1e-5)


def test_a_query_without_known_terms_is_what_was_found(bm25: Retriever) -> None:
    found = rm3(bm25, max_document_share=1.0).run({"q": "zzz"}, Run({"q": [("t05", 1.0)]}), 60)
    top = [(doc, score) for doc, score in found["q"] if score == found["q"].scores[0]]
    assert len(found["q"]) > 0
    only = rm3(bm25, original_weight=0.0, max_document_share=1.0)
    heaviest = only.run({"q": "zzz"}, Run({"q": [("t05", 1.0)]}), 60)["q"]
    assert heaviest.doc_ids[0] in dict(top)
    assert len(rm3(bm25).run({"q": "zzz"})["q"]) == 0


def test_lists_blank_queries_and_strangers(bm25: Retriever) -> None:
    stage, plain = rm3(bm25, max_document_share=1.0), bm25.run(QUERIES)
    found = stage.run({**QUERIES, "e": " "}, Run({"a": [("nowhere", 1.0)], "b": []}))
    assert {query: found[query] for query in QUERIES} == dict(plain)
    assert len(found["e"]) == 0
    assert dict(stage.run({})) == {}
    text = TEXTS[7]
    excluded = stage.run(SelfExcluding({"t07": text}), None, 59)["t07"]
    assert "t07" not in excluded.doc_ids
    others = [hit for hit in bm25.run({"t07": text}, None, 11)["t07"] if hit[0] != "t07"]
    assert excluded == stage.run(SelfExcluding({"t07": text}), Run({"t07": others}), 59)["t07"]


def test_documents_come_and_go(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(), MADE, path=tmp_path / "r")
    retriever.add([Document("new", "", "bora quux quux quux")])
    retriever.delete(["t01", "t02"])
    stage = rm3(retriever, max_document_share=1.0)
    given = Run({"a": [("new", 2.0), ("t01", 1.0)]})
    found = stage.run({"a": "bora"}, given, 60)["a"]
    assert found.doc_ids[0] == "new"
    assert not {"t01", "t02"} & set(found.doc_ids)
    one = Retriever.build(BM25Encoder(), MADE[:1])
    assert list(rm3(one).run({"q": TEXTS[0]})["q"].doc_ids) == ["t00"]
    empty = Retriever.build(BM25Encoder(), [], index=InvertedIndex())
    assert len(rm3(empty).run({"q": "bora"})["q"]) == 0


def test_fields_share_a_model() -> None:
    made = [Document(d.id, " ".join(d.text.split()[:3]), d.text) for d in MADE]
    fields = BM25Encoder(fields={"title": 2.0, "text": 1.0})
    retriever = Retriever.build(fields, made)
    found = rm3(retriever, max_document_share=1.0).run(QUERIES, None, 60)
    plain = retriever.run(QUERIES, None, 60)
    assert all(len(found[query]) >= len(plain[query]) for query in QUERIES)


def test_rounded_impacts_and_impacts_without_counts(bm25: Retriever) -> None:
    exact = rm3(bm25, max_document_share=1.0).run(QUERIES, None, 10)
    rounded = Retriever.build(BM25Encoder(), MADE, index=InvertedIndex(fidelity="u8"))
    for query, ranking in rm3(rounded, max_document_share=1.0).run(QUERIES, None, 10).items():
        assert ranking.scores[0] == pytest.approx(exact[query].scores[0], rel=0.1)
    binary = Retriever.build(BM25Encoder(k1=0.0), MADE)
    found = rm3(binary, max_document_share=1.0).run(QUERIES, None, 10)
    assert [len(ranking) for ranking in found.values()] == [10, 10, 10]


class Given:
    """A sparse encoder whose texts are lists of ``column:weight``."""

    fingerprint = fingerprint_of("given", 6)
    similarity = "dot"

    def encode_queries(self, texts: list[str]) -> sparse.csr_array:
        matrix = np.zeros((len(texts), 6), np.float32)
        for row, text in enumerate(texts):
            for pair in text.split():
                matrix[row, int(pair.split(":")[0])] = float(pair.split(":")[1])
        return sparse.csr_array(matrix)

    encode_documents = encode_queries

    def save_pretrained(self, path: Path) -> None:
        Path(path).mkdir()


def test_learned_weights_are_mixed_as_they_are() -> None:
    texts = ["0:2 1:1 2:1", "0:1 3:3", "4:1 5:1", "1:2"]
    made = [Document(str(number), "", text) for number, text in enumerate(texts)]
    retriever = Retriever.build(Given(), made)  # type: ignore[arg-type]
    found = rm3(retriever, documents=2, terms=2, original_weight=0.6).run({"q": "0:1.5"}, None, 9)
    # First: 0 (3.0), then 1 (1.5). Of 0 the terms 0 and 1 count, 2/3 and 1/3; of 1, 1/4 and 3/4.
    model = {0: 3 * 2 / 3 + 1.5 / 4, 1: 3 / 3, 3: 1.5 * 3 / 4}
    model = {term: model[term] / (model[0] + model[3]) for term in (0, 3)}
    query = np.zeros(6)
    for term, weight in model.items():
        query[term] = 0.4 * 1.5 * weight
    query[0] += 0.6 * 1.5
    expected = Given().encode_documents(texts).toarray() @ query
    assert dict(found["q"]) == pytest.approx(
        {str(row): value for row, value in enumerate(expected) if value}, rel=1e-6
    )


def test_splade(masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, device="cpu")
    retriever = Retriever.build(encoder, documents(12), name="splade")
    queries = {"a": "gold river", "b": "stone"}
    assert dict(rm3(retriever, documents=0).run(queries)) == dict(retriever.run(queries))
    with tracing() as spans:
        rm3(retriever, documents=2, terms=5).run(queries)
    terms = spans[0].facts["terms"]
    assert set(terms) == set(queries)
    weights = [weight for _, weight in terms["a"]]
    assert weights == sorted(weights, reverse=True)
    with pytest.raises(ConfigError, match="SpladeEncoder has no document frequencies"):
        rm3(retriever, max_document_share=0.1).run(queries)


def test_options_and_what_is_no_sparse_retriever(bm25: Retriever) -> None:
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    with pytest.raises(ConfigError, match=r"dense vectors, which have no terms; use prf\(dense\)"):
        rm3(dense).run(QUERIES)
    for options, message in (
        ({"documents": -1}, "rm3: documents"),
        ({"terms": 0}, "rm3: terms"),
        ({"original_weight": 1.1}, "rm3: original_weight"),
        ({"by": "scores"}, "did you mean 'score'"),
        ({"max_document_share": 2}, "rm3: max_document_share"),
    ):
        with pytest.raises(ConfigError, match=message):
            rm3(bm25, **options)
    names = {"bm25": lambda: bm25, "dense": lambda: dense}
    stage = parse("(bm25 | dense) % 20 >> rm3(bm25, documents=5, terms=10)", names)
    assert not stage.needs_candidates
    with pytest.raises(ConfigError, match="did you mean 'terms'"):
        parse("rm3(bm25, term=3)", names)


def test_a_trace_names_feedback_and_terms(bm25: Retriever) -> None:
    with tracing() as spans:
        rm3(bm25, documents=2, terms=3, max_document_share=1.0).run({"a": "bora dako"}, None, 5)
    facts = spans[0].facts
    assert facts["feedback"] == {"a": list(bm25.run({"a": "bora dako"}, None, 2)["a"].doc_ids)}
    assert {"bora", "dako"} <= {term for term, _ in facts["terms"]["a"]} <= set(WORDS)


def test_many_queries_as_one_by_one(bm25: Retriever) -> None:
    stage = rm3(bm25, max_document_share=1.0)
    many = {f"{name}{number}": text for number in range(200) for name, text in QUERIES.items()}
    whole, single = stage.run(many, None, 5), stage.run(QUERIES, None, 5)
    assert all(whole[query] == single[query[0]] for query in many)


@pytest.mark.parametrize(("name", "rises"), [("nfcorpus", 0.05), ("cranfield", 0.01)])
def test_rm3_finds_more_on_real_collections(collections: Path, name: str, rises: float) -> None:
    from sluice.retrieval import evaluate, load_dataset

    dataset = load_dataset(str(collections / name), "test")
    retriever = Retriever.build(BM25Encoder(), dataset.corpus)
    plain, expanded = (
        evaluate(stage.run(dataset.queries, None, 100), dataset.qrels, ["R@100"]).mean["R@100"]
        for stage in (retriever, rm3(retriever))
    )
    assert expanded > plain + rises
