"""A teacher of whole batches: scores of all pairs, vectors, and trainings that learn them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from sluice.encoders import BM25Encoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.training_data.teachers.batch_teacher import (
    EncodedTeacher,
    check_batch_teacher,
    make_batch_teacher,
)
from sluice.retrieval.training_data.teachers.teachers import Mixture
from sluice.training import fit
from sluice.training.batches.collator import BiEncoderCollator
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.distillation.scores import KLDiv
from sluice.training.losses.distillation.vectors import Alignment
from sluice.training.protocol import Example, Text

TEXTS = ["gold in the river", "stone and river", "deep water", "a sluice", "weights", "ranks"]


def examples(start: int = 0) -> list[Example]:
    """Three queries with a positive and a negative each."""
    return [
        Example(
            Text(f"q{place}", f"the {TEXTS[place]} {start}"),
            (Text(f"d{place}", TEXTS[place]), Text(f"n{place}", f"{TEXTS[place + 3]} {start}")),
        )
        for place in range(3)
    ]


def sides(made: list[Example]) -> tuple[list[Text], list[Text]]:
    return [e.query for e in made], [d for e in made for d in e.documents]


def test_every_query_with_every_document(bert: Path) -> None:
    dense, bm25 = DenseEncoder.from_pretrained(bert), BM25Encoder().fit(TEXTS)
    teacher = EncodedTeacher([(dense, "dense"), (bm25, "bm25")], Mixture(2, [2, 1], "min-max", 30))
    made = examples()
    teacher.prepare(made)
    queries, documents = sides(made)
    found = teacher.scores(queries, documents)
    assert found.shape == (3, 6)
    for row, query in enumerate(queries):
        texts = [document.text for document in documents]
        left = dense.encode_documents(texts) @ dense.encode_queries([query.text])[0]
        right = (bm25.encode_queries([query.text]) @ bm25.encode_documents(texts).T).toarray()[0]
        parts = [(each - each.min()) / (each.max() - each.min()) for each in (left, right)]
        np.testing.assert_allclose(found[row], 30 * (2 * parts[0] + parts[1]) / 3, atol=1e-3)


def test_vectors_are_one_dense_encoders(bert: Path) -> None:
    dense = DenseEncoder.from_pretrained(bert)
    teacher = EncodedTeacher([(dense, "dense")], Mixture(1))
    teacher.prepare(examples())
    queries, _ = sides(examples())
    expected = dense.encode_queries([query.text for query in queries])
    np.testing.assert_allclose(teacher.vectors(queries, "query"), expected, atol=1e-6)
    two = EncodedTeacher([(dense, "a"), (dense, "b")], Mixture(2))
    two.prepare(examples())
    with pytest.raises(ConfigError, match="2 teachers, and vectors are learnt from one"):
        two.vectors(queries, "query")
    sparse = EncodedTeacher([(BM25Encoder().fit(TEXTS), "bm25")], Mixture(1))
    sparse.prepare(examples())
    with pytest.raises(ConfigError, match="bm25 makes sparse vectors"):
        sparse.vectors(queries, "query")


@pytest.mark.parametrize("kind", ["dense", "bm25"])
def test_other_examples_are_prepared_for_and_forgotten(bert: Path, kind: str) -> None:
    """The same vectors come of it whatever was prepared for between."""
    encoder = DenseEncoder.from_pretrained(bert) if kind == "dense" else BM25Encoder().fit(TEXTS)
    straight, roundabout = (EncodedTeacher([(encoder, kind)], Mixture(1)) for _ in range(2))
    for teacher, starts in ((straight, (0, 2)), (roundabout, (0, 1, 2))):
        for start in starts:
            teacher.prepare(examples(start))
        with pytest.raises(DataError, match=r"has no vector of the query 'the gold in the river 1"):
            teacher.scores(*sides(examples(1)))
    for start in (0, 2):
        one, two = (each.scores(*sides(examples(start))) for each in (straight, roundabout))
        np.testing.assert_array_equal(one, two)


def test_the_collator_lays_it_out(bert: Path) -> None:
    teacher = EncodedTeacher([(DenseEncoder.from_pretrained(bert), "dense")], Mixture(1))
    made = examples()
    teacher.prepare(made)
    collator = BiEncoderCollator(
        tiny.Dense(), same_side=True, teacher=teacher, teacher_matrix=True, teacher_vectors=True
    )
    batch = collator(made)
    assert batch["teacher"].shape == batch["labels"].shape == (3, 12)
    assert batch["teacher"][:, :6].isfinite().all()
    assert batch["teacher"][:, 6:].isnan().all()
    np.testing.assert_allclose(batch["teacher"][:, :6], teacher.scores(*sides(made)), rtol=1e-6)
    assert batch["teacher_vectors"]["document"].shape == (6, teacher.vectors([], "query").shape[1])


@pytest.mark.parametrize("loss", [KLDiv(negatives="all"), Alignment("cosine")], ids=["kl", "align"])
def test_cached_and_uncached_trainings_end_alike(bert: Path, tmp_path: Path, loss: Any) -> None:
    job: dict[str, Any] = {"trainer": {"max_steps": 3, "per_device_train_batch_size": 3,
                                       "learning_rate": 1e-2}}  # fmt: skip
    width = tiny.Dense().module.config.hidden_size
    dense = DenseEncoder.from_pretrained(bert, projection=width, seed=1)
    ends, starts = [], tiny.weights_of(tiny.Dense(dropout=0.0))
    for cache in (None, 2):
        encoder = tiny.Dense(dropout=0.0)
        teacher = EncodedTeacher([(dense, "dense")], Mixture(1, None, "min-max", 30))
        fit(encoder, examples(), loss, output=tmp_path / str(cache), teacher=teacher,
            gradient_cache=cache, **job)  # fmt: skip
        ends.append(tiny.weights_of(encoder))
    assert any(not torch.equal(starts[name], value) for name, value in ends[0].items())
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=2e-6), name


@pytest.mark.thorough
def test_a_student_is_drawn_to_the_teachers_vectors(bert: Path, tmp_path: Path) -> None:
    student = tiny.Dense(dropout=0.0)
    dense = DenseEncoder.from_pretrained(bert, projection=student.module.config.hidden_size, seed=1)
    teacher = EncodedTeacher([(dense, "dense")], Mixture(1))
    report = fit(
        student, examples(), Alignment("cosine"), output=tmp_path, teacher=teacher,
        trainer={"max_steps": 60, "per_device_train_batch_size": 3, "learning_rate": 1e-2,
                 "logging_steps": 5},
    )  # fmt: skip
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert losses[-1] < losses[0] / 4


def test_a_training_without_its_teacher(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="teacher: missing: alignment asks a teacher batch by b"):
        fit(tiny.Dense(), examples(), Alignment(), output=tmp_path)
    with pytest.raises(ConfigError, match="learns nothing from a teacher of whole batches; leave"):
        teacher = EncodedTeacher([(BM25Encoder().fit(TEXTS), "bm25")], Mixture(1))
        fit(tiny.Dense(), examples(), InfoNCE(), output=tmp_path, teacher=teacher)
    with pytest.raises(ConfigError, match="alignment trains dense; a Cross encoder takes"):
        fit(tiny.Cross(), examples(), Alignment(), output=tmp_path)


@pytest.mark.parametrize(
    ("spec", "vectors", "message"),
    [
        ({"type": "cross_encoder", "model": "m"}, False, "teacher: cross_encoder: scores single"),
        ("scores.parquet", False, "teacher: scores.parquet: scores single pairs"),
        ({"type": "ensemble", "teachers": ["m", "examples"]}, False, "examples: scores single"),
        ({"type": "ensemble", "teachers": ["m", "n"]}, True, "the vectors of one dense encoder"),
        ({"type": "splade", "model": "m"}, True, "the vectors of one dense encoder; name one"),
        ("bm25", True, "the vectors of one dense encoder; name one"),
    ],
)
def test_what_cannot_teach_batches(spec: Any, vectors: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_batch_teacher(spec, "teacher", vectors=vectors)


def test_what_only_the_model_shows(pair_bert: Path, bert: Path) -> None:
    with pytest.raises(ConfigError, match=r"teacher.teachers.1: .*: scores single pairs"):
        make_batch_teacher(
            {"type": "ensemble", "teachers": [str(bert), str(pair_bert)]},
            where="teacher", model=str, corpus=None,
        )  # fmt: skip
    made = make_batch_teacher("bm25", where="teacher", model=str, corpus=lambda: iter(TEXTS))
    assert made.fingerprint != make_batch_teacher(
        str(bert), where="teacher", model=str, corpus=None
    ).fingerprint  # fmt: skip
