"""Other tools and Sluice: their retrievers, evaluations and records, and files for databases.

May import: `retrieval.retrievers` and below, and `retrieval.exchange`. Only verbs import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.exchange.adapters.evaluation import (
        MtebSearch as MtebSearch,
        from_ir_qrels as from_ir_qrels,
        from_ranx_qrels as from_ranx_qrels,
        from_ranx_run as from_ranx_run,
        from_scored_docs as from_scored_docs,
        to_ir_qrels as to_ir_qrels,
        to_ranx_qrels as to_ranx_qrels,
        to_ranx_run as to_ranx_run,
        to_scored_docs as to_scored_docs,
    )
    from sluice.retrieval.exchange.adapters.retrievers import (
        haystack_retriever as haystack_retriever,
        langchain_retriever as langchain_retriever,
        llama_index_retriever as llama_index_retriever,
        pyterrier_transformer as pyterrier_transformer,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
