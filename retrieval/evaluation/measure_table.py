"""The table of measures: what each is called, what it takes, and how it is computed.

Values are computed for all queries together, and are trec_eval's (Buckley, 2004; release 9) where
it has the measure: ties are broken and grades read as there. Canonical names are those of
ir_measures (MacAvaney, Macdonald and Ounis, 2022) where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.judgements import (
    Ints,
    Judgements,
    Values,
    counts_before,
    places_in_groups,
    ratio_or_zero,
    relevant_and_not,
    relevant_counts,
    sums_by_query,
)

LEAST_AP = 1e-5  # trec_eval's MIN_GEO_MEAN: what a query counts at least in the geometric mean
EPSILON = 1e-5  # trec_eval's INFAP_EPSILON
MOST_EXPONENTIAL = 1000  # the greatest grade whose power of two, summed, is still a float64

COUNTED = {
    "retrieved": "documents retrieved",
    "relevant": "relevant documents",
    "found": "relevant documents retrieved",
}


class Setting(NamedTuple):
    """What a measure is computed with; ``text`` names it in messages."""

    cutoff: int | None
    level: int
    option: float | None
    text: str


class Entry(NamedTuple):
    """One measure.

    ``values`` computes it from judgements whose hits are cut off already; ``spellings`` are its
    names besides its own, in lower case. ``cutoff`` says whether it has one; ``no_level`` why it
    takes no relevance level, empty where it does. ``option`` is the name of its further number,
    ``default`` that number's value unless given, ``low`` to ``high`` (both included) its range, and
    ``at`` is true where the number follows the @, as the recall of ``IPrec@0.1`` does. ``total``
    measures are added up over queries, ``geometric`` ones are logarithms whose mean is raised.
    ``fault`` is true of what is better the smaller it is.
    """

    values: Callable[[Judgements, Setting], Values]
    spellings: tuple[str, ...] = ()
    cutoff: Literal["needed", "optional", "none"] = "none"
    no_level: str = ""
    option: str = ""
    default: float | None = None
    low: float = 0.0
    high: float = 0.0
    at: bool = False
    over: Literal["mean", "total", "geometric"] = "mean"
    fault: bool = False


class _Counts(NamedTuple):
    """A measure's relevant hits within its cut-off, and how many there are of what, by query."""

    query: Ints  # [hits]
    rank: Ints  # [hits], from 0
    nth: Ints  # [hits], 0 for a query's first relevant hit
    found: Ints
    relevant: Ints  # in the qrels
    retrieved: Ints
    cutoff: int | None
    option: float


def _of_relevant(compute: Callable[[_Counts], Values]) -> Callable[[Judgements, Setting], Values]:
    """Return a measure that looks at the relevant hits only."""

    def values(judgements: Judgements, setting: Setting) -> Values:
        relevant_hit = judgements.hit_grade >= setting.level
        query = judgements.hit_query[relevant_hit]
        counts = np.bincount(query, minlength=len(judgements.retrieved))
        return compute(
            _Counts(
                query=query,
                rank=judgements.hit_rank[relevant_hit],
                nth=places_in_groups(counts),
                found=counts,
                relevant=relevant_counts(judgements, setting.level),
                retrieved=judgements.retrieved,
                cutoff=setting.cutoff,
                option=setting.option or 0.0,
            )
        )

    values.__doc__ = compute.__doc__
    return values


# Measures of the relevant documents.


def _precision(of: _Counts) -> Values:
    """Return hits / k, also where the list is shorter than k (trec_eval's P_k)."""
    return of.found / float(of.cutoff or 1)


def _recall(of: _Counts) -> Values:
    """Return hits / relevant (recall_k; set_recall without a cut-off)."""
    return ratio_or_zero(of.found, of.relevant)


def _capped_recall(of: _Counts) -> Values:
    """Return hits / min(k, relevant): BEIR's R_cap@k (Thakur et al., 2021), relative_P_k."""
    return ratio_or_zero(of.found, np.minimum(of.relevant, of.cutoff or 1))


def _success(of: _Counts) -> Values:
    """Return 1 where any hit is relevant (success_k)."""
    return (of.found > 0).astype(np.float64)


