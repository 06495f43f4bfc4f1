"""A search with a time limit: rerankers stop in time, and what they left keeps its order."""

import time
from collections.abc import Mapping, Sequence

import pytest

from sluice.retrieval import Rerank, Retriever
from sluice.retrieval.pipelines.rerank import FIRST_UNDER_A_LIMIT, OUT_OF_TIME
from sluice.retrieval.pipelines.search import seconds_left, time_limit
from sluice.retrieval.pipelines.tracing import tracing


class Slow:
    """Longer documents first, a hundredth of a second for each pair."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.calls.append(len(pairs))
        time.sleep(0.01 * len(pairs))
        return [float(len(document)) for _, document in pairs]


class Lists:
    """A scorer of lists, which must not be asked."""

    def score_lists(self, queries: object, heads: Mapping[str, object], documents: object) -> None:
        raise AssertionError("asked")


def test_a_reranker_stops_and_the_rest_keeps_its_order(dense: Retriever) -> None:
    slow = Slow()
    pipeline = dense % 40 >> Rerank(slow, depth=40)
    before = list((dense % 40).run({"q": "gold river"})["q"].doc_ids)
    with tracing() as spans, time_limit(0.2):
        after = pipeline.run({"q": "gold river"})["q"]
    scored = sum(slow.calls)
    assert set(slow.calls) == {FIRST_UNDER_A_LIMIT}
    assert 0 < scored < 40
    lengths = {hit: len(text) for hit, text in zip(before, dense.store.texts(before), strict=True)}
    assert list(after.doc_ids) == [
        *sorted(before[:scored], key=lambda hit: -lengths[hit]), *before[scored:],
    ]  # fmt: skip
    (counts,) = [span.facts[OUT_OF_TIME] for span in spans[0].walk() if OUT_OF_TIME in span.facts]
    assert counts == {"q": 40 - scored}


def test_without_time_nothing_is_scored(dense: Retriever) -> None:
    slow = Slow()
    before = (dense % 40).run({"q": "gold"})["q"]
    for scorer in (slow, Lists()):
        with time_limit(0):
            after = (dense % 40 >> Rerank(scorer, depth=40)).run({"q": "gold"})["q"]
        assert list(after.doc_ids) == list(before.doc_ids)
    assert slow.calls == []


def test_a_generous_limit_changes_nothing(dense: Retriever) -> None:
    pipeline = dense % 20 >> Rerank(Slow(), depth=20)
    free = pipeline.search("gold river", 20)
    with tracing() as spans, time_limit(60):
        assert pipeline.search("gold river", 20) == free
    (counts,) = [span.facts[OUT_OF_TIME] for span in spans[0].walk() if OUT_OF_TIME in span.facts]
    assert counts == {}


def test_the_earlier_of_two_limits_holds() -> None:
    assert seconds_left() is None
    with time_limit(1):
        with time_limit(100):
            left = seconds_left()
            assert left is not None
            assert left <= 1
        with time_limit(0.5):
            left = seconds_left()
            assert left == pytest.approx(0.5, abs=0.3)
        assert seconds_left() is not None
    assert seconds_left() is None
