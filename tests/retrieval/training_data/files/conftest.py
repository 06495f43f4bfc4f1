"""A small train split whose texts training files may name by id."""

import pytest
from small_world import documents

from sluice.retrieval.datasets.dataset import Dataset


@pytest.fixture
def dataset() -> Dataset:
    queries = {"q1": "what is gold", "q2": "where is water", "9": "a number"}
    qrels = {"q1": {"d00": 1, "d10": 2}, "q2": {"d03": 1}, "9": {"d05": 1}}
    return Dataset.from_memory(documents(40), queries, qrels, split="train")