def _reciprocal_rank(of: _Counts) -> Values:
    """Return 1 / rank of the first relevant hit (recip_rank)."""
    values = np.zeros(len(of.found))
    first = of.nth == 0
    values[of.query[first]] = 1.0 / (of.rank[first] + 1)
    return values


def _average_precision(of: _Counts) -> Values:
    """Return the precisions at the relevant hits over the number of relevant (map, map_cut_k)."""
    return ratio_or_zero(_summed(of, (of.nth + 1) / (of.rank + 1)), of.relevant)


def _log_average_precision(of: _Counts) -> Values:
    """Return log max(AP, 0.00001): gm_map by query (Robertson, 2006)."""
    return np.log(np.maximum(_average_precision(of), LEAST_AP))


def _r_precision(of: _Counts) -> Values:
    """Return the precision at rank R, the number of relevant documents (Rprec)."""
    return ratio_or_zero(_summed(of, of.rank < of.relevant[of.query]), of.relevant)


def _interpolated_precision(of: _Counts) -> Values:
    """Return the best precision at or beyond a recall (iprec_at_recall_x).

    The recall is reached by floor(x R + 0.9) relevant documents, as trec_eval rounds.
    """
    needed = np.floor(of.option * of.relevant + 0.9)
    beyond = of.nth + 1 >= needed[of.query]
    values = np.zeros(len(of.found))
    precisions = (of.nth + 1) / (of.rank + 1)
    np.maximum.at(values, of.query[beyond], precisions[beyond])
    return values


def _set_precision(of: _Counts) -> Values:
    """Return relevant retrieved / retrieved (set_P)."""
    return ratio_or_zero(of.found, of.retrieved)


def _set_relative_precision(of: _Counts) -> Values:
    """Return relevant retrieved / min(retrieved, relevant) (set_relative_P)."""
    return ratio_or_zero(of.found, np.minimum(of.retrieved, of.relevant))


def _set_f(of: _Counts) -> Values:
    """Return (b + 1) P R / (R + b P), of set precision and recall (set_F_b).

    trec_eval's parameter, and ir_measures' beta with it, is the square of van Rijsbergen's (1979).
    """
    precision, recall, beta = _set_precision(of), _recall(of), of.option
    return ratio_or_zero((beta + 1) * precision * recall, recall + beta * precision)


def _set_average_precision(of: _Counts) -> Values:
    """Return set precision times set recall (set_map)."""
    return _set_precision(of) * _recall(of)


def _rank_biased(of: _Counts) -> Values:
    """Return (1 - p) times the sum of p^(rank - 1) over the relevant hits: RBP.

    Moffat and Zobel (2008), equation 3, with binary relevance; nothing is assumed of
    documents below the list.
    """
    return (1 - of.option) * _summed(of, of.option**of.rank)


def _as_float(column: str) -> Callable[[_Counts], Values]:
    def count(of: _Counts) -> Values:
        return np.asarray(getattr(of, column), dtype=np.float64)

    count.__doc__ = f"Return the number of {COUNTED[column]}, added up over the queries."
    return count


# Measures of grades, and of what is judged at all.


def _ndcg(judgements: Judgements, setting: Setting) -> Values:
    """Return DCG over that of the best order of all judged documents, discount log2(rank + 1).

    Gains are the grades (Jarvelin and Kekalainen, 2002; trec_eval's ndcg and ndcg_cut_k); a
    negative grade gains nothing.
    """
    return _normalised_gain(judgements, setting.cutoff, lambda grades: grades.astype(np.float64))


def _exponential_ndcg(judgements: Judgements, setting: Setting) -> Values:
    """Return nDCG with gains 2^grade - 1 (Burges et al., 2005; gdeval)."""
    most = int(judgements.judged_grade.max(initial=0))
    if most > MOST_EXPONENTIAL:
        raise DataError(
            f"{setting.text}: the qrels hold grade {most}, and 2^{most} is not a float64; score by "
            "the grades themselves (nDCG), or map them to a few levels"
        )
    return _normalised_gain(judgements, setting.cutoff, lambda grades: np.exp2(grades) - 1.0)


