"""Teachers of different kinds as one, against the formula written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_files import LengthTeacher

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.distillation import own_scores, score_examples, taught
from sluice.retrieval.training_data.teachers.judges import check_judge
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import (
    Ensemble,
    Mixture,
    RunTeacher,
)
from sluice.training.negatives.false_negatives import JudgedPair
from sluice.training.protocol import Example, Text

QUERIES = ["q1", "q2", "flat", "one"]
DOCUMENTS = {"q1": ["a", "bbb", "cc"], "q2": ["dddd", "e"], "flat": ["f", "g"], "one": ["h"]}
PAIRS = [
    JudgedPair(query, f"text of {query}", document, document)
    for query in QUERIES
    for document in DOCUMENTS[query]
]


class Tabled:
    """A teacher with a score for each document, NaN for those it does not know."""

    needs_texts = False

    def __init__(self, name: str, scores: dict[str, float]) -> None:
        self.name = self.fingerprint = name
        self.table = scores

    def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
        return [self.table.get(pair.document_id, math.nan) for pair in pairs]


ONE = Tabled("one", {"a": 3.0, "bbb": -1.0, "cc": 0.5, "dddd": 10.0, "e": 2.0, "f": 4, "g": 4})
TWO = Tabled("two", {"a": 100.0, "bbb": 300.0, "cc": 50.0, "dddd": 7.0, "e": 8.0, "f": 1, "g": 2})


def normal(values: list[float], how: str) -> list[float]:
    if how == "none":
        return values
    low, high = min(values), max(values)
    if low == high:
        return [0.0] * len(values)
    if how == "min-max":
        return [(value - low) / (high - low) for value in values]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / deviation for value in values]


@pytest.mark.parametrize("how", ["none", "min-max", "z-score"])
@pytest.mark.parametrize(("weights", "scale"), [(None, 1.0), ([3.0, 0.5], 30.0)])
def test_the_formula(how: str, weights: list[float] | None, scale: float) -> None:
    found = Ensemble([ONE, TWO], weights, normalise=how, scale=scale).scores(PAIRS)
    one, two = weights or [1.0, 1.0]
    place = 0
    for query in ("q1", "q2", "flat"):
        left = normal([ONE.table[d] for d in DOCUMENTS[query]], how)
        right = normal([TWO.table[d] for d in DOCUMENTS[query]], how)
        for a, b in zip(left, right, strict=True):
            assert found[place] == pytest.approx(scale * (one * a + two * b) / (one + two))
            place += 1
    assert np.isnan(found[place:]).tolist() == [True]  # neither knows h


def test_one_alone_is_as_it_was() -> None:
    pairs = PAIRS[:5]
    assert Ensemble([ONE]).scores(pairs).tolist() == ONE.scores(pairs)
    assert len(Ensemble([ONE, TWO]).scores([])) == 0
    single = Ensemble([LengthTeacher()], normalise="min-max", scale=30).scores(PAIRS[-1:])
    assert single.tolist() == [0.0]


def test_the_order_of_pairs_does_not_matter() -> None:
    mixed = Ensemble([ONE, TWO], normalise="min-max")
    order = [4, 0, 6, 2, 1, 5, 3, 7]
    shuffled = mixed.scores([PAIRS[place] for place in order])
    np.testing.assert_array_equal(shuffled, mixed.scores(PAIRS)[order])


def test_a_pair_that_a_member_lacks_has_no_score_and_does_not_count() -> None:
    run = RunTeacher(Run({"q1": {"a": 2.0, "bbb": 1.0}}), "run", "f")
    found = Ensemble([ONE, run], normalise="min-max").scores(PAIRS[:3])
    np.testing.assert_array_equal(found, [1.0, 0.0, np.nan])


def test_what_decides_the_scores_is_in_the_fingerprint() -> None:
    made = [
        Ensemble([ONE, TWO]), Ensemble([TWO, ONE]), Ensemble([ONE]),
        Ensemble([ONE, TWO], [1, 2]), Ensemble([ONE, TWO], normalise="min-max"),
        Ensemble([ONE, TWO], scale=30),
    ]  # fmt: skip
    assert len({each.fingerprint for each in made}) == len(made)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((2, [1.0]), "weights: 1 for 2 teachers"),
        ((2, [1.0, 0.0]), "finite numbers above 0"),
        ((0,), "weights: 0 for 0 teachers"),
        ((1, None, "zscore"), "did you mean 'z-score'"),
        ((1, None, "none", -1.0), "teacher.scale: -1.0; expected a finite number above 0"),
        ((1, None, "none", math.inf), "teacher.scale: inf"),
    ],
)
def test_bad_settings(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixture(*settings)


def examples(*scores: tuple[float, ...]) -> list[Example]:
    texts = {"g": "gold in the river", "s": "stone", "w": "deep water"}
    named = tuple(Text(name, text) for name, text in texts.items())
    return [
        Example(Text(f"q{place}", "gold river"), named, scores=own)
        for place, own in enumerate(scores)
    ]


CORPUS = ["gold in the river", "stone", "deep water", "a river of stone"]


class TestKinds:
    def test_bm25_counts_the_corpus(self) -> None:
        from sluice.encoders.lexical.bm25 import BM25Encoder

        teacher = teacher_spec("bm25").make(Context(corpus=lambda: iter(CORPUS)))
        pairs = [JudgedPair("q", "gold river", str(n), text) for n, text in enumerate(CORPUS)]
        encoder = BM25Encoder().fit(CORPUS)
        expected = encoder.encode_queries(["gold river"]) @ encoder.encode_documents(CORPUS).T
        np.testing.assert_allclose(teacher.scores(pairs), expected.toarray()[0], rtol=1e-6)
        assert teacher.scores(pairs)[0] > teacher.scores(pairs)[3] > teacher.scores(pairs)[1] == 0
        with pytest.raises(ConfigError, match="bm25 counts words in a corpus; name the dataset"):
            teacher_spec("bm25").make(Context())

    def test_every_kind_in_one(self, bert: Path, pair_bert: Path, tmp_path: Path) -> None:
        """A dense encoder, a cross-encoder, BM25, a file of scores and the examples' own."""
        own = examples((1.0, 5.0, 3.0), (2.0, 2.5, 9.0))
        stored = tmp_path / "stored.parquet"
        score_examples(LengthTeacher(), own, stored)
        names = [str(bert), {"type": "cross_encoder", "model": str(pair_bert)},
                 {"type": "bm25", "k1": 1.2}, str(stored), "examples"]  # fmt: skip
        config = {"output": "x", "encoder": {"type": "dense", "model": "x"}, "loss": "kl_div",
                  "teacher": names}  # fmt: skip
        spec = checked(config, TrainConfig).teacher
        assert spec == {
            "type": "ensemble", "teachers": names, "normalise": "min-max", "scale": 30.0,
        }  # fmt: skip
        assert teacher_spec(spec).sources == [str(bert), str(pair_bert), str(stored)]
        found = taught(own, spec, work_path=tmp_path, corpus=lambda: iter(CORPUS))
        members = [
            taught(own, {**spec, "teachers": [each]}, work_path=tmp_path / str(number),
                   corpus=lambda: iter(CORPUS))
            for number, each in enumerate(names)
        ]  # fmt: skip
        for place, example in enumerate(found):
            each = np.array([member[place].scores for member in members])
            assert each.min(axis=1).tolist() == [0.0] * 5
            assert each.max(axis=1).tolist() == [30.0] * 5
            np.testing.assert_allclose(example.scores, each.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(members[4][0].scores, [0, 30, 15])

    def test_examples_without_scores_are_no_teacher(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no training example brings a score"):
            own_scores(examples(()))
        with pytest.raises(ConfigError, match="the scores of a training file's rows, and here are"):
            teacher_spec("examples").make(Context())

    @pytest.mark.parametrize("member", ["bm25", "examples", {"type": "bm25"}])
    def test_what_needs_a_corpus_cannot_judge_candidates(self, member: Any) -> None:
        with pytest.raises(ConfigError, match="cannot judge candidates; name a model, or a run"):
            check_judge({"type": "ensemble", "teachers": ["a/b", member]}, "judge")
