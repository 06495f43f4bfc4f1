"""HOC against a plain float64 formula, with classes written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from vector_batches import made, random_batch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.distillation.vectors import HOC, same_class
from sluice.training.protocol import Example, Text

# q1 has two relevant documents; a is relevant to q0 and q2; n stands beside two queries.
EXAMPLES = [
    Example(Text("q0", "one"), (Text("a", "A"), Text("n", "N")), labels=(1.0, 0.0)),
    Example(Text("q1", "two"), (Text("b", "B"), Text("c", "C"), Text("n", "N")),
            labels=(1.0, 1.0, 0.0)),
    Example(Text("q2", "three"), (Text("a", "A"), Text("m", "M")), labels=(1.0, 0.0),
            relevant=frozenset({"m"})),
]  # fmt: skip
NAMES = ["q0", "q1", "q2", "a", "n", "b", "c", "n", "a", "m"]
ALIKE = [{"q0", "q2", "a"}, {"q1", "b", "c"}, {"n"}]


def alike(one: int, other: int) -> bool:
    """By hand; m is known to be relevant to q2 but is no positive of the batch."""
    pair = {NAMES[one], NAMES[other]}
    return len(pair) == 1 or any(pair <= group for group in ALIKE) or pair == {"q2", "m"}


def batch(**changes: Any) -> VectorBatch:
    made = random_batch(EXAMPLES)
    torch.manual_seed(5)
    goals = torch.randn(3, 8, dtype=torch.float64), torch.randn(7, 8, dtype=torch.float64)
    return replace(made, teacher_vectors=goals, **changes)


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / (math.hypot(*one) * math.hypot(*other))


def straight(batch: VectorBatch, sides: str, temperature: float, weights: list[float]) -> float:
    assert batch.teacher_vectors is not None
    own = batch.queries.tolist() + batch.documents.tolist()
    old = [row for side in batch.teacher_vectors for row in side.tolist()]
    owned = weights + [weights[owner] for owner in batch.owners.tolist()]
    texts = {"both": range(10), "query": range(3), "document": range(3, 10)}[sides]
    total = 0.0
    for text in texts:
        scores = [cosine(own[text], vector) / temperature for vector in old]
        counted = [s for y, s in enumerate(scores) if y == text or not alike(text, y)]
        total += owned[text] * (math.log(sum(map(math.exp, counted))) - scores[text])
    return total / sum(owned[text] for text in texts)


def test_classes() -> None:
    # N is masked for q2, whose own M it is beside: n has the text of no positive of q2, so only
    # what the mask says of pairs counts beside the groups.
    found = same_class(batch())
    masked = batch().mask
    for one in range(10):
        for other in range(10):
            pair = sorted((one, other))
            left_out = pair[0] < 3 <= pair[1] and not masked[pair[0], pair[1] - 3]
            assert bool(found[one, other]) == (alike(one, other) or left_out), (one, other)


@pytest.mark.parametrize("sides", ["both", "query", "document"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.5, 0.0]])
def test_the_formula(sides: Any, weights: list[float] | None) -> None:
    given = batch(weights=None if weights is None else torch.tensor(weights))
    given = replace(given, mask=torch.ones_like(given.mask))
    given.mask[2, 6] = False  # m is relevant to q2
    expected = straight(given, sides, 0.25, weights or [1.0] * 3)
    assert HOC(0.25, sides).over(given).item() == pytest.approx(expected, rel=1e-10)


def test_what_is_left_out_has_no_share() -> None:
    """The authors' code leaves e^0 in the sum for each text of the class; here there is nothing."""
    given = batch()
    assert given.teacher_vectors is not None
    queries, documents = given.teacher_vectors
    moved = documents.clone()
    moved[0], moved[5] = -moved[0], 3 * moved[1]  # both columns of a, of the class of q0 and q2
    other = replace(given, teacher_vectors=(queries, moved))
    rows = [replace(each, weights=torch.tensor([1.0, 0.0, 0.0])) for each in (given, other)]
    assert HOC(sides="query").over(rows[0]).item() == HOC(sides="query").over(rows[1]).item()
    alone = replace(given, mask=torch.zeros_like(given.mask), labels=torch.ones_like(given.labels))
    assert HOC().over(alone).item() == pytest.approx(0.0, abs=1e-12)


def test_the_gradient() -> None:
    given = batch()

    def value(queries: Tensor, documents: Tensor) -> Tensor:
        return HOC(0.3).over(given.with_vectors(queries, documents))

    assert torch.autograd.gradcheck(value, (given.queries, given.documents))


def test_it_is_least_where_the_new_vectors_are_the_old_ones_apart() -> None:
    given = batch()
    eye = torch.eye(10, dtype=torch.float64)
    found = replace(given, queries=eye[:3], documents=eye[3:], teacher_vectors=(eye[:3], eye[3:]))
    assert HOC(0.01).over(found).item() < 1e-12


def test_what_does_not_fit_is_said() -> None:
    given = batch()
    with pytest.raises(DataError, match="hoc: the batch has no teacher's vectors; name a dense"):
        HOC().over(replace(given, teacher_vectors=None))
    short = torch.randn(3, 4), torch.randn(7, 4)
    with pytest.raises(ConfigError, match=r"8 dimensions and the teacher's 4; set encoder.project"):
        HOC().over(replace(given, teacher_vectors=short))
    with pytest.raises(ConfigError, match=r"hoc.sides: 'queries'|sides: 'queries'; expected one"):
        made("hoc", sides="queries")