def _normalised_gain(
    judgements: Judgements, cutoff: int | None, gain: Callable[[Ints], Values]
) -> Values:
    queries = len(judgements.retrieved)
    inside = judgements.hit_grade > 0
    gains = gain(judgements.hit_grade[inside]) / np.log2(judgements.hit_rank[inside] + 2.0)
    reached = sums_by_query(judgements.hit_query[inside], gains, queries)
    positive = judgements.judged_grade > 0
    query, grade = judgements.judged_query[positive], judgements.judged_grade[positive]
    order = np.lexsort((-grade, query))
    query, grade = query[order], grade[order]
    rank = places_in_groups(np.bincount(query, minlength=queries))
    used = rank < (cutoff if cutoff is not None else len(rank))
    gains = gain(grade[used]) / np.log2(rank[used] + 2.0)
    return ratio_or_zero(reached, sums_by_query(query[used], gains, queries))


def _expected_reciprocal_rank(judgements: Judgements, setting: Setting) -> Values:
    """Return the expected 1 / rank at which a user stops (Chapelle et al., 2009, equation 4).

    A document of grade g satisfies with (2^g - 1) / 2^max; what is unjudged or below 1 never does.
    """
    queries = len(judgements.retrieved)
    largest = setting.option or largest_grade(judgements.judged_grade)
    if judgements.judged_grade.max(initial=0) > largest:
        raise ConfigError(
            f"{setting.text}: the qrels have grade {judgements.judged_grade.max()}, above the "
            f"largest grade given; use max={judgements.judged_grade.max()} or leave it out"
        )
    inside = judgements.hit_grade > 0
    query, rank = judgements.hit_query[inside], judgements.hit_rank[inside]
    satisfied = (np.exp2(judgements.hit_grade[inside]) - 1) / 2.0**largest
    counts = np.bincount(query, minlength=queries)
    nth = places_in_groups(counts)
    continuing = np.ones((queries, int(counts.max(initial=0)) + 1))
    continuing[query, nth + 1] = 1 - satisfied
    arrives = np.cumprod(continuing, axis=1)[query, nth]
    return sums_by_query(query, arrives * satisfied / (rank + 1), queries)


def _bpref(judgements: Judgements, setting: Setting) -> Values:
    """Return the share of judged non-relevant documents ranked below the relevant ones.

    Buckley and Voorhees (2004), in trec_eval's form: 1/R times the sum over relevant hits of
    1 - min(n, R) / min(N, R), n the non-relevant hits above and N the judged non-relevant.
    """
    queries = len(judgements.retrieved)
    rel, non_relevant = relevant_and_not(judgements, setting.level)
    total = np.bincount(
        judgements.judged_query[judgements.judged_grade >= setting.level], minlength=queries
    )
    is_non = (judgements.judged_grade >= 0) & (judgements.judged_grade < setting.level)
    non_total = np.bincount(judgements.judged_query[is_non], minlength=queries)
    above = counts_before(judgements, non_relevant)
    owner = judgements.hit_query[rel]
    bound = np.minimum(non_total, total)[owner]
    lost = ratio_or_zero(np.minimum(above[rel], total[owner]), bound)
    return ratio_or_zero(sums_by_query(owner, 1 - lost, queries), total)


def _inferred_ap(judgements: Judgements, setting: Setting) -> Values:
    """Return AP estimated from an incompletely judged pool (Yilmaz and Aslam, 2006).

    A negative grade says that a document was in the pool and not judged; one without a judgement
    was not in the pool and counts as not relevant.
    """
    queries = len(judgements.retrieved)
    rel, non_relevant = relevant_and_not(judgements, setting.level)
    unjudged = judgements.hit_grade < 0
    total = np.bincount(
        judgements.judged_query[judgements.judged_grade >= setting.level], minlength=queries
    )
    relevant_above, non_above, pooled_above = (
        counts_before(judgements, kind)[rel].astype(np.float64)
        for kind in (rel, non_relevant, unjudged)
    )
    above = judgements.hit_rank[rel].astype(np.float64)
    in_pool = ratio_or_zero(relevant_above + non_above + pooled_above, above)
    share = (relevant_above + EPSILON) / (relevant_above + non_above + 2 * EPSILON)
    expected = 1 / (above + 1) + above / (above + 1) * in_pool * share
    return ratio_or_zero(sums_by_query(judgements.hit_query[rel], expected, queries), total)


def _judged(judgements: Judgements, setting: Setting) -> Values:
    """Return the share of the first k hits, or of all if there are fewer, with a judgement."""
    judged = np.bincount(judgements.hit_query, minlength=len(judgements.retrieved))
    return ratio_or_zero(judged, np.minimum(judgements.retrieved, setting.cutoff or 0))


