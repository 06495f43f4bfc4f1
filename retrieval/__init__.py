"""Ids in, metrics out: datasets, retrievers, stages, cascades, evaluation, and the command line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.comparison import compare
    from retrieval.compatibility import Compatibility, compatibility_matrix
    from retrieval.dataset import Dataset, load_dataset
    from retrieval.dataset_report import describe
    from retrieval.dense_vectors import DenseVectors, read_dense_vectors, write_dense_vectors
    from retrieval.document import Document
    from retrieval.encoding import Encoding
    from retrieval.evaluation import Scores, evaluate
    from retrieval.experiment import Experiment, load_pipeline
    from retrieval.explanation import Explanation
    from retrieval.fusion import Fusion
    from retrieval.fusion_fit import FusionFit, fit_fusion
    from retrieval.jobs import index, mine, run, train
    from retrieval.learned_ranker import LearnedRanker
    from retrieval.measures import Measure, parse_measure
    from retrieval.normaliser import Normaliser
    from retrieval.occurrences import Hubness, hubness
    from retrieval.passages import Passages
    from retrieval.rank_overlap import RankSimilarity, compare_rankings, rank_biased_overlap
    from retrieval.ranking import Ranking, Run
    from retrieval.rerank import Rerank
    from retrieval.retriever import Retriever, Updated
    from retrieval.stage import Fuse, Hit, Stage
    from retrieval.table import Table

_HOMES = {
    "Compatibility": "retrieval.compatibility",
    "Dataset": "retrieval.dataset",
    "DenseVectors": "retrieval.dense_vectors",
    "Document": "retrieval.document",
    "Encoding": "retrieval.encoding",
    "Experiment": "retrieval.experiment",
    "Explanation": "retrieval.explanation",
    "Fuse": "retrieval.stage",
    "Fusion": "retrieval.fusion",
    "FusionFit": "retrieval.fusion_fit",
    "Hit": "retrieval.stage",
    "Hubness": "retrieval.occurrences",
    "LearnedRanker": "retrieval.learned_ranker",
    "Measure": "retrieval.measures",
    "Normaliser": "retrieval.normaliser",
    "Passages": "retrieval.passages",
    "RankSimilarity": "retrieval.rank_overlap",
    "Ranking": "retrieval.ranking",
    "Rerank": "retrieval.rerank",
    "Retriever": "retrieval.retriever",
    "Run": "retrieval.ranking",
    "Scores": "retrieval.evaluation",
    "Stage": "retrieval.stage",
    "Table": "retrieval.table",
    "Updated": "retrieval.retriever",
    "compare": "retrieval.comparison",
    "compare_rankings": "retrieval.rank_overlap",
    "compatibility_matrix": "retrieval.compatibility",
    "describe": "retrieval.dataset_report",
    "evaluate": "retrieval.evaluation",
    "fit_fusion": "retrieval.fusion_fit",
    "hubness": "retrieval.occurrences",
    "index": "retrieval.jobs",
    "load_dataset": "retrieval.dataset",
    "load_pipeline": "retrieval.experiment",
    "mine": "retrieval.jobs",
    "parse_measure": "retrieval.measures",
    "rank_biased_overlap": "retrieval.rank_overlap",
    "read_dense_vectors": "retrieval.dense_vectors",
    "run": "retrieval.jobs",
    "train": "retrieval.jobs",
    "write_dense_vectors": "retrieval.dense_vectors",
}

__all__ = [
    "Compatibility",
    "Dataset",
    "DenseVectors",
    "Document",
    "Encoding",
    "Experiment",
    "Explanation",
    "Fuse",
    "Fusion",
    "FusionFit",
    "Hit",
    "Hubness",
    "LearnedRanker",
    "Measure",
    "Normaliser",
    "Passages",
    "RankSimilarity",
    "Ranking",
    "Rerank",
    "Retriever",
    "Run",
    "Scores",
    "Stage",
    "Table",
    "Updated",
    "compare",
    "compare_rankings",
    "compatibility_matrix",
    "describe",
    "evaluate",
    "fit_fusion",
    "hubness",
    "index",
    "load_dataset",
    "load_pipeline",
    "mine",
    "parse_measure",
    "rank_biased_overlap",
    "read_dense_vectors",
    "run",
    "train",
    "write_dense_vectors",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
