"""Entries: whitening and cross-entropy against plain float64 formulas; a whole training."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vector_batches import examples, made, random_batch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import fit
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.math.reduction import whitened
from sluice.training.losses.own.entries import Entries
from sluice.training.protocol import Example, Text

DIM = 4


class Looked:
    """Vectors by a table, or random ones, the same for a text each time."""

    def __init__(self, table: dict[str, Sequence[float]] | None = None) -> None:
        self.table = table or {}

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        rows = [
            self.table.get(text, np.random.default_rng(list(text.encode())).normal(size=DIM) + 1)
            for text in texts
        ]
        return np.array(rows, np.float32)

    encode_queries = encode_documents


def defined(text: str, entry: str, name: str | None = None) -> Example:
    return Example(Text(text, text), (Text(name or entry, entry),))


def bound(
    given: list[Example], table: dict[str, Sequence[float]] | None = None, **settings: Any
) -> Entries:
    loss: Entries = made("entries", **{"of": "entry", **settings})
    loss.bind(Looked(table), 0)
    loss.bind_examples(given)
    return loss


def many() -> tuple[list[Example], VectorBatch]:
    """Two positives and a negative for each of 5 queries, of which 3 are a batch."""
    given = examples(5, negatives=1, positives=2)
    # Query 1 has another relevant entry, which no batch brings for it.
    given[1] = replace(given[1], relevant=frozenset({"d10", "d11", "d40"}))
    return given, random_batch(given[:3], dim=DIM)


def by_hand(given: list[Example], batch: VectorBatch, sides: str, whitening: bool) -> float:
    """The loss by lists, with weights of 1, 2.5 and 0."""
    texts = [d.text for e in given for d in e.documents if d.text.startswith("document")]
    rows = Looked().encode_documents(texts).astype(np.float64)
    if whitening:
        mean = rows.mean(axis=0)
        covariance = sum(np.outer(row - mean, row - mean) for row in rows) / len(rows)
        power = np.linalg.inv(_root(np.asarray(covariance)))
        rows = np.array([power @ (row - mean) for row in rows])
    fixed = dict(zip(texts, rows.tolist(), strict=True))
    names = {d.id: d.text for e in given for d in e.documents}

    def entropy(vector: list[float], right: str, without: set[str]) -> float:
        logits = {
            text: sum(a * b for a, b in zip(vector, row, strict=True))
            / math.hypot(*vector) / math.hypot(*row) / 0.2
            for text, row in fixed.items() if text == right or text not in without
        }  # fmt: skip
        return math.log(sum(map(math.exp, logits.values()))) - logits[right]

    total, whole, column = 0.0, 0.0, 0
    for example, vector, weight in zip(
        given, batch.queries.tolist(), (1.0, 2.5, 0.0), strict=False
    ):
        own = [d.text for d in example.documents if d.text.startswith("document")]
        alike = {*own, *(names[name] for name in example.relevant)}
        if sides != "document":
            total += weight * sum(entropy(vector, text, alike) for text in own) / len(own)
            whole += weight
        for document in example.documents:
            if sides != "query" and document.text in own:
                total += weight * entropy(batch.documents[column].tolist(), document.text, set())
                whole += weight
            column += 1
    return float(total / whole)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric square root by Denman and Beavers' iteration."""
    root, inverse = matrix, np.eye(len(matrix))
    for _ in range(40):
        root, inverse = (root + np.linalg.inv(inverse)) / 2, (inverse + np.linalg.inv(root)) / 2
    return root


def test_whitened_vectors_have_no_mean_and_no_covariance_but_one() -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 6)) @ np.diag([9, 3, 1, 1, 0.1, 5]) + 4
    white = whitened(vectors, "entries", "stop")
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(white.T @ white / 50, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(whitened(white, "entries", "stop"), white, atol=1e-10)
    flat = whitened(vectors - vectors.mean(axis=1, keepdims=True), "entries", "stop")
    np.testing.assert_allclose(flat.T @ flat / 50, np.eye(6) - 1 / 6, atol=1e-8)


@pytest.mark.parametrize("sides", ["both", "query", "document"])
@pytest.mark.parametrize("whitening", [True, False])
def test_the_formula(sides: Any, whitening: bool) -> None:
    given, batch = many()
    loss = bound(given, temperature=0.2, sides=sides, whitening=whitening)
    found = loss.over(replace(batch, weights=torch.tensor([1.0, 2.5, 0.0])))
    assert found.item() == pytest.approx(by_hand(given, batch, sides, whitening), rel=1e-6)


def test_the_gradient() -> None:
    given, batch = many()
    loss = bound(given, temperature=0.5)

    def value(queries: Tensor, documents: Tensor) -> Tensor:
        return loss.over(batch.with_vectors(queries, documents))

    assert torch.autograd.gradcheck(value, (batch.queries, batch.documents))


def test_one_entry_has_one_class_however_many_define_it() -> None:
    given = [defined("a bird", "Owl", "1"), defined("it hoots", " owl", "2"),
             *(defined(f"number {n}", f"n{n}") for n in range(6))]  # fmt: skip
    loss = bound(given)
    assert loss._vectors is not None
    assert loss._vectors.shape == (7, DIM)
    batch = random_batch(given[:2], dim=DIM)
    vectors = batch.queries[:1].expand(2, -1), batch.documents[:1].expand(2, -1)
    both = loss.over(batch.with_vectors(*vectors))
    one = random_batch(given[:1], dim=DIM).with_vectors(vectors[0][:1], vectors[1][:1])
    assert both.item() == pytest.approx(loss.over(one).item(), rel=1e-9)


def test_an_entry_lies_at_the_mean_of_its_definitions() -> None:
    given = [defined("a bird", "owl", "1"), defined("it hoots", "Owl", "2"),
             defined("it hoots", "owl", "3"),  # said twice
             *(defined(f"number {n}", f"n{n}") for n in range(3)),
             defined("number 1", "one")]  # fmt: skip
    found = bound(given, of="definitions", whitening=False).state()["vectors"].numpy()
    texts = [["a bird", "it hoots"], ["number 0"], ["number 1"], ["number 2"]]
    means = np.array([Looked().encode_queries(each).astype(np.float64).mean(0) for each in texts])
    np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1)[:, None], atol=1e-6)


