"""A stage as the retriever of LangChain, LlamaIndex or Haystack, or with PyTerrier's operators.

Their packages are optional: ``pip install 'sluice-ir[interop]'``. PyTerrier needs no Java here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, DataError, needed_package
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.documents.document import Value
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import DEPTH, as_queries
from sluice.retrieval.runs.run import Ranking, Run, check_unique


def pyterrier_transformer(stage: Stage, k: int = DEPTH) -> Any:
    """Return a transformer of ``stage``: from ``qid, query`` to ``qid, query, docno, score, rank``.

    A retriever or pipeline finds ``k`` documents for each query; of a frame of results it reads the
    queries alone. A reranker takes such a frame in its order (``rank``, else ``score``, else row by
    row), reads texts from its own document store or the column ``text``, and keeps all columns.
    Rows come best first with ranks from 0; scores are the run's (``Run.to_dict``). Raises
    ``MissingPackageError``.
    """
    if not isinstance(stage, Stage):
        raise ConfigError(f"expected a stage, as a Retriever, got {type(stage).__name__}")
    return _transformer_class()(stage, whole_number(k, "k", 1))


@functools.cache
def _transformer_class() -> Any:
    with needed_package("python-terrier", "interop", "a PyTerrier transformer"):
        import pyterrier as pt

    class SluiceTransformer(pt.Transformer):  # type: ignore[misc]
        """A stage on data frames."""

        def __init__(self, stage: Stage, k: int) -> None:
            self.stage, self.k = stage, k

        def transform(self, inp: Any) -> Any:
            needs = ["docno"] if self.stage.needs_candidates else []
            pt.validate.columns(inp, includes=["qid", "query", *needs])
            return _results(self.stage, inp, self.k)

        def __repr__(self) -> str:
            return f"SluiceTransformer({self.stage.name!r}, k={self.k})"

    return SluiceTransformer


def transformed(stage: Stage, frame: Any, k: int | None = None) -> Any:
    """Return PyTerrier's results of ``stage`` for a frame, without PyTerrier, see ``transform``.

    A frame without ``qid`` numbers its queries from 0. Raises ``ConfigError`` for other columns.
    """
    import pandas as pd

    if not hasattr(frame, "columns"):
        queries = as_queries(frame)
        frame = pd.DataFrame({"qid": list(queries), "query": list(queries.values())})
    inp = pd.DataFrame({name: list(frame[name]) for name in frame.columns if name != "docid"})
    needs = {"query", "docno"} if stage.needs_candidates else {"query"}
    if missing := needs - set(inp):
        raise ConfigError(f"transform: no column {', '.join(missing)}; expected qid, query")
    if "qid" not in inp:
        inp.insert(0, "qid", [str(number) for number in range(len(inp))])
    inp["qid"] = inp["qid"].astype(str)
    results = _results(stage, inp, DEPTH if k is None else k)
    results.insert(1, "docid", results["docno"])
    led = ["qid", "docid", "docno", "rank", "score", "query"]
    return results[[*led, *(name for name in results if name not in led)]]


def _results(stage: Stage, inp: Any, k: int) -> Any:
    needs = ["docno"] if stage.needs_candidates else []
    queries = queries_of(inp)
    if needs and "text" in inp:
        stage = stage.attached(FrameTexts(inp))
    depth, candidates = (None, run_of(inp)) if needs else (k, None)
    run = stage.run(queries, candidates, depth)
    columns = [name for name in inp if name.startswith(("q", "stashed_results_"))]
    known = inp if needs else inp[columns].drop_duplicates("qid")
    return frame_of(run if depth is None else run.top(depth), known, on=["qid", *needs])


LED = ["qid", "query", "docno", "score", "rank"]


class FrameTexts:
    """The texts of documents in a frame with the columns ``docno`` and ``text``."""

    def __init__(self, frame: Any) -> None:
        self._texts = dict(zip(frame["docno"], frame["text"], strict=True))

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the texts of documents, in the order of the ids."""
        return [self._texts[name] for name in document_ids]


