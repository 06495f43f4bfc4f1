"""Dense and sparse neural retrieval: train encoders, build indexes, cascade, evaluate.

The public names of ``sluice.encoders``, ``sluice.indexing``, ``sluice.training`` and
``sluice.retrieval`` that most programs need, loaded on first use; each room below them lists more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy
from sluice.encoders.foundation.processes import set_up_libraries

if TYPE_CHECKING:
    from sluice.encoders.dense.encoder import DenseEncoder as DenseEncoder
    from sluice.encoders.dense.objects.function import FunctionEncoder as FunctionEncoder
    from sluice.encoders.foundation.errors import SluiceError as SluiceError
    from sluice.encoders.foundation.progress import show_progress as show_progress
    from sluice.encoders.late_interaction.encoder import TokenEncoder as TokenEncoder
    from sluice.encoders.lexical.bm25 import BM25Encoder as BM25Encoder
    from sluice.encoders.rerankers.cross_encoder import CrossEncoder as CrossEncoder
    from sluice.encoders.splade.encoder import SpladeEncoder as SpladeEncoder
    from sluice.indexing.faiss.index import FaissIndex as FaissIndex
    from sluice.indexing.flat.index import FlatIndex as FlatIndex
    from sluice.indexing.folder import open_index as open_index
    from sluice.indexing.hits import Hits as Hits
    from sluice.indexing.inverted.index import InvertedIndex as InvertedIndex
    from sluice.indexing.tokens.index import TokenIndex as TokenIndex
    from sluice.retrieval.datasets.dataset import Dataset as Dataset, load_dataset as load_dataset
    from sluice.retrieval.documents.document import Document as Document
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
    from sluice.retrieval.studies.gate.verdict import Gate as Gate, gate as gate
else:
    _load, __dir__, __all__ = lazy(__name__)

    def __getattr__(name: str) -> object:
        """Return a public name, or what another library's name is here."""
        if name in __all__:
            return _load(name)
        from sluice.familiar import of_package

        return of_package(name)


__version__ = "0.1.0"

set_up_libraries()
