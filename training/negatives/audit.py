"""Measures how well each mining mode rejects false negatives, by hiding known positives."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.negatives.candidates import Grades, PositiveScores, Ranked
from sluice.training.negatives.false_negatives import Judge, TextSource
from sluice.training.negatives.mining import mine_lists
from sluice.training.negatives.provenance import CODES, MinedRows
from sluice.training.negatives.settings import MODES, Mining

COLUMNS = (
    "mode",
    "decides by",
    "AUC",
    "hidden rejected",
    "others lost",
    "false negatives",
    "negatives",
    "queries short",
)


@dataclass(frozen=True, slots=True)
class ModeAudit:
    """What one mode did with the hidden positives among the candidates, and with the others.

    ``auc`` is the probability that a hidden positive lies nearer the rejected end than another
    candidate does, by the number the mode decides by (``signal``), ties counting half: 0.5 is
    chance. ``rejected`` is the share of hidden positives that the limits drop, ``lost`` that of the
    other candidates. ``false_negatives`` is the share of the mined ``negatives`` that are hidden
    positives. Shares over nothing are NaN.
    """

    mode: str
    signal: str
    auc: float
    rejected: float
    lost: float
    false_negatives: float
    negatives: int
    queries_short: int


@dataclass(frozen=True, slots=True)
class MiningAudit:
    """The audit of several modes over the same hidden positives.

    ``found`` of the ``hidden`` are among the candidates; only these can become negatives.
    """

    hidden: int
    found: int
    positives: int
    queries: int
    modes: tuple[ModeAudit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the audit as JSON-ready values; NaN as None."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    def to_markdown(self) -> str:
        """Return the table in markdown."""
        rows = [COLUMNS, tuple("---" for _ in COLUMNS), *map(_cells, self.modes)]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"

    def __str__(self) -> str:
        rows = [COLUMNS, *map(_cells, self.modes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{self.hidden:,} of {self.positives:,} positives of {self.queries:,} queries hidden; "
            f"{self.found:,} of them among the candidates"
        ]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join(lines)


def audit_mining(
    lists: Mapping[str, Ranked],
    positives: Grades,
    modes: Mapping[str, Mining] | None = None,
    *,
    share: float = 0.2,
    positive_scores: Mapping[str, PositiveScores] | None = None,
    queries: Mapping[str, str] | None = None,
    texts: TextSource | None = None,
    judge: Judge | None = None,
    seed: int = 13,
) -> MiningAudit:
    """Hide a seeded ``share`` of the known positives, mine in each mode, and see who takes them.

    Of queries with two positives or more, so that one is left to set the limits by. ``modes`` are
    those of ``MODES`` unless given, ``judge`` among them where there is a judge. Rates count
    candidates that are hidden positives against all others that are not known positives; some of
    these may be unknown false negatives.

    Raises ``DataError`` where no query has two positives, or no list finds a hidden one.
    """
    if not 0 < share < 1:
        raise ConfigError(f"audit: {share!r}, expected a share of the positives, between 0 and 1")
    hidden = hidden_positives(positives, share, seed)
    total = sum(len(hide) for hide in hidden.values())
    remaining = {
        query: {doc: grade for doc, grade in grades.items() if doc not in hidden.get(query, ())}
        for query, grades in positives.items()
    }
    if modes is None:
        modes = {name: Mining.in_mode(name) for name in MODES if name != "judge" or judge}
    audits, reachable = [], 0
    for name, mining in modes.items():
        mined = mine_lists(
            lists, remaining, mining, positive_scores=positive_scores, queries=queries, texts=texts,
            judge=judge, seed=seed,
        )  # fmt: skip
        report = mined.report
        if report.positive_share:
            raise DataError(f"audit: mode {name} mined known positives as negatives")
        signal, values, hides, codes = _candidates(mined.table, hidden, mining)
        reachable = int(hides.sum())
        if not reachable:
            raise DataError(
                f"audit: none of the {total:,} hidden positives is among the candidates; search "
                "deeper (depth), or hide more"
            )
        audits.append(_audited(name, signal, values, hides, codes, len(report.short)))
    return MiningAudit(
        hidden=total,
        found=reachable,
        positives=sum(grade > 0 for grades in positives.values() for grade in grades.values()),
        queries=len(positives),
        modes=tuple(audits),
    )


def hidden_positives(positives: Grades, share: float, seed: int) -> dict[str, set[str]]:
    """Return a share of all positives by query, a function of the seed; each query keeps one."""
    known = {
        query: [doc for doc, grade in grades.items() if grade > 0]
        for query, grades in positives.items()
    }
    pairs = [(query, doc) for query, docs in known.items() if len(docs) > 1 for doc in docs]
    if not pairs:
        raise DataError(
            "audit: no query has two positives or more, so none can be hidden and one kept; audit "
            "on a dataset with several positives a query"
        )
    random.Random(f"{seed}:hidden").shuffle(pairs)
    to_hide = max(1, round(share * sum(map(len, known.values()))))
    hidden: dict[str, set[str]] = {}
    for query, document in pairs:
        if not to_hide:
            break
        if len(hidden.get(query, ())) < len(known[query]) - 1:
            hidden.setdefault(query, set()).add(document)
            to_hide -= 1
    return hidden


def auc(values: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Return the probability that a positive's value is above another's, ties counting half.

    From the sum of mid-ranks (Mann and Whitney, 1947); NaN where either side is empty.
    """
    n_positive = int(positive.sum())
    n_other = len(values) - n_positive
    if not n_positive or not n_other:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # mid-rank of each distinct value, from 1
    total = float(middle[inverse][positive].sum())
    return (total - n_positive * (n_positive + 1) / 2) / (n_positive * n_other)


