"""PyTerrier: a stage as a ``pyterrier.Transformer``, with all of its operators.

python-terrier is an optional package: ``pip install 'sluice-ir[interop]'``. It needs no Java here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, DataError, MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
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
    try:
        import pyterrier as pt
    except ImportError:
        raise MissingPackageError("python-terrier", "interop", "a PyTerrier transformer") from None

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
    asked = [name for name in inp if name.startswith(("q", "stashed_results_"))]
    known = inp if needs else inp[asked].drop_duplicates("qid")
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
