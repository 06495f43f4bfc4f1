"""What goes with token vectors and what does not: refusals, and what scores by them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_functions import straight_max_sim, token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import AugmentedIndex, FunnelIndex, TokenIndex
from sluice.retrieval import Document, Retriever, Run
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.exchange.retriever_files import export_retriever
from sluice.retrieval.exchange.vector_files import queries_of
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.retrievers.quality.scorers import Magnitude
from sluice.retrieval.stages.hub_normaliser import Normaliser
from sluice.retrieval.stages.rerankers.similarity import candidate_scores
from sluice.retrieval.studies.robustness.replaced_document import AlteredPipeline
from sluice.retrieval.training_data.list_tasks import missed_scores

TEXTS = ["gold river", "sluice of stone", "deep water", "rank the vectors", "gold stone water"]
CORPUS = [Document(f"d{n}", text=text) for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def tokens() -> Retriever:
    encoder = FunctionEncoder(token_vectors, name="words")
    return Retriever.build(encoder, CORPUS, index=TokenIndex("float32"), name="tokens")


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), CORPUS, name="bm25")


def expected(query: str, text: str) -> float:
    asked, document = (token_vectors([each]).text(0) for each in (query, text))
    return straight_max_sim(asked, document)


@pytest.mark.parametrize(
    "text",
    [
        "prf(tokens)",
        "rm3(tokens)",
        "bm25 >> dot(tokens)",
        "bm25 >> pair_head(tokens, model='m')",
    ],
)
def test_stages_of_single_vectors_refuse(tokens: Retriever, bm25: Retriever, text: str) -> None:
    names = {"tokens": lambda: tokens, "bm25": lambda: bm25}
    with pytest.raises(ConfigError, match=r"a vector for each token.*max_sim\(tokens\)"):
        parse(text, names).run({"q": "gold"})


@pytest.mark.parametrize("use", [
    lambda r, p: export_retriever(r, p / "x.npy", "npy"),
    lambda r, p: queries_of(r, p / "x.npy"),
    lambda r, p: Normaliser.fit(r, ["gold"]),
    lambda r, p: Magnitude(FunctionEncoder(token_vectors, normalize=False)).quality(CORPUS),
    lambda r, p: FunnelIndex(dimensions=4, depth=10).add(token_vectors(TEXTS)),
    lambda r, p: AugmentedIndex(TokenIndex(), {"type": "document_bias"}).add(token_vectors(TEXTS)),
])  # fmt: skip
def test_other_uses_refuse(
    tokens: Retriever, tmp_path: Path, use: Callable[[Retriever, Path], Any]
) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        use(tokens, tmp_path)
    assert any(word in str(error.value).lower() for word in ("token", "single"))


def test_features_of_a_ranker_are_exact_scores(tokens: Retriever) -> None:
    heads = {"q": Run({"q": {"d4": 2.0, "d0": 1.0}})["q"]}
    scores = candidate_scores(tokens, {"q": "gold water"}, heads)
    best = [expected("gold water", CORPUS[int(doc[1:])].text) for doc in heads["q"].doc_ids]
    assert np.allclose(scores, best, atol=1e-5)


def test_positives_that_mining_missed_are_scored_by_max_sim(tokens: Retriever) -> None:
    dataset = Dataset.from_memory(CORPUS, {"q": "gold water"}, {"q": {"d1": 1, "d4": 1}})
    found = missed_scores(tokens, Run({"q": {"d4": 2.0}}), dataset.queries, dataset.qrels)
    assert found == {"q": {"d1": pytest.approx(expected("gold water", TEXTS[1]), abs=1e-5)}}


def test_a_stress_test_scores_the_new_document(tokens: Retriever, bm25: Retriever) -> None:
    altered = AlteredPipeline(tokens)
    new = Document("d1", text="gold gold water")
    ranking = altered.run({"q": "gold water"}, new)["q"]
    assert dict(ranking)["d1"] == pytest.approx(expected("gold water", new.text), abs=1e-5)
    assert set(ranking.doc_ids[:2]) == {"d1", "d4"}  # both have all words
    names = {"tokens": lambda: tokens, "bm25": lambda: bm25}
    with pytest.raises(ConfigError, match="reads the index of 'tokens'"):
        AlteredPipeline(parse("bm25 >> max_sim(tokens)", names))


@pytest.mark.thorough
def test_langchain_takes_it_as_any_other(tokens: Retriever) -> None:
    pytest.importorskip("langchain_core")
    from sluice.retrieval.exchange.adapters.retrievers import langchain_retriever

    found = langchain_retriever(tokens, k=2).invoke("gold water")
    assert [each.metadata["id"] for each in found] == [
        hit.doc_id for hit in tokens.search("gold water", 2)
    ]
