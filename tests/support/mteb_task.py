"""A retrieval task of mteb over data at hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

from sluice.retrieval import Document


class LocalTask(AbsTaskRetrieval):
    """Queries and judgements over documents; ``top_ranked`` makes it a reranking task."""

    metadata = TaskMetadata(
        name="Local", description="A task at hand.", type="Retrieval", category="t2t",
        modalities=["text"], dataset={"path": "local", "revision": "1"}, reference=None,
        eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_10", date=None,
        domains=None, task_subtypes=None, license=None, annotations_creators=None, dialect=None,
        sample_creation=None, bibtex_citation=None,
    )  # fmt: skip

    def __init__(
        self,
        documents: Sequence[Document],
        queries: Sequence[Mapping[str, Any]],
        qrels: Mapping[str, Mapping[str, int]],
        *,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        ignore_identical_ids: bool = False,
    ) -> None:
        super().__init__()
        self.ignore_identical_ids = ignore_identical_ids
        rows = [{"id": d.id, "title": d.title, "text": d.text} for d in documents]
        corpus = datasets.Dataset.from_list(rows)
        split = {
            "corpus": corpus,
            "queries": datasets.Dataset.from_list(list(queries)),
            "relevant_docs": {query: dict(grades) for query, grades in qrels.items()},
            "top_ranked": top_ranked,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True
