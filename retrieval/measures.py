"""Measures: their one spelling, the others that are understood, and trec_eval's values.

A measure is computed for all queries together from what is needed and no more: the judged hits
with their ranks, and the judgements.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, DataError, suggest
from indexing.whole import whole_number

SPELLINGS = {
    "ndcg": "nDCG", "ndcg_cut": "nDCG", "ndcg_burges": "nDCG",
    "r": "R", "recall": "R",
    "p": "P", "precision": "P", "prec": "P",
    "ap": "AP", "map": "AP", "map_cut": "AP",
    "rr": "RR", "mrr": "RR", "recip_rank": "RR", "reciprocal_rank": "RR",
    "success": "Success", "hit": "Success", "hits": "Success", "hit_rate": "Success",
    "judged": "Judged",
}  # fmt: skip
EXAMPLES = "nDCG@10, R@100, P@5, AP, AP@100, RR@10, Success@5, Judged@10"
NEED_CUTOFF = ("R", "P", "Success", "Judged")
NO_LEVEL = {"nDCG": "it uses the grades themselves", "Judged": "any grade counts as judged"}
EXPONENTIAL = "exp-log2"  # nDCG's gain 2^grade - 1, as ir_measures writes it
MOST_EXPONENTIAL = 1000  # the greatest grade whose power of two, summed, is still a float64
_GAIN = re.compile(r"\((?:gain|dcg)=(['\"]?)(?P<gain>linear|log2|exp|exp-log2)\1\)", re.IGNORECASE)
_FORM = re.compile(
    r"(?P<name>[a-z]+(?:_[a-z]+)*)"
    r"(?P<before>\(rel=\d+\))?"
    r"(?:[@._](?P<cutoff>\d+))?"
    r"(?P<after>\(rel=\d+\))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure; ``str`` gives its canonical text, such as ``nDCG@10`` or ``AP(rel=2)@100``.

    ``cutoff`` is the number of documents looked at, None for all; a grade of ``level`` or more is
    relevant (nDCG uses the grades themselves, a negative one as 0). ``exponential`` is nDCG's gain:
    2^grade - 1 (Burges et al., 2005) instead of the grade, which is trec_eval's.
    """

    name: str
    cutoff: int | None = None
    level: int = 1
    exponential: bool = False

    def __str__(self) -> str:
        level = f"(rel={self.level})" if self.level != 1 else ""
        if self.exponential:
            level = f"(dcg='{EXPONENTIAL}')"
        return f"{self.name}{level}" + (f"@{self.cutoff}" if self.cutoff else "")


def parse_measure(text: str | Measure) -> Measure:
    """Return the measure a text names: ``nDCG@10``, ``ndcg_cut_10``, ``map``, ``P(rel=2)@5``, ...

    ``nDCG(gain=exp)@10``, ``nDCG(dcg='exp-log2')@10`` and ``ndcg_burges@10`` are one. Raises
    ``ConfigError`` for an unknown name, a cut-off that is missing or 0, and a relevance level or a
    gain where the measure has none.
    """
    if isinstance(text, Measure):
        return text
    gain = _GAIN.search(text) if isinstance(text, str) else None
    plain = text if gain is None else text[: gain.start()] + text[gain.end() :]
    found = _FORM.fullmatch(plain.strip()) if isinstance(text, str) else None
    name = SPELLINGS.get(found["name"].lower()) if found else None
    if found is None or name is None:
        spelled = re.split(r"[@.(]|_?\d", str(text))[0]
        near = suggest(spelled.lower(), SPELLINGS) or suggest(spelled, set(SPELLINGS.values()))
        for key, value in SPELLINGS.items():
            near = near.replace(f"{key!r}", f"{value!r}")
        raise ConfigError(f"unknown measure {text!r}; known: {EXAMPLES}{near}")
    if found["before"] and found["after"]:
        raise ConfigError(f"measure {text!r}: the relevance level is given twice")
    given = found["before"] or found["after"]
    level = int(given[5:-1]) if given else 1
    cutoff = int(found["cutoff"]) if found["cutoff"] else None
    if cutoff == 0 or (cutoff is None and name in NEED_CUTOFF):
        raise ConfigError(f"measure {text!r} needs a cut-off of 1 or more, as in {name}@10")
    if level < 1:
        raise ConfigError(f"measure {text!r}: a relevance level is 1 or more")
    if level != 1 and name in NO_LEVEL:
        raise ConfigError(f"measure {text!r}: {name} takes no relevance level, {NO_LEVEL[name]}")
    if gain is not None and name != "nDCG":
        raise ConfigError(f"measure {text!r}: {name} takes no gain, which is nDCG's")
    burges = found["name"].lower() == "ndcg_burges"
    exponential = burges if gain is None else gain["gain"].lower().startswith("exp")
    if burges and not exponential:
        raise ConfigError(f"measure {text!r}: ndcg_burges is nDCG with gain=exp; write nDCG@10")
    return Measure(name, cutoff, level, exponential)


