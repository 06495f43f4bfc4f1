"""Dev evaluation encodes in the arithmetic that training has."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from small_world import documents

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.backends import devices
from sluice.encoders.towers import TowerEncoder
from sluice.retrieval import Dataset, Run
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.experiments.training.dev_evaluation import dev_evaluation

DOCUMENTS = documents()
DATA = Dataset.from_memory(DOCUMENTS, {"q": "gold river"}, {"q": {DOCUMENTS[3].id: 1}}, split="dev")
SECTION = DevSection(measures=["RR"])


@pytest.fixture(params=[True, False], ids=["with bfloat16", "without"])
def has(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(devices, "has_bfloat16", lambda _: request.param)
    return bool(request.param)


@pytest.mark.parametrize("towers", [True, False])
def test_in_bfloat16_where_the_processor_has_it(bert: Path, has: bool, towers: bool) -> None:
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
