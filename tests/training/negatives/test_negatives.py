"""Mining modes: structural proofs, and identity with sentence-transformers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.build import build as built
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import Mining, mine, pair_examples
from sluice.training.negatives.mining import consistent

NAIVE = Mining(per_query=3, max_positive_ratio=None)
RANKED = {"q": [("a", 0.9), ("p", 0.8), ("b", 0.79), ("c", 0.7), ("d", 0.5), ("e", 0.1)]}
POSITIVES = {"q": {"p": 1, "z": 0}}


def mined(mining: Mining, **arguments: object) -> list[str]:
    return list(mine(RANKED, POSITIVES, mining, **arguments).negatives["q"])


def test_modes_by_hand() -> None:
    assert mined(NAIVE) == ["a", "b", "c"]
    assert mined(Mining(3, max_positive_ratio=None, range_min=2)) == ["c", "d", "e"]  # shifted
    assert mined(Mining(3, max_positive_ratio=None, max_score=0.7)) == ["d", "e"]  # below, not at
    assert mined(Mining(3, max_positive_ratio=None, margin=0.05)) == ["c", "d", "e"]
    assert mined(Mining(3, max_positive_ratio=0.95)) == ["c", "d", "e"]  # below 0.76
    assert mined(Mining(3, max_positive_ratio=None, min_score=0.75)) == ["a", "b"]
    window = Mining(2, max_positive_ratio=None, range_min=1, range_max=3)
    assert mined(window) == ["b", "c"]


def test_report_says_why() -> None:
    found = mine(RANKED, {**POSITIVES, "none": {"p": 1}}, Mining(2, min_score=0.2))
    report = found.report
    assert (report.kept, report.queries, report.candidates) == (2, 2, 6)
    assert report.dropped == {"min_score": 1, "positive": 1, "ratio": 2}
    assert report.short == {"none": 2}
    assert report.queries_without_hits == 1
    assert report.queries_without_positive_score == 1
    assert report.positive_share == 0.0
    assert "2 negatives for 2 queries" in str(report)
    assert report.as_dict()["dropped"]["ratio"] == 2
    reasons = {row.document: row.reason for row in found.rows}
    assert reasons == dict(a="ratio", p="positive", b="ratio", c="kept", d="kept", e="min_score")
    assert found.rows[3][:4] == ("q", "c", 3, 0.7)


def test_several_positives_use_the_lowest_score() -> None:
    positives = {"q": {"a": 1, "c": 2}}
    assert mine(RANKED, positives, Mining(3, max_positive_ratio=1.0)).negatives["q"] == ("d", "e")
    outside = mine(RANKED, {"q": {"a": 1, "x": 1}}, Mining(5, max_positive_ratio=1.0))
    assert outside.report.unscored_positives == 1
    assert outside.negatives["q"] == ("p", "b", "c", "d", "e")
    for scores in ({"q": {"x": 0.6}}, lambda query, document: 0.6):
        known = mine(RANKED, {"q": {"a": 1, "x": 1}}, Mining(5), positive_scores=scores)
        assert known.negatives["q"] == ("d", "e")


def test_equal_texts_are_dropped() -> None:
    texts = {"p": "The Answer", "a": " the  answer", "b": "one", "c": "ONE", "d": "two", "e": "x"}
    found = mine(RANKED, POSITIVES, Mining(3, max_positive_ratio=None), texts=texts)
    assert found.negatives["q"] == ("b", "d", "e")
    assert found.report.dropped["positive_text"] == found.report.dropped["duplicate_text"] == 1


def test_random_sampling_is_a_function_of_seed_and_query() -> None:
    ranked = {q: [(f"{i}", -float(i)) for i in range(100)] for q in ("q1", "q2")}
    positives = {"q1": {"p": 1}, "q2": {"p": 1}}
    mining = Mining(7, max_positive_ratio=None, range_min=50, range_max=100, sampling="random")
    one, two, other = (mine(ranked, positives, mining, seed=s).negatives for s in (1, 1, 2))
    assert one == two != other
    assert one["q1"] != one["q2"]
    assert one["q1"] == mine(ranked, {"q1": {"p": 1}}, mining, seed=1).negatives["q1"]
    assert all(50 <= int(document) < 100 for document in one["q1"])


lists = st.lists(st.integers(-50, 50), min_size=1, max_size=30, unique=True).map(
    lambda scores: [(f"d{s}", s / 10) for s in sorted(scores, reverse=True)]
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lists, st.integers(0, 29), st.floats(0.1, 1.0), st.floats(0, 3))
def test_no_negative_above_its_threshold(
    hits: list[tuple[str, float]], place: int, ratio: float, margin: float
) -> None:
    document, positive = hits[place % len(hits)]
    known = {"q": {document: 1}}
    scores = dict(hits)

    def of(**settings_: object) -> list[float]:
        found = mine({"q": hits}, known, Mining(per_query=30, **settings_)).negatives["q"]
        assert document not in found
        return [scores[name] for name in found]

    threshold = positive - abs(positive) * (1 - ratio)
    assert all(score < threshold for score in of(max_positive_ratio=ratio))
    assert all(score < positive - margin for score in of(max_positive_ratio=None, margin=margin))
    assert of(max_positive_ratio=1.0) == of(max_positive_ratio=None, margin=0.0)
    naive = of(max_positive_ratio=None)
    assert naive == [s for _, s in hits if s != positive]


def test_paraphrases_of_the_positive_are_rejected_in_order() -> None:
    """Planted false negatives: the share each mode rejects, percentage > shifted > naive."""
    rng = np.random.default_rng(0)
    ranked, positives = {}, {}
    for q in range(100):
        scores = {f"{q}-{i}": s for i, s in enumerate(rng.uniform(0.2, 0.75, 40))}
        scores |= {f"{q}-p": 0.8, f"{q}-false": 0.8 * rng.uniform(0.9, 1.02)}
        ranked[f"{q}"] = sorted(scores.items(), key=lambda item: -item[1])
        positives[f"{q}"] = {f"{q}-p": 1}

    def rejected(mining: Mining) -> float:
        kept = mine(ranked, positives, mining).negatives
        return sum(f"{q}-false" not in found for q, found in kept.items()) / len(kept)

    naive = rejected(Mining(4, max_positive_ratio=None))
    shifted = rejected(Mining(4, max_positive_ratio=None, range_min=1))
    percentage = rejected(Mining(4, max_positive_ratio=0.85))
    assert percentage > naive
    assert shifted > naive
    assert percentage == 1.0


@pytest.mark.filterwarnings("ignore")
def test_same_as_sentence_transformers() -> None:
    util = pytest.importorskip("sentence_transformers.util")
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(5)
    texts = [f"document {i}" for i in range(60)]
    queries = [f"query {i}" for i in range(12)]
    vectors = {t: rng.normal(size=6).astype(np.float32) for t in texts + queries}
    for i, query in enumerate(queries):  # the positive is near its query
        vectors[query] = vectors[texts[i]] + 0.8 * vectors[query]
    unit = {text: v / np.linalg.norm(v) for text, v in vectors.items()}

    def encode(batch: list[str], **_: object) -> np.ndarray:
        return np.stack([unit[text] for text in batch])

    model = SimpleNamespace(
        device=torch.device("cpu"),
        encode_document=encode,
        encode_query=encode,
        similarity=lambda a, b: torch.as_tensor(a) @ torch.as_tensor(b).T,
        similarity_pairwise=lambda a, b: (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1),
    )
    found = util.mine_hard_negatives(
        datasets.Dataset.from_dict({"query": queries, "answer": texts[:12]}),
        model,
        corpus=texts,
        relative_margin=0.05,
        num_negatives=4,
        range_max=60,
        output_format="n-tuple",
        verbose=False,
    )
    theirs = {row["query"]: [row[f"negative_{i}"] for i in range(1, 5)] for row in found}
    ranked = {
        q: sorted(((t, float(unit[q] @ unit[t])) for t in texts), key=lambda hit: -hit[1])
        for q in queries
    }
    positives = {q: {texts[i]: 1} for i, q in enumerate(queries)}
    ours = mine(ranked, positives, Mining(4, max_positive_ratio=0.95)).negatives
    assert theirs == {q: list(ours[q]) for q in theirs}
    assert {q for q, names in ours.items() if len(names) == 4} == set(theirs)


def test_consistency_filter() -> None:
    assert list(consistent(RANKED, POSITIVES, depth=2)) == [("q", "p")]
    assert list(consistent(RANKED, POSITIVES, depth=1)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"per_query": 5, "range_min": 2, "range_max": 4},
        {"margin": math.nan},
        {"max_score": math.nan},
        {"min_score": -math.inf},
    ],
)
def test_bad_settings(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="negatives"):
        Mining(**arguments)


@pytest.mark.parametrize("scores", [(0.1, 0.2), (0.3, math.nan)])
def test_bad_lists(scores: tuple[float, float]) -> None:
    hits = [("a", scores[0]), ("b", scores[1])]
    with pytest.raises(DataError, match="best first"):
        mine({"q": hits}, {"q": {"p": 1}}, Mining())


def test_document_twice_in_a_list() -> None:
    with pytest.raises(DataError, match="document 'a' occurs twice"):
        mine({"q": [("a", 0.9), ("b", 0.8), ("a", 0.7)]}, POSITIVES, NAIVE)


def test_positive_without_a_finite_score() -> None:
    with pytest.raises(DataError, match="positive 'x' has score nan"):
        mine(RANKED, {"q": {"x": 1}}, NAIVE, positive_scores=lambda query, document: math.nan)


def test_arguments_are_the_yaml_keys() -> None:
    table = {"mined": "sluice.training.negatives.mining:Mining"}
    spec = {"type": "mined", "per_query": 2, "max_positive_ratio": None, "sampling": "random"}
    assert built(spec, table, where="negatives.mined") == Mining(2, None, sampling="random")
    with pytest.raises(ConfigError, match="did you mean 'per_query'"):
        built({"type": "mined", "per_qery": 2}, table, where="negatives.mined")


def test_pair_examples() -> None:
    texts = {"d1": "one", "d2": "two", "n": "no"}
    made = list(pair_examples({"q": "ask"}, {"q": {"d2": 1, "d1": 2, "n": 0}}, texts, {"q": ["n"]}))
    assert [e.documents[0].id for e in made] == ["d2", "d1"]
    assert all(e.documents[1].id == "n" and e.relevant == {"d1", "d2"} for e in made)
    with pytest.raises(DataError, match="'d9'"):
        list(pair_examples({"q": "ask"}, {"q": {"d9": 1}}, texts))
