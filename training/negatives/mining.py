"""Hard negatives chosen from ranked lists: pure functions over ids, scores and known positives."""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.negatives.candidates import (
    FITS,
    Candidates,
    Grades,
    PositiveScores,
    Ranked,
    apply_judge,
    candidates_of,
    distinct,
    preferred,
    shared_out,
    to_judge,
)
from sluice.training.negatives.false_negatives import Judge, TextKeys, TextSource
from sluice.training.negatives.provenance import CODES, REASONS, RowsWriter
from sluice.training.negatives.report import Histogram, MinedNegatives, MiningReport
from sluice.training.negatives.settings import MODES, Mining

log = logging.getLogger("sluice")

RATIO_EDGES = tuple(round(0.1 * place, 1) for place in range(16))


class Settling:
    """Collects chosen negatives and the counts of the mining report, query by query."""

    def __init__(self, mining: Mining, seed: int, rows: RowsWriter | None, lists: int) -> None:
        self.mining = mining
        self.seed = seed
        self.rows = rows
        self.negatives: dict[str, tuple[str, ...]] = {}
        self.inconsistent: dict[str, frozenset[str]] = {}
        self._counts = np.zeros(len(REASONS), np.int64)
        self._short: dict[str, int] = {}
        self._found_by = [0] * lists
        self._ranks, self._ratios = array("i"), array("d")
        self._noted: Counter[str] = Counter()

    def settle(self, candidates: Candidates, keys: TextKeys | None) -> None:
        """Choose a query's negatives, and record what became of every candidate."""
        mining, noted = self.mining, self._noted
        order = preferred(candidates, mining, self.seed)
        if mining.shares is None:
            chosen = distinct(candidates, order, mining.per_query, keys)
        else:
            chosen = shared_out(candidates, order, mining, keys, self.seed)
        chosen.sort()
        candidates.reasons[candidates.reasons == FITS] = CODES["surplus"]
        candidates.reasons[chosen] = FITS
        negatives = tuple(candidates.documents[place] for place in chosen)
        self.negatives[candidates.query] = negatives
        self._counts += np.bincount(candidates.reasons, minlength=len(REASONS))
        if len(negatives) < mining.per_query:
            self._short[candidates.query] = mining.per_query - len(negatives)
        self._ranks.extend(candidates.ranks[chosen].tolist())
        ratios = candidates.ratios[chosen]
        self._ratios.extend(ratios[~np.isnan(ratios)].tolist())
        for number, listed in enumerate(candidates.lists):
            self._found_by[number] += int((candidates.reasons[listed.places] == FITS).sum())
        noted["candidates"] += len(candidates.documents)
        noted["shared"] += len(set(candidates.known).intersection(negatives))
        noted["no hits"] += not len(candidates.documents)
        noted["unscored"] += max(
            len(candidates.known) - len(listed.known) for listed in candidates.lists
        )
        unscored = any(math.isnan(listed.positive) for listed in candidates.lists)
        noted["no positive"] += unscored and mining.needs_positive_score
        unjudged = mining.judge_margin is not None and not candidates.judged_positives
        noted["no judged"] += unjudged and bool(chosen)
        if mining.consistency is not None:
            self._check_consistency(candidates, mining.consistency)
        if self.rows is not None:
            _write(self.rows, candidates)

    def _check_consistency(self, candidates: Candidates, depth: int) -> None:
        heads = (listed.places[:depth].tolist() for listed in candidates.lists)
        first = {candidates.documents[place] for head in heads for place in head}
        low = frozenset(candidates.known) - first
        if low:
            self.inconsistent[candidates.query] = low

    def report(self, lists: Mapping[str, Ranked]) -> MiningReport:
        """Return the counts and histograms over all queries."""
        names, noted = list(REASONS), self._noted
        dropped = {names[code]: int(self._counts[code]) for code in range(len(names))}
        chosen = dropped.pop("kept")
        sizes = [len(documents) for documents in self.negatives.values()]
        return MiningReport(
            queries=len(self.negatives),
            candidates=noted["candidates"],
            kept=chosen,
            dropped={reason: count for reason, count in sorted(dropped.items()) if count},
            short=self._short,
            queries_without_hits=noted["no hits"],
            unscored_positives=noted["unscored"],
            queries_without_positive_score=noted["no positive"],
            positive_share=noted["shared"] / chosen if chosen else 0.0,
            per_query_asked=self.mining.per_query,
            found_by=dict(zip(lists, self._found_by, strict=True)),
            queries_without_judged_positive=noted["no judged"],
            inconsistent_pairs=sum(map(len, self.inconsistent.values())),
            ranks=Histogram.of_counts(np.array(self._ranks, np.int64)),
            ratios=Histogram.count(np.array(self._ratios), RATIO_EDGES),
            per_query=Histogram.of_counts(np.array(sizes, np.int64)),
        )