def _hole(judgements: Judgements, setting: Setting) -> Values:
    """Return unjudged hits among the first k, over k (hole@k; Thakur et al., 2021)."""
    cutoff = setting.cutoff or 1
    judged = np.bincount(judgements.hit_query, minlength=len(judgements.retrieved))
    holes: Values = (np.minimum(judgements.retrieved, cutoff) - judged) / cutoff
    return holes


def _rank_biased_residual(judgements: Judgements, setting: Setting) -> Values:
    """Return how much more RBP could be: the weight of all ranks without a judgement.

    Moffat and Zobel (2008), section 4: unjudged hits and everything below the list or cut-off.
    """
    p = setting.option or 0.0
    weights = (1 - p) * p**judgements.hit_rank
    return 1.0 - sums_by_query(judgements.hit_query, weights, len(judgements.retrieved))


def largest_grade(grades: Ints) -> float:
    """Return the largest grade, 1 at least: ERR's ``max`` by default."""
    return float(max(1, grades.max(initial=1)))


def _summed(of: _Counts, weights: NDArray[Any]) -> Values:
    return sums_by_query(of.query, weights, len(of.found))


_GRADES = "it uses the grades themselves"
_JUDGED = "any grade counts as judged"
_RBP: dict[str, Any] = {"option": "p", "default": 0.8, "low": 0.001, "high": 0.999}

MEASURES: dict[str, Entry] = {
    "nDCG": Entry(_ndcg, ("ndcg_cut",), "optional", _GRADES),
    "nDCG_exp": Entry(_exponential_ndcg, ("ndcg_burges",), "optional", _GRADES),
    "P": Entry(_of_relevant(_precision), ("precision", "prec"), "needed"),
    "R": Entry(_of_relevant(_recall), ("recall",), "needed"),
    "R_cap": Entry(
        _of_relevant(_capped_recall), ("recall_cap", "capped_recall", "relative_p"), "needed"
    ),
    "Success": Entry(_of_relevant(_success), ("hit", "hits", "hit_rate", "accuracy"), "needed"),
    "AP": Entry(_of_relevant(_average_precision), ("map", "map_cut"), "optional"),
    "GMAP": Entry(_of_relevant(_log_average_precision), ("gm_map",), over="geometric"),
    "RR": Entry(
        _of_relevant(_reciprocal_rank), ("mrr", "recip_rank", "reciprocal_rank"), "optional"
    ),
    "Rprec": Entry(_of_relevant(_r_precision), ("r_prec", "r_precision")),
    "Bpref": Entry(_bpref),
    "infAP": Entry(_inferred_ap),
    "IPrec": Entry(
        _of_relevant(_interpolated_precision), ("iprec_at_recall",), option="recall", high=1.0,
        at=True,
    ),
    "SetP": Entry(_of_relevant(_set_precision), ("set_p",)),
    "SetRelP": Entry(_of_relevant(_set_relative_precision), ("set_relative_p",)),
    "SetR": Entry(_of_relevant(_recall), ("set_recall",)),
    "SetF": Entry(_of_relevant(_set_f), ("set_f",), option="beta", default=1.0, high=1e6),
    "SetAP": Entry(_of_relevant(_set_average_precision), ("set_map",)),
    "NumRet": Entry(
        _of_relevant(_as_float("retrieved")), ("num_ret",), no_level="it counts every document",
        over="total",
    ),
    "NumRel": Entry(_of_relevant(_as_float("relevant")), ("num_rel",), over="total"),
    "NumRelRet": Entry(_of_relevant(_as_float("found")), ("num_rel_ret",), over="total"),
    "ERR": Entry(
        _expected_reciprocal_rank, (), "optional", _GRADES, option="max", low=1.0, high=30.0
    ),
    "RBP": Entry(_of_relevant(_rank_biased), (), "optional", **_RBP),
    "RBP_residual": Entry(_rank_biased_residual, (), "optional", _JUDGED, fault=True, **_RBP),
    "Judged": Entry(_judged, (), "needed", _JUDGED),
    "Hole": Entry(_hole, (), "needed", _JUDGED, fault=True),
}  # fmt: skip
