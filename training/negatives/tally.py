"""What mining gathers query by query: negatives, rows, counts and the report over all."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping

import numpy as np

from sluice.training.negatives.candidate_choice import distinct, preferred
from sluice.training.negatives.candidates import FITS, Candidates, Ranked
from sluice.training.negatives.histogram import Histogram
from sluice.training.negatives.provenance import CODES, REASONS, RowsWriter
from sluice.training.negatives.report import MiningReport
from sluice.training.negatives.settings import Mining
from sluice.training.negatives.text_identity import TextKeys

RATIO_EDGES = tuple(round(0.1 * place, 1) for place in range(16))


class Settling:
    """What mining has gathered so far, query by query."""

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

    def settle(self, found: Candidates, keys: TextKeys | None) -> None:
        """Choose a query's negatives, and note what became of every candidate."""
        mining, noted = self.mining, self._noted
        chosen = distinct(found, preferred(found, mining, self.seed), mining.per_query, keys)
        chosen.sort()
        found.reasons[found.reasons == FITS] = CODES["surplus"]
        found.reasons[chosen] = FITS
        negatives = tuple(found.documents[place] for place in chosen)
        self.negatives[found.query] = negatives
        self._counts += np.bincount(found.reasons, minlength=len(REASONS))
        if len(negatives) < mining.per_query:
            self._short[found.query] = mining.per_query - len(negatives)
        self._ranks.extend(found.ranks[chosen].tolist())
        ratios = found.ratios[chosen]
        self._ratios.extend(ratios[~np.isnan(ratios)].tolist())
        for number, listed in enumerate(found.lists):
            self._found_by[number] += int((found.reasons[listed.places] == FITS).sum())
        noted["candidates"] += len(found.documents)
        noted["shared"] += len(set(found.known).intersection(negatives))
        noted["no hits"] += not len(found.documents)
        noted["unscored"] += max(len(found.known) - len(listed.known) for listed in found.lists)
        unscored = any(math.isnan(listed.positive) for listed in found.lists)
        noted["no positive"] += unscored and mining.needs_positive_score
        unjudged = mining.judge_margin is not None and not found.judged_positives
        noted["no judged"] += unjudged and bool(chosen)
        if mining.consistency is not None:
            self._check_consistency(found, mining.consistency)
        if self.rows is not None:
            _write(self.rows, found)

    def _check_consistency(self, found: Candidates, depth: int) -> None:
        heads = (listed.places[:depth].tolist() for listed in found.lists)
        first = {found.documents[place] for head in heads for place in head}
        low = frozenset(found.known) - first
        if low:
            self.inconsistent[found.query] = low

    def report(self, lists: Mapping[str, Ranked]) -> MiningReport:
        """Return the counts and histograms over all queries."""
        names, noted = list(REASONS), self._noted
        dropped = {names[code]: int(self._counts[code]) for code in range(len(names))}
        kept = dropped.pop("kept")
        sizes = [len(found) for found in self.negatives.values()]
        return MiningReport(
            queries=len(self.negatives),
            candidates=noted["candidates"],
            kept=kept,
            dropped={reason: count for reason, count in sorted(dropped.items()) if count},
            short=self._short,
            queries_without_hits=noted["no hits"],
            unscored_positives=noted["unscored"],
            queries_without_positive_score=noted["no positive"],
            positive_share=noted["shared"] / kept if kept else 0.0,
            per_query_asked=self.mining.per_query,
            found_by=dict(zip(lists, self._found_by, strict=True)),
            queries_without_judged_positive=noted["no judged"],
            inconsistent_pairs=sum(map(len, self.inconsistent.values())),
            ranks=Histogram.of_counts(np.array(self._ranks, np.int64)),
            ratios=Histogram.over(np.array(self._ratios), RATIO_EDGES),
            per_query=Histogram.of_counts(np.array(sizes, np.int64)),
        )


def _write(rows: RowsWriter, found: Candidates) -> None:
    for number, listed in enumerate(found.lists):
        places = listed.places
        names = [found.documents[place] for place in places.tolist()]
        ranks = np.arange(len(names), dtype=np.int32)
        judged_here = found.judged[places]
        for place in np.flatnonzero(found.reasons[places] == CODES["positive"]).tolist():
            judged_here[place] = found.judged_positives.get(names[place], np.nan)
        rows.add(number, names, ranks, listed.scores, found.reasons[places], judged_here)
        known = {**dict.fromkeys(found.judged_positives, np.nan), **listed.known}
        missed = [document for document in known if document not in set(names)]
        if missed:
            rows.add(
                number,
                missed,
                np.full(len(missed), -1, np.int32),
                np.array([known[document] for document in missed]),
                np.full(len(missed), CODES["positive"], np.int8),
                np.array([found.judged_positives.get(document, np.nan) for document in missed]),
            )
    rows.end_query(found.query, [listed.positive for listed in found.lists])
