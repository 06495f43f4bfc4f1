"""Ids in, metrics out: datasets, retrievers, stages, cascades, evaluation, and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoders.lazy import lazy

if TYPE_CHECKING:
    from retrieval.comparison import compare as compare
    from retrieval.compatibility import Compatibility as Compatibility
    from retrieval.compatibility import compatibility_matrix as compatibility_matrix
    from retrieval.dataset import Dataset as Dataset
    from retrieval.dataset import load_dataset as load_dataset
    from retrieval.dataset_report import describe as describe
    from retrieval.dense_vectors import DenseVectors as DenseVectors
    from retrieval.dense_vectors import read_dense_vectors as read_dense_vectors
    from retrieval.dense_vectors import write_dense_vectors as write_dense_vectors
    from retrieval.document import Document as Document
    from retrieval.encoding import Encoding as Encoding
    from retrieval.evaluation import Scores as Scores
    from retrieval.evaluation import evaluate as evaluate
    from retrieval.experiment import Experiment as Experiment
    from retrieval.experiment import load_pipeline as load_pipeline
    from retrieval.explanation import Explanation as Explanation
    from retrieval.fusion import Fusion as Fusion
    from retrieval.fusion_fit import FusionFit as FusionFit
    from retrieval.fusion_fit import fit_fusion as fit_fusion
    from retrieval.jobs import index as index
    from retrieval.jobs import mine as mine
    from retrieval.jobs import run as run
    from retrieval.jobs import train as train
    from retrieval.learned_ranker import LearnedRanker as LearnedRanker
    from retrieval.measures import Measure as Measure
    from retrieval.measures import parse_measure as parse_measure
    from retrieval.normaliser import Normaliser as Normaliser
    from retrieval.occurrences import Hubness as Hubness
    from retrieval.occurrences import hubness as hubness
    from retrieval.passages import Passages as Passages
    from retrieval.rank_overlap import RankSimilarity as RankSimilarity
    from retrieval.rank_overlap import compare_rankings as compare_rankings
    from retrieval.rank_overlap import rank_biased_overlap as rank_biased_overlap
    from retrieval.ranking import Ranking as Ranking
    from retrieval.ranking import Run as Run
    from retrieval.rerank import Rerank as Rerank
    from retrieval.retriever import Retriever as Retriever
    from retrieval.retriever import Updated as Updated
    from retrieval.stage import Fuse as Fuse
    from retrieval.stage import Hit as Hit
    from retrieval.stage import Stage as Stage
    from retrieval.table import Table as Table
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "retrieval.comparison": ["compare"],
            "retrieval.compatibility": ["Compatibility", "compatibility_matrix"],
            "retrieval.dataset": ["Dataset", "load_dataset"],
            "retrieval.dataset_report": ["describe"],
            "retrieval.dense_vectors": [
                "DenseVectors",
                "read_dense_vectors",
                "write_dense_vectors",
            ],
            "retrieval.document": ["Document"],
            "retrieval.encoding": ["Encoding"],
            "retrieval.evaluation": ["Scores", "evaluate"],
            "retrieval.experiment": ["Experiment", "load_pipeline"],
            "retrieval.explanation": ["Explanation"],
            "retrieval.fusion": ["Fusion"],
            "retrieval.fusion_fit": ["FusionFit", "fit_fusion"],
            "retrieval.jobs": ["index", "mine", "run", "train"],
            "retrieval.learned_ranker": ["LearnedRanker"],
            "retrieval.measures": ["Measure", "parse_measure"],
            "retrieval.normaliser": ["Normaliser"],
            "retrieval.occurrences": ["Hubness", "hubness"],
            "retrieval.passages": ["Passages"],
            "retrieval.rank_overlap": ["RankSimilarity", "compare_rankings", "rank_biased_overlap"],
            "retrieval.ranking": ["Ranking", "Run"],
            "retrieval.rerank": ["Rerank"],
            "retrieval.retriever": ["Retriever", "Updated"],
            "retrieval.stage": ["Fuse", "Hit", "Stage"],
            "retrieval.table": ["Table"],
        },
    )