def _signal(table: MinedRows, mining: Mining) -> tuple[str, NDArray[np.float64]]:
    """Name the number that a mode decides by, that of its first limit, with its value in each row.

    The higher the value, the sooner a candidate is rejected.
    """
    if mining.judge_margin is not None:
        return "judge - positive's", table.judge - _judged_positive(table, mining)[table.query]
    if mining.judge_gamma is not None:
        return "judge", table.judge
    positive = table.positive[table.query, table.source]
    if mining.adaptive_margin is not None:
        constant, per_score = mining.adaptive_margin
        return "score - limit", table.score - (positive - (constant + per_score * np.abs(positive)))
    if mining.max_positive_ratio is not None:
        size = np.where(positive == 0, np.nan, np.abs(positive))
        return "score / positive's", 1 + (table.score - positive) / size
    if mining.margin is not None:
        return "score - positive's", table.score - positive
    if mining.max_score is not None:
        return "score", table.score
    if mining.range_min or mining.range_max is not None:
        return "rank", -table.rank.astype(np.float64)
    return "nothing", np.zeros(len(table))


def _judged_positive(table: MinedRows, mining: Mining) -> NDArray[np.float64]:
    """Return the judge's score of each query's positive, NaN for none."""
    rows = np.flatnonzero((table.reason == CODES["positive"]) & ~np.isnan(table.judge))
    query_of = table.query
    scores: dict[int, dict[int, float]] = {}  # once a document, of several lists
    for row in rows.tolist():
        of_query = scores.setdefault(int(query_of[row]), {})
        of_query[int(table.document[row])] = float(table.judge[row])
    reference = np.full(len(table.queries), np.nan)
    for query, of_query in scores.items():
        reference[query] = mining.reference(of_query.values())
    return reference


def _candidates(
    table: MinedRows, hidden: Mapping[str, set[str]], mining: Mining
) -> tuple[str, NDArray[np.float64], NDArray[np.bool_], NDArray[np.int8]]:
    """Return signal, its values, which are hidden positives, and reasons: a candidate once."""
    signal, values = _signal(table, mining)
    pair = table.query.astype(np.int64) * max(len(table.documents), 1) + table.document
    rows = np.flatnonzero((table.reason != CODES["positive"]) & (table.rank >= 0))
    unique, inverse = np.unique(pair[rows], return_inverse=True)
    highest = np.full(len(unique), -np.inf)
    np.fmax.at(highest, inverse, values[rows])  # of several lists, the nearest to the positive
    highest[np.isinf(highest)] = np.nan
    reason = np.empty(len(unique), np.int8)
    reason[inverse] = table.reason[rows]
    codes = {document: code for code, document in enumerate(table.documents)}
    keys = [
        place * len(table.documents) + codes[document]
        for place, query in enumerate(table.queries)
        for document in hidden.get(query, ())
        if document in codes
    ]
    return signal, highest, np.isin(unique, np.array(keys, np.int64)), reason


def _audited(
    name: str,
    signal: str,
    values: NDArray[np.float64],
    hides: NDArray[np.bool_],
    codes: NDArray[np.int8],
    short: int,
) -> ModeAudit:
    known = ~np.isnan(values)
    looked_at = codes != CODES["unjudged"]  # what nobody judged is neither rejected nor kept
    rejected = ~np.isin(codes, (CODES["kept"], CODES["surplus"]))
    taken = codes == CODES["kept"]
    return ModeAudit(
        mode=name,
        signal=signal,
        auc=auc(values[known], hides[known]),
        rejected=_mean(rejected[hides & looked_at]),
        lost=_mean(rejected[~hides & looked_at]),
        false_negatives=_mean(hides[taken]),
        negatives=int(taken.sum()),
        queries_short=short,
    )


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _cells(mode: ModeAudit) -> tuple[str, ...]:
    shares = (mode.auc, mode.rejected, mode.lost, mode.false_negatives)
    spelled = ["-" if math.isnan(value) else f"{value:.4f}" for value in shares]
    return (mode.mode, mode.signal, *spelled, f"{mode.negatives:,}", f"{mode.queries_short:,}")


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
