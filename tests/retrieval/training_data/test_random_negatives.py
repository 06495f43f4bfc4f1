"""Random documents and the encoder itself among the retrievers, each with its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.encoders import BM25Encoder
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.candidate_lists import random_run
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.examples import TrainingExamples

NAMES = [f"d{number:03d}" for number in range(400)]
QUERIES = {f"q{number}": f"river {number}" for number in range(20)}


@pytest.fixture
def data() -> Dataset:
    corpus = [Document(name, "", f"the river {number}") for number, name in enumerate(NAMES)]
    qrels = {query: {NAMES[place]: 1} for place, query in enumerate(QUERIES)}
    return Dataset.from_memory(corpus, QUERIES, qrels, split="train")


def config(**negatives: Any) -> TrainConfig:
    section = {
        "output": "x", "dataset": "d", "encoder": {"type": "dense", "model": "m"},
        "loss": "info_nce", "negatives": {"type": "mined", **negatives},
    }  # fmt: skip
    return checked(section, TrainConfig)


RUN = Run({query: {f"d{399 - n}": 50.0 - n for n in range(30)} for query in QUERIES}, name="run")


def made(data: Dataset, work_path: Path, step: int = 0, **negatives: Any) -> list[list[str]]:
    """The negatives of each example."""
    maker = TrainingExamples(
        config(**negatives), data, seed=1, work_path=work_path, where="",
        source=lambda names, where: RUN, judge=lambda *_: None, model=str,  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    work_path.mkdir(exist_ok=True)
    examples = maker.make(BM25Encoder(), step)
    return [[document.id for document in example.documents[1:]] for example in examples]


def test_random_documents_are_never_relevant_and_far_below(data: Dataset) -> None:
    run = random_run(data, 50, seed=1)
    for place, query in enumerate(QUERIES):
        assert len(set(run[query].doc_ids)) == 50
        assert NAMES[place] not in run[query].doc_ids
        assert max(run[query].scores) <= -1e6
    assert random_run(data, 50, seed=1)["q0"].doc_ids == run["q0"].doc_ids
    assert random_run(data, 50, seed=2)["q0"].doc_ids != run["q0"].doc_ids
    assert len(random_run(data, 4000, seed=1)["q0"].doc_ids) == 399


def test_negatives_come_in_the_shares_of_their_retrievers(data: Dataset, tmp_path: Path) -> None:
    found = made(data, tmp_path, retriever=["random", "run.trec", "self"], shares=[0.5, 0.25, 0.25],
                 per_query=8)  # fmt: skip
    first = {f"d{399 - n}" for n in range(2)}
    for own in found:
        assert len(own) == 8
        assert first <= set(own)  # the run's two best
    drawn = {name for own in found for name in own}
    assert len(drawn) > 60  # 20 queries of 4 random documents each


def test_random_negatives_alone_are_new_at_every_mining(data: Dataset, tmp_path: Path) -> None:
    one, same = (made(data, tmp_path / name, retriever="random") for name in ("a", "b"))
    later = made(data, tmp_path / "c", step=5, retriever="random")
    assert one == same
    assert one != later
    assert {len(own) for own in one} == {4}


def test_random_documents_are_beyond_the_ranks_that_are_passed_over(
    data: Dataset, tmp_path: Path
) -> None:
    found = made(data, tmp_path, retriever="random", mode="naive", range_min=50, per_query=3)
    assert {len(own) for own in found} == {3}