def _write(rows: RowsWriter, candidates: Candidates) -> None:
    for number, listed in enumerate(candidates.lists):
        places = listed.places
        names = [candidates.documents[place] for place in places.tolist()]
        ranks = np.arange(len(names), dtype=np.int32)
        judged_here = candidates.judged[places]
        for place in np.flatnonzero(candidates.reasons[places] == CODES["positive"]).tolist():
            judged_here[place] = candidates.judged_positives.get(names[place], np.nan)
        rows.add(number, names, ranks, listed.scores, candidates.reasons[places], judged_here)
        known = {**dict.fromkeys(candidates.judged_positives, np.nan), **listed.known}
        missed = [document for document in known if document not in set(names)]
        if missed:
            rows.add(
                number,
                missed,
                np.full(len(missed), -1, np.int32),
                np.array([known[document] for document in missed]),
                np.full(len(missed), CODES["positive"], np.int8),
                np.array(
                    [candidates.judged_positives.get(document, np.nan) for document in missed]
                ),
            )
    rows.end_query(candidates.query, [listed.positive for listed in candidates.lists])


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
    With ``mining.judge_margin`` or ``judge_gamma`` a ``judge`` scores what fits so far; it receives
    the texts, and those of ``queries``. ``provenance=False`` keeps no row per candidate.

    Raises ``DataError`` for a score that is not a number, a positive's that is not finite, or a
    list that is not best first or names a document twice, ``ConfigError`` for a judge's margin
    without a judge, or a judge without the texts it needs.
    """
    if mining.shares is not None and len(mining.shares) != len(lists):
        raise ConfigError(
            f"negatives.shares: {len(mining.shares)} for {len(lists)} lists "
            f"({', '.join(lists)}); expected one for each"
        )
    if mining.judge_gamma is not None and len(lists) > 1:
        raise ConfigError(
            f"negatives.judge_gamma: multiplies the scores of one list, and here are {len(lists)} "
            f"({', '.join(lists)}), whose scores do not compare; name one retriever"
        )
    for name, share in zip(lists, mining.shares or (), strict=False):
        if not share:
            log.warning(
                "negatives.shares: 0 for %s: it is searched only for queries of which the other "
                "lists have too few negatives; leave it out, or give it a share", name,
            )  # fmt: skip
    if not mining.judged:
        judge = None
    elif judge is None:
        key = "judge_gamma" if mining.judge_margin is None else "judge_margin"
        raise ConfigError(
            f"negatives.{key}: needs a judge; give `judge`: a cross-encoder, a reranker's "
            "name, or a run of its scores"
        )
    elif judge.needs_texts and (texts is None or queries is None):
        raise ConfigError(f"negatives.judge: {judge.name} reads texts; give queries and texts")
    keys = None if texts is None else TextKeys(texts)
    work = Settling(mining, seed, RowsWriter(tuple(lists)) if provenance else None, len(lists))
    scores_by_list = [(positive_scores or {}).get(name) for name in lists]
    for batch in _batches(lists, positives, scores_by_list, mining):
        if keys is not None:
            keys.read(_looked_at(batch, mining))
        if judge is not None:
            apply_judge(batch, judge, mining, keys, queries or {}, texts)
        for candidates in batch:
            work.settle(candidates, keys)
    rows = RowsWriter(tuple(lists)) if work.rows is None else work.rows
    return MinedNegatives(work.negatives, rows.rows(), work.report(lists), work.inconsistent)


def pairs_to_judge(
    lists: Mapping[str, Ranked],
    positives: Grades,
    mining: Mining,
    *,
    positive_scores: Mapping[str, PositiveScores],
    texts: TextSource,
) -> Iterator[tuple[str, list[str]]]:
    """Yield the documents of each query that ``mine_lists`` will ask its judge about."""
    keys = TextKeys(texts)
    scores_by_list = [positive_scores.get(name) for name in lists]
    for batch in _batches(lists, positives, scores_by_list, mining):
        keys.read(_looked_at(batch, mining))
        asked: dict[str, list[str]] = {}
        for candidates, document, _ in to_judge(batch, mining, keys):
            asked.setdefault(candidates.query, []).append(document)
        yield from asked.items()


def _batches(
    lists: Mapping[str, Ranked],
    positives: Grades,
    scores_by_list: Sequence[PositiveScores | None],
    mining: Mining,
) -> Iterator[list[Candidates]]:
    batch: list[Candidates] = []
    size = 0
    for query, grades in positives.items():
        known = [doc for doc, grade in grades.items() if grade > 0]
        if not known:
            continue
        hits = [ranked.get(query, ()) for ranked in lists.values()]
        batch.append(candidates_of(query, known, hits, scores_by_list, mining))
        size += len(batch[-1].documents)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _looked_at(batch: Sequence[Candidates], mining: Mining) -> Iterator[str]:
    """Yield the documents whose texts will be compared, most likely: those chosen and a few more.

    Other texts are read when they are needed.
    """
    most = mining.per_query + 4 if mining.sampling == "top" else None
    if mining.judged:
        most = mining.judge_depth + 4
    for candidates in batch:
        yield from candidates.known
        for place in candidates.fitting[:most]:
            yield candidates.documents[place]


def consistent(ranked: Ranked, positives: Grades, depth: int = 50) -> Iterator[tuple[str, str]]:
    """Yield the (query, positive) pairs whose positive is among the query's first ``depth`` hits.

    Training on these only is KaLM's ranking-consistency filter.
    """
    for query, grades in positives.items():
        first = {document for document, _ in ranked.get(query, ())[:depth]}
        yield from ((query, doc) for doc, grade in grades.items() if grade > 0 and doc in first)