def at_level(measures: Sequence[Measure], level: int) -> list[Measure]:
    """Return measures of which a grade of ``level`` or more is relevant, as in ``P(rel=2)@5``.

    A measure that names a level of its own above 1 keeps it; those by grade (nDCG) have none.
    """
    whole_number(level, "level", 1)
    return [
        measure if measure.level != 1 or measure.name in NO_LEVEL else replace(measure, level=level)
        for measure in measures
    ]


def depth_of(measures: list[Measure]) -> int | None:
    """Return how many documents per query the measures look at, None for all of them."""
    cutoffs = [measure.cutoff for measure in measures]
    return None if None in cutoffs else max((c for c in cutoffs if c is not None), default=0)


class Judgements(NamedTuple):
    """Everything the measures need, for ``len(retrieved)`` queries.

    Of the judged hits: query place, rank from 0, grade; sorted by query, then rank. Of the qrels:
    query place and grade of every judgement. ``retrieved`` counts each query's hits.
    """

    hit_query: NDArray[np.int64]
    hit_rank: NDArray[np.int64]
    hit_grade: NDArray[np.int64]
    judged_query: NDArray[np.int64]
    judged_grade: NDArray[np.int64]
    retrieved: NDArray[np.int64]


def compute(measure: Measure, given: Judgements) -> NDArray[np.float64]:
    """Return the measure's value for every query, 0 where a query has nothing relevant."""
    inside = np.ones(len(given.hit_rank), dtype=bool)
    if measure.cutoff is not None:
        inside = given.hit_rank < measure.cutoff
    if measure.name == "Judged":
        return _judged(measure.cutoff or 0, given, inside)
    if measure.name == "nDCG":
        return _ndcg(measure, given, inside)
    queries = len(given.retrieved)
    inside &= given.hit_grade >= measure.level
    query, rank = given.hit_query[inside], given.hit_rank[inside]
    found = np.bincount(query, minlength=queries)
    if measure.name == "P":
        return found / float(measure.cutoff or 1)
    if measure.name == "Success":
        return (found > 0).astype(np.float64)
    nth = np.arange(len(query)) - np.repeat(np.cumsum(found) - found, found)  # 0 = first relevant
    if measure.name == "RR":
        values = np.zeros(queries)
        values[query[nth == 0]] = 1.0 / (rank[nth == 0] + 1)
        return values
    relevant = given.judged_query[given.judged_grade >= measure.level]
    total = np.bincount(relevant, minlength=queries)
    if measure.name == "R":
        return _ratio(found, total)
    precisions = (nth + 1) / (rank + 1)
    return _ratio(np.bincount(query, weights=precisions, minlength=queries), total)


def _ndcg(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Discount log2(rank + 1), against the best order of all judged documents."""
    queries = len(given.retrieved)
    inside = inside & (given.hit_grade > 0)
    gains = _gains(measure, given.hit_grade[inside]) / np.log2(given.hit_rank[inside] + 2.0)
    reached = np.bincount(given.hit_query[inside], weights=gains, minlength=queries)
    positive = given.judged_grade > 0
    query, grade = given.judged_query[positive], given.judged_grade[positive]
    order = np.lexsort((-grade, query))
    query, grade = query[order], grade[order]
    count = np.bincount(query, minlength=queries)
    rank = np.arange(len(query)) - np.repeat(np.cumsum(count) - count, count)
    used = rank < (measure.cutoff if measure.cutoff is not None else len(rank))
    gains = _gains(measure, grade[used]) / np.log2(rank[used] + 2.0)
    return _ratio(reached, np.bincount(query[used], weights=gains, minlength=queries))


def _gains(measure: Measure, grades: NDArray[np.int64]) -> NDArray[np.float64]:
    if not measure.exponential:
        return grades.astype(np.float64)
    most = int(grades.max(initial=0))
    if most > MOST_EXPONENTIAL:
        raise DataError(
            f"{measure}: the qrels hold grade {most}, and 2^{most} is no float64; score by the "
            "grades themselves (nDCG), or map them to a few levels"
        )
    return np.exp2(grades.astype(np.float64)) - 1.0


def _judged(cutoff: int, given: Judgements, inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share of the first ``cutoff`` hits, or of all if there are fewer, with a judgement."""
    judged = np.bincount(given.hit_query[inside], minlength=len(given.retrieved))
    return _ratio(judged, np.minimum(given.retrieved, cutoff))


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    values = np.zeros(len(part))
    np.divide(part, whole, out=values, where=whole > 0)
    return values
