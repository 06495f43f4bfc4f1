"""Dev evaluation encodes in the arithmetic that training has."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from small_world import documents
from token_functions import DIM, straight_max_sim, token_vectors

from sluice.encoders import CrossEncoder, DenseEncoder, TokenEncoder
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.towers import TowerEncoder
from sluice.indexing import TokenIndex
from sluice.retrieval import Dataset, Run
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.experiments.training import dev_evaluation as dev_evaluation_module
from sluice.retrieval.experiments.training.dev_evaluation import dev_evaluation

DOCUMENTS = documents()
DATA = Dataset.from_memory(DOCUMENTS, {"q": "gold river"}, {"q": {DOCUMENTS[3].id: 1}}, split="dev")
SECTION = DevSection(measures=["RR"])


@pytest.fixture(params=[True, False], ids=["with bfloat16", "without"])
def has(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("SLUICE_ARITHMETIC", "bfloat16" if request.param else "float32")
    return bool(request.param)


@pytest.mark.parametrize("towers", [True, False])
def test_in_bfloat16_where_the_processor_is_faster_in_it(
    bert: Path, has: bool, towers: bool
) -> None:
    one, other = (DenseEncoder.from_pretrained(bert, device="cpu") for _ in range(2))
    encoder = TowerEncoder(one, other) if towers else one
    measure, seen = encoder.encode_documents, []

    def noted(texts: Sequence[str]) -> object:
        seen.append(encoder.dtype)
        return measure(texts)

    encoder.encode_documents = noted  # type: ignore[method-assign,assignment]
    for half in (True, False):
        dev_evaluation(DATA, SECTION, seed=1, candidates=None, bfloat16=half)(encoder)
    assert seen == [torch.bfloat16 if has else torch.float32, torch.float32]
    assert encoder.dtype is one.dtype is other.dtype is torch.float32


def test_the_measure_is_that_of_a_bfloat16_encoder(bert: Path) -> None:
    measured = dev_evaluation(DATA, SECTION, seed=1, candidates=None, bfloat16=True)
    expected = dev_evaluation(DATA, SECTION, seed=1, candidates=None)
    half = DenseEncoder.from_pretrained(bert, device="cpu", dtype="bfloat16")
    assert measured(DenseEncoder.from_pretrained(bert, device="cpu")) == expected(half)


def test_the_arithmetic_comes_back_after_an_error(pair_bert: Path) -> None:
    encoder = CrossEncoder.from_pretrained(pair_bert, device="cpu")
    encoder.score = lambda pairs: 1 / 0  # type: ignore[assignment,return-value]
    lists = {"q": [(DOCUMENTS[3].id, 1.0), (DOCUMENTS[4].id, 0.5)]}
    measured = dev_evaluation(DATA, SECTION, seed=1, candidates=Run(lists), bfloat16=True)
    with pytest.raises(ZeroDivisionError):
        measured(encoder)
    assert encoder.dtype is torch.float32


class Words:
    """A vector for each word, without a word of how long documents are."""

    similarity = "max_sim"
    dim = DIM

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def encode_queries(self, texts: Sequence[str]) -> TokenVectors:
        return token_vectors(texts)

    def encode_documents(self, texts: Sequence[str]) -> TokenVectors:
        self.blocks.append(len(texts))
        return token_vectors(texts)


@pytest.mark.parametrize(("block", "depth"), [(1, 5), (7, 3), (7, 60), (1000, 5)])
def test_token_vectors_are_searched_in_blocks(
    block: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Texts that come again tie, in one block and in two; some have no tokens.
    texts = [each.text for each in DOCUMENTS[:20] for _ in range(2)] + ["", DOCUMENTS[0].text, " "]
    queries = ["gold river of", "word3", " ", "number 7 gold"]
    monkeypatch.setattr(dev_evaluation_module, "TOKEN_BYTES", block * 4 * DIM * 512)
    encoder = Words()
    hits = dev_evaluation_module.token_hits(encoder, texts, queries, depth)
    assert max(encoder.blocks) == min(block, len(texts))
    assert sum(encoder.blocks) == len(texts)
    index = TokenIndex("float32")
    index.add(token_vectors(texts))
    whole = index.search(token_vectors(queries), depth)
    np.testing.assert_array_equal(hits.rows, whole.rows)
    np.testing.assert_array_equal(hits.scores, whole.scores)
    vectors = list(token_vectors(texts))
    for line, query in enumerate(token_vectors(queries)):
        filled = [row for row, each in enumerate(vectors) if len(each) and len(query)]
        exact = {row: straight_max_sim(query, vectors[row]) for row in filled}
        best = sorted(exact.values(), reverse=True)[:depth]
        count = len(best)
        assert hits.scores[line, :count] == pytest.approx(best, abs=1e-5)
        assert (hits.rows[line, count:] == -1).all()
        for row, score in zip(hits.rows[line, :count], hits.scores[line], strict=False):
            assert exact[row] == pytest.approx(score, abs=1e-5)


def test_the_measure_of_a_token_encoder_does_not_depend_on_blocks(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TokenEncoder.from_pretrained(bert, dim=8, document_length=24)
    whole = dev_evaluation(DATA, SECTION, seed=1, candidates=None)(encoder)
    monkeypatch.setattr(dev_evaluation_module, "TOKEN_BYTES", 1)
    assert dev_evaluation(DATA, SECTION, seed=1, candidates=None)(encoder) == whole
