"""Training files written and read in one line."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.training_data.example_sources import (
    file_examples,
)
from sluice.training.example import Example


def lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, dataset: Dataset, **options: Any) -> list[Example]:
    return file_examples({"file": str(path), **options}, dataset, 13)


def plain(example: Example) -> tuple[str, list[str], list[float], list[float]]:
    texts = [document.text for document in example.documents]
    return example.query.text, texts, list(example.labels), list(example.scores)


BGE = {"query": "q", "pos": ["yes"], "neg": ["no", "never"]}
TEVATRON = {
    "query_id": "x",
    "query": "q",
    "positive_passages": [{"docid": "p", "title": "Tall", "text": "tree"}],
    "negative_passages": [{"docid": "n", "text": "low"}, {"docid": 7, "title": "", "text": "sea"}],
}
