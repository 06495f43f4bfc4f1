"""Runs as the data frames of PyTerrier, ``qid, query, docno, score, rank``, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.runs.run import Ranking, Run, check_unique

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
                f"qid {query!r}: two queries, {queries[query]!r} and {text!r}; expected one"
            )
    return queries


def run_of(frame: Any) -> Run:
    """Return the results in a frame by query, in the order of ``rank``, else ``score``, else rows.

    Without scores, places from the end stand for them. A document twice is a ``DataError``.
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
