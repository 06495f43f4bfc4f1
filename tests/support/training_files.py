"""Training files written and read in one line."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.training_data.example_sources import (
    file_examples,
)
from sluice.retrieval.training_data.teachers.scoring_tasks import read_scores
from sluice.training.negatives.false_negatives import JudgedPair
from sluice.training.protocol import Example


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


def scores_in(path: Path) -> dict[tuple[str, str], float]:
    return {
        (query, document): score
        for queries, documents, scores in read_scores(path)
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True)
    }


class LengthTeacher:
    """Scores a pair by the length of its document; counts what it was asked."""

    needs_texts = True

    def __init__(self, name: str = "lengths", factor: float = 1.0) -> None:
        self.name = name
        self.factor = factor
        self.fingerprint = f"{name} {factor}"
        self.seen = 0

    def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
        self.seen += len(pairs)
        return [self.factor * len(pair.document) for pair in pairs]
