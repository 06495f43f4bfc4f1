"""Hard negatives chosen from ranked lists: pure functions over ids, scores and known positives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.negatives.candidate_choice import apply_judge
from sluice.training.negatives.candidates import (
    Candidates,
    Grades,
    PositiveScores,
    Ranked,
    candidates_of,
)
from sluice.training.negatives.judge import Judge
from sluice.training.negatives.provenance import RowsWriter
from sluice.training.negatives.report import MinedNegatives
from sluice.training.negatives.settings import MODES, Mining
from sluice.training.negatives.tally import Settling
from sluice.training.negatives.text_identity import TextKeys, TextSource

__all__ = ["MODES", "Mining", "consistent", "mine", "mine_lists"]

BATCH = 16_384  # candidates settled together: their texts are read, and judged, at once


def mine(
    ranked: Ranked,
    positives: Grades,
    mining: Mining,
    *,
    positive_scores: PositiveScores | None = None,
    queries: Mapping[str, str] | None = None,
    texts: TextSource | None = None,
    judge: Judge | None = None,
    seed: int = 13,
    provenance: bool = True,
) -> MinedNegatives:
    """Choose negatives for every query of ``positives`` from its ranked list.

    ``mine_lists`` with one list, whose name is empty.
    """
    return mine_lists(
        {"": ranked},
        positives,
        mining,
        positive_scores=None if positive_scores is None else {"": positive_scores},
        queries=queries,
        texts=texts,
        judge=judge,
        seed=seed,
        provenance=provenance,
    )


def mine_lists(
    lists: Mapping[str, Ranked],
    positives: Grades,
    mining: Mining,
    *,
    positive_scores: Mapping[str, PositiveScores] | None = None,
    queries: Mapping[str, str] | None = None,
    texts: TextSource | None = None,
    judge: Judge | None = None,
    seed: int = 13,
    provenance: bool = True,
) -> MinedNegatives:
    """Choose negatives for every query of ``positives`` from its lists in one or several rankings.

    Candidates of several lists are joined rank by rank; one must fit the limits in every list that
    found it. Known positives (grade above 0) are always dropped. A positive's score is the one it
    has in the list, else the one ``positive_scores`` (by list) gives; positives with neither are
    left out of the minimum, and a query left without any has no ratio or margin limit: the report
    counts both. With ``texts`` a candidate whose text, up to case and spaces, is a positive's or
    an earlier candidate's is dropped, as far as candidates are looked at before there are enough.
    With ``mining.judge_margin`` a ``judge`` scores what fits so far; it is given the texts, and
    those of ``queries``. ``provenance=False`` keeps no row per candidate.

    Raises ``DataError`` for a score that is not a number, a positive's that is not finite, or a
    list that is not best first or names a document twice, ``ConfigError`` for a judge's margin
    without a judge, or a judge without the texts it needs.
    """
    if mining.judge_margin is None:
        judge = None
    elif judge is None:
        raise ConfigError(
            "negatives.judge_margin: needs a judge; give `judge`: a cross-encoder, a reranker's "
            "name, or a run of its scores"
        )
    elif judge.needs_texts and (texts is None or queries is None):
        raise ConfigError(f"negatives.judge: {judge.name} reads texts; give queries and texts")
    keys = None if texts is None else TextKeys(texts)
    work = Settling(mining, seed, RowsWriter(tuple(lists)) if provenance else None, len(lists))
    given = [(positive_scores or {}).get(name) for name in lists]
    for batch in _batches(lists, positives, given, mining):
        if keys is not None:
            keys.read(_looked_at(batch, mining))
        if judge is not None:
            apply_judge(batch, judge, mining, keys, queries or {}, texts)
        for found in batch:
            work.settle(found, keys)
    rows = RowsWriter(tuple(lists)) if work.rows is None else work.rows
    return MinedNegatives(work.negatives, rows.rows(), work.report(lists), work.inconsistent)


def _batches(
    lists: Mapping[str, Ranked],
    positives: Grades,
    given: Sequence[PositiveScores | None],
    mining: Mining,
) -> Iterator[list[Candidates]]:
    batch: list[Candidates] = []
    size = 0
    for query, grades in positives.items():
        known = [doc for doc, grade in grades.items() if grade > 0]
        if not known:
            continue
        hits = [ranked.get(query, ()) for ranked in lists.values()]
        batch.append(candidates_of(query, known, hits, given, mining))
        size += len(batch[-1].documents)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _looked_at(batch: Sequence[Candidates], mining: Mining) -> Iterator[str]:
    """Yield the documents whose texts will be compared, most likely: those chosen and a few more.

    What else is needed is read when it is.
    """
    most = mining.per_query + 4 if mining.sampling == "top" else None
    if mining.judge_margin is not None:
        most = mining.judge_depth + 4
    for found in batch:
        yield from found.known
        for place in found.fitting[:most]:
            yield found.documents[place]


def consistent(ranked: Ranked, positives: Grades, depth: int = 50) -> Iterator[tuple[str, str]]:
    """Yield the (query, positive) pairs whose positive stands among the query's first ``depth``.

    Training on these only is KaLM's ranking-consistency filter.
    """
    for query, grades in positives.items():
        first = {document for document, _ in ranked.get(query, ())[:depth]}
        yield from ((query, doc) for doc, grade in grades.items() if grade > 0 and doc in first)
