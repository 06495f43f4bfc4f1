"""Scorers of a user's own need their method alone; optional attributes have defaults."""

from collections.abc import Sequence
from typing import Any

import pytest
from small_world import LengthScorer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Rerank, Retriever
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.stages.rerankers.long_documents import PassageScorer
from sluice.retrieval.stages.rerankers.scorer_identity import ScorerIdentity


class Full:
    """A scorer with every attribute that is read."""

    fingerprint = "full"
    tokenizer = "tokens"
    dtype = "float32"
    backend = type("Engine", (), {"name": "onnx"})()

    def __init__(self, *stages: Retriever) -> None:
        self.stages = list(stages)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [1.0] * len(pairs)


def test_a_plain_object_has_the_defaults() -> None:
    hooks = ScorerHooks(LengthScorer())
    assert hooks.scores_pairs
    assert not hooks.scores_lists
    assert hooks.stages == ()
    assert (hooks.fingerprint, hooks.tokenizer, hooks.weights) == (None, None, None)
    assert (hooks.dtype, hooks.engine) == ("", "")
    with pytest.raises(ConfigError, match="LengthScorer has no fingerprint"):
        ScorerIdentity(LengthScorer())()
    assert ScorerIdentity(LengthScorer(), "one")() != ScorerIdentity(LengthScorer(), "two")()


def test_attributes_are_read_where_there_are_any(bm25: Retriever) -> None:
    hooks = ScorerHooks(Full(bm25))
    assert hooks.stages == (bm25,)
    assert (hooks.fingerprint, hooks.tokenizer) == ("full", "tokens")
    assert (hooks.dtype, hooks.engine) == ("float32", "onnx")
    assert Rerank(Full(bm25)).inner == (bm25,)
    assert PassageScorer(Full(bm25)).stages == (bm25,)  # handed on by the scorer around it


def test_a_plain_scorer_reranks_alone_and_inside_others(bm25: Retriever) -> None:
    scorer = LengthScorer()
    for each in (scorer, PassageScorer(scorer, length=3, overlap=0, how="sum")):
        hits = (bm25 % 5 >> Rerank(each, 5)).search("gold river number", 5)
        lengths: list[Any] = [len(hit.text) for hit in hits]
        assert len(hits) == 5
        if each is scorer:
            assert lengths == sorted(lengths, reverse=True)