def test_no_entry_of_a_query_is_held_against_its_other_entries() -> None:
    plain = [defined(f"number {n}", f"n{n}") for n in range(6)]
    twice = [Example(Text("again", "Number 1"), (Text("n2", "n2"),)), *plain]
    batch = random_batch(plain[1:2], dim=DIM)
    one, other = (bound(each, sides="query", temperature=1.0) for each in (plain, twice))
    assert one._vectors is not None
    vectors = torch.from_numpy(whitened(Looked().encode_documents(
        [e.documents[0].text for e in plain]).astype(np.float64), "", ""))  # fmt: skip
    logits = torch.cosine_similarity(batch.queries, vectors)
    whole, less = logits.logsumexp(0), logits[[0, 1, 3, 4, 5]].logsumexp(0)
    assert one.over(batch).item() == pytest.approx((whole - logits[1]).item(), rel=1e-6)
    assert other.over(batch).item() == pytest.approx((less - logits[1]).item(), rel=1e-6)


def test_entries_with_the_same_definitions_are_one() -> None:
    given = [defined(f"number {n}", f"n{n}") for n in range(6)]
    loss = bound([*given, defined("number 1", "one")], of="definitions")
    batch, own = random_batch(given[1:2], dim=DIM), bound(given, of="definitions")
    assert loss.over(batch).item() == pytest.approx(own.over(batch).item(), rel=1e-9)
    with pytest.raises(DataError, match="'n1' and 'n2' have the same vector, and no text can be"):
        bound(given, {"number 1": [1.0, 2, 3, 4], "number 2": [1.0, 2, 3, 4]}, of="definitions")


def test_what_cannot_be_classified_is_refused() -> None:
    plain = [defined(f"number {n}", f"n{n}") for n in range(6)]
    with pytest.raises(DataError, match=r"no vector for the entry 'n2'; drop it from the posit"):
        bound(plain, {"n2": [0.0] * DIM})
    with pytest.raises(DataError, match=r"no vector for the entry 'n2'"):
        bound(plain, {"n2": [math.nan] * DIM})
    with pytest.raises(DataError, match=r"'n1' and 'n4' have the same vector, and no text can be"):
        bound(plain, {"n1": [1.0, 2, 3, 4], "n4": [2.0, 4, 6, 8]})
    with pytest.raises(DataError, match=r"'7' is 'n1' in one example and 'n2' in another; give ev"):
        bound([defined("a", "n1", "7"), defined("b", "n2", "7")])
    with pytest.raises(DataError, match=r"4 vectors of 4 dimensions cannot be whitened.*: false"):
        bound(plain[:4])
    assert bound(plain[:4], whitening=False)._vectors is not None
    loss = bound(plain)
    with pytest.raises(ConfigError, match="have 4 dimensions and these vectors 8; put it beside"):
        loss.over(random_batch(plain[:2]))
    with pytest.raises(DataError, match=r"checkpoint has 6 entries and these examples 5; train in"):
        bound(plain[:5]).restore(loss.state())
    with pytest.raises(ConfigError, match="call bind and bind_examples before the first batch"):
        made("entries").over(random_batch(plain[:2]))


def test_texts_that_are_no_entries_do_not_count() -> None:
    given, batch = many()
    loss = bound(given)
    documents = batch.documents.detach().clone()
    documents[2] *= -3  # a negative
    moved = batch.with_vectors(batch.queries, documents)
    assert loss.over(moved).item() == loss.over(batch).item()
    unseen = random_batch([defined("a stranger", "unseen")], dim=DIM)  # refreshed examples' own
    assert loss.over(unseen).item() == 0.0


def test_a_training_learns_its_entries_and_resumes(tiny: ModuleType, tmp_path: Path) -> None:
    class Encoding(tiny.Dense):  # type: ignore[misc, name-defined]
        def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
            self.module.eval()
            with torch.no_grad():
                vectors: np.ndarray = self.embed(self.tokenize(texts, "document"), "d").numpy()
            return vectors

        encode_queries = encode_documents

    given = [defined(f"word{n} means topic{n}", f"topic{n} name{n}") for n in range(24)]

    def trained(output: Path, steps: int = 4, **loss: Any) -> tuple[Any, Any]:
        encoder = Encoding(dropout=0.0)
        job = {"max_steps": steps, "per_device_train_batch_size": 8, "learning_rate": 3e-3,
               "save_steps": 2, "logging_steps": 1, "save_total_limit": 5}  # fmt: skip
        return encoder, fit(encoder, given, made("entries", **loss), output=output, trainer=job)

    whole, report = trained(tmp_path / "whole")
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert losses[-1] < losses[0]
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    resumed, again = trained(tmp_path / "killed")
    assert again.resumed_step == 2
    for one, two in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, two)
