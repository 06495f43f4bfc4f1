"""Ids in, metrics out: datasets, retrievers, stages, cascades, evaluation, and the command line.

May import: `training`, `indexing`, `encoders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset as Dataset, load_dataset as load_dataset
    from sluice.retrieval.documents.document import Document as Document
    from sluice.retrieval.documents.readers import as_documents as as_documents
    from sluice.retrieval.evaluation.comparison import compare as compare
    from sluice.retrieval.evaluation.scores import Scores as Scores, evaluate as evaluate
    from sluice.retrieval.evaluation.table import Table as Table
    from sluice.retrieval.experiments.experiment import (
        Experiment as Experiment,
        load_pipeline as load_pipeline,
    )
    from sluice.retrieval.jobs import index as index, mine as mine, run as run, train as train
    from sluice.retrieval.pipelines.hit import Hit as Hit, Passage as Passage
    from sluice.retrieval.pipelines.operators import Fuse as Fuse
    from sluice.retrieval.pipelines.rerank import Rerank as Rerank
    from sluice.retrieval.pipelines.stage import Stage as Stage
    from sluice.retrieval.retrievers.corpus.encoding import Encoding as Encoding
    from sluice.retrieval.retrievers.corpus.passages import Passages as Passages
    from sluice.retrieval.retrievers.retriever import Retriever as Retriever
    from sluice.retrieval.runs.run import Ranking as Ranking, Run as Run
    from sluice.retrieval.stages.context import Context as Context, pack as pack
    from sluice.retrieval.stages.rerankers.similarity import MaxSim as MaxSim
    from sluice.retrieval.studies.gate.verdict import Gate as Gate, gate as gate
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
