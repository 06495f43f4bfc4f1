"""Ids in, metrics out: datasets, retrievers, stages, cascades, evaluation, and the command line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.comparison import compare
    from retrieval.dataset import Dataset, load_dataset
    from retrieval.dataset_report import describe
    from retrieval.document import Document
    from retrieval.evaluation import Scores, evaluate
    from retrieval.experiment import Experiment, load_pipeline
    from retrieval.explanation import Explanation
    from retrieval.fuse import Fuse
    from retrieval.jobs import index, mine, run, train
    from retrieval.measures import Measure, parse_measure
    from retrieval.ranking import Ranking, Run
    from retrieval.rerank import Rerank
    from retrieval.retriever import Retriever, Updated
    from retrieval.stage import Hit, Stage
    from retrieval.table import Table

_HOMES = {
    "Dataset": "retrieval.dataset",
    "Document": "retrieval.document",
    "Experiment": "retrieval.experiment",
    "Explanation": "retrieval.explanation",
    "Fuse": "retrieval.fuse",
    "Hit": "retrieval.stage",
    "Measure": "retrieval.measures",
    "Ranking": "retrieval.ranking",
    "Rerank": "retrieval.rerank",
    "Retriever": "retrieval.retriever",
    "Run": "retrieval.ranking",
    "Scores": "retrieval.evaluation",
    "Stage": "retrieval.stage",
    "Table": "retrieval.table",
    "Updated": "retrieval.retriever",
    "compare": "retrieval.comparison",
    "describe": "retrieval.dataset_report",
    "evaluate": "retrieval.evaluation",
    "index": "retrieval.jobs",
    "load_dataset": "retrieval.dataset",
    "load_pipeline": "retrieval.experiment",
    "mine": "retrieval.jobs",
    "parse_measure": "retrieval.measures",
    "run": "retrieval.jobs",
    "train": "retrieval.jobs",
}

__all__ = [
    "Dataset",
    "Document",
    "Experiment",
    "Explanation",
    "Fuse",
    "Hit",
    "Measure",
    "Ranking",
    "Rerank",
    "Retriever",
    "Run",
    "Scores",
    "Stage",
    "Table",
    "Updated",
    "compare",
    "describe",
    "evaluate",
    "index",
    "load_dataset",
    "load_pipeline",
    "mine",
    "parse_measure",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