def queries_of(frame: Any) -> dict[str, str]:
    """Return ``{qid: query}`` of a frame; two texts for one ``qid`` are a ``DataError``."""
    queries: dict[str, str] = {}
    for query, text in zip(frame["qid"], frame["query"], strict=True):
        if queries.setdefault(query, text) != text:
            raise DataError(
                f"qid {query!r}: two texts, {queries[query]!r} and {text!r}; expected one"
            )
    return queries


def run_of(frame: Any) -> Run:
    """Return the results in a frame by query, in the order of ``rank``, else ``score``, else rows.

    Without scores, places from the end are the scores. A document twice is a ``DataError``.
    """
    by = "rank" if "rank" in frame else "score" if "score" in frame else None
    if by is not None:
        frame = frame.sort_values(by, ascending=by == "rank", kind="stable")
    rankings = {}
    for query, rows in frame.groupby("qid", sort=False):
        names = list(rows["docno"])
        check_unique(query, names)
        scores = list(rows["score"]) if "score" in rows else range(len(names), 0, -1)
        rankings[query] = Ranking(names, scores)
    return Run(rankings)


def frame_of(run: Run, known: Any, on: Sequence[str]) -> Any:
    """Return a run as a frame, best first, joined by ``on`` with the other columns of ``known``."""
    import pandas as pd

    rows = [
        (query, name, score, rank)
        for query, hits in run.to_dict().items()
        for rank, (name, score) in enumerate(hits.items())
    ]
    ranked = pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])
    ranked = ranked.astype({"score": "float64", "rank": "int64"})
    if not rows:  # of no text in either, and columns of no type do not join
        ranked = ranked.astype({name: known[name].dtype for name in on})
    joined = ranked.merge(known.drop(columns=["score", "rank"], errors="ignore"), on=list(on))
    return joined[[*LED, *(name for name in joined if name not in LED)]]


class Result(NamedTuple):
    """One document: its full text, and its metadata for JSON.

    ``metadata`` is the document's own, and ``id``, ``title`` (empty where the stage has no document
    store) and ``score``, which take the place of its keys of these names.
    """

    text: str
    metadata: dict[str, Any]


def check_searches(stage: Any) -> Stage:
    """Return ``stage`` if it answers queries alone, ``ConfigError`` otherwise."""
    if not isinstance(stage, Stage):
        raise ConfigError(
            f"expected a stage (a Retriever, or load_pipeline's), got {type(stage).__name__}"
        )
    if stage.needs_candidates:
        raise ConfigError(
            f"{stage.name}: needs candidates, but gets none here; put a retriever before it: "
            "retriever >> reranker"
        )
    return stage


def find(stage: Stage, query: str, k: int) -> list[Result]:
    """Return the ``k`` best documents for a query, best first."""
    hits = []
    for hit in stage.search(query, k):
        metadata = {key: _plain(value) for key, value in hit.metadata.items()}
        own = {"id": hit.doc_id, "title": hit.title, "score": hit.score}
        hits.append(Result(hit.full_text, {**metadata, **own}))
    return hits


def _plain(value: Value) -> Value:
    return value if isinstance(value, str) or not isinstance(value, Sequence) else list(value)


def langchain_retriever(stage: Stage, k: int = 10) -> Any:
    """Return a LangChain retriever of ``stage``: ``invoke(query)``, or ``invoke(query, k=5)``.

    It returns ``Document``s, best first: ``id``, ``page_content`` (title and text, as they are
    encoded and reranked) and ``metadata`` with ``id``, ``title``, ``score`` and the document's own.
    Raises ``MissingPackageError``, and ``ConfigError`` for a stage that needs candidates.
    """
    stage, k = check_searches(stage), whole_number(k, "k", 1)
    return _langchain_class()(stage=stage, k=k)


@functools.cache
def _langchain_class() -> Any:
    with needed_package("langchain-core", "interop", "a LangChain retriever"):
        from langchain_core.documents import Document
        from langchain_core.retrievers import BaseRetriever

    class SluiceRetriever(BaseRetriever):  # type: ignore[misc]
        """The documents a stage finds."""

        stage: Any
        k: int

        def _get_relevant_documents(
            self, query: str, *, run_manager: Any, k: int | None = None
        ) -> list[Any]:
            return [
                Document(id=metadata["id"], page_content=text, metadata=metadata)
                for text, metadata in find(self.stage, query, self.k if k is None else k)
            ]

    return SluiceRetriever


UNSHOWN = ["id", "title", "score"]  # the title is part of the text


def llama_index_retriever(stage: Stage, k: int = 10) -> Any:
    """Return a LlamaIndex retriever of ``stage``: ``retrieve(query)``, ``await aretrieve(query)``.

    It returns ``NodeWithScore``s, best first, of ``TextNode``s: ``node_id`` the document's id, its
    title and text, and ``metadata`` with ``id``, ``title``, ``score`` and the document's own; these
    three are not shown to language models. Raises ``MissingPackageError``, and ``ConfigError`` for
    a stage that needs candidates.
    """
    stage, k = check_searches(stage), whole_number(k, "k", 1)
    return _llama_index_class()(stage, k)


@functools.cache
def _llama_index_class() -> Any:
    with needed_package("llama-index-core", "interop", "a LlamaIndex retriever"):
        from llama_index.core.retrievers import BaseRetriever
        from llama_index.core.schema import NodeWithScore, TextNode

    class SluiceRetriever(BaseRetriever):  # type: ignore[misc]
        """The nodes of the documents a stage finds."""

        def __init__(self, stage: Stage, k: int) -> None:
            super().__init__()
            self.stage, self.k = stage, k

        def _retrieve(self, query_bundle: Any) -> list[Any]:
            nodes = []
            for text, metadata in find(self.stage, query_bundle.query_str, self.k):
                node = TextNode(id_=metadata["id"], text=text, metadata=metadata)
                node.excluded_llm_metadata_keys = node.excluded_embed_metadata_keys = UNSHOWN
                nodes.append(NodeWithScore(node=node, score=metadata["score"]))
            return nodes

        async def _aretrieve(self, query_bundle: Any) -> list[Any]:
            return await asyncio.to_thread(self._retrieve, query_bundle)

    return SluiceRetriever


def haystack_retriever(stage: Stage, top_k: int = 10) -> Any:
    """Return a Haystack component of ``stage``: ``run(query, top_k) -> {"documents": [...]}``.

    ``Document``s come best first: ``id``, ``content`` (title and text, as they are encoded and
    reranked), ``score``, and ``meta`` with ``id``, ``title``, ``score`` and the document's own. A
    pipeline with it cannot be saved as YAML: a stage is not a plain value. Raises
    ``MissingPackageError``, and ``ConfigError`` for a stage that needs candidates.
    """
    stage, top_k = check_searches(stage), whole_number(top_k, "top_k", 1)
    return _haystack_class()(stage, top_k)


@functools.cache
def _haystack_class() -> Any:
    with needed_package("haystack-ai", "interop", "a Haystack component"):
        from haystack import Document, component

    @component
    class SluiceRetriever:
        """The documents a stage finds."""

        def __init__(self, stage: Stage, top_k: int) -> None:
            self.stage, self.top_k = stage, top_k

        @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
        def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
            """Return the best documents for a query; ``top_k`` as given here or at first."""
            hits = find(self.stage, query, self.top_k if top_k is None else top_k)
            return {
                "documents": [
                    Document(id=meta["id"], content=text, meta=meta, score=meta["score"])
                    for text, meta in hits
                ]
            }

    return SluiceRetriever
