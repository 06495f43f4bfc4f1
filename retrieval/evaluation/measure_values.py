"""Values of measures, for all queries together, from what is needed and no more.

What is needed are the judged hits with their ranks, and the judgements. Values are trec_eval's
(Buckley, 2004; release 9) where it has the measure: ties are broken and grades read as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.measures import KINDS, Measure

LEAST_AP = 1e-5  # trec_eval's MIN_GEO_MEAN: what a query counts at least in the geometric mean
EPSILON = 1e-5  # trec_eval's INFAP_EPSILON
MOST_EXPONENTIAL = 1000  # the greatest grade whose power of two, summed, is still a float64
TOTALS = ("NumRet", "NumRel", "NumRelRet")  # over queries they are added up

Values = NDArray[np.float64]
Ints = NDArray[np.int64]


class Judgements(NamedTuple):
    """Everything the measures need, for ``len(retrieved)`` queries.

    Of the judged hits: query place, rank from 0, grade; sorted by query, then rank. Of the qrels:
    query place and grade of every judgement. ``retrieved`` counts each query's hits.
    """

    hit_query: Ints
    hit_rank: Ints
    hit_grade: Ints
    judged_query: Ints
    judged_grade: Ints
    retrieved: Ints


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


def compute(measure: Measure, given: Judgements) -> Values:
    """Return the measure's value for every query.

    It is 0 where a query has nothing relevant, except for what counts something else (``NumRet``,
    ``Judged``, ``Hole``, ``RBP_residual``).
    """
    inside = np.ones(len(given.hit_rank), dtype=bool)
    if measure.cutoff is not None:
        inside = given.hit_rank < measure.cutoff
    if measure.name in _OF_GRADES:
        return _OF_GRADES[measure.name](measure, given, inside)
    queries = len(given.retrieved)
    inside &= given.hit_grade >= measure.level
    query = given.hit_query[inside]
    found = np.bincount(query, minlength=queries)
    relevant = given.judged_query[given.judged_grade >= measure.level]
    counts = _Counts(
        query=query,
        rank=given.hit_rank[inside],
        nth=_places(found),
        found=found,
        relevant=np.bincount(relevant, minlength=queries),
        retrieved=given.retrieved,
        cutoff=measure.cutoff,
        option=_option(measure),
    )
    return _OF_RELEVANT[measure.name](counts)


def over_queries(measure: Measure, values: Values) -> float:
    """Return a measure's one value for many queries, as trec_eval does.

    The mean; the total of what counts documents; the geometric mean of ``GMAP``.
    """
    if measure.name in TOTALS:
        return float(values.sum())
    mean = float(values.mean())
    return float(np.exp(mean)) if measure.name == "GMAP" else mean


def settled(measure: Measure, grades: Ints) -> Measure:
    """Return the measure with ERR's largest grade, unless given, taken from all grades there are.

    For callers of ``compute`` that give it one part of the queries after another.
    """
    if measure.name != "ERR" or measure.option is not None:
        return measure
    largest = float(max(1, grades.max(initial=1)))
    return Measure(measure.name, measure.cutoff, measure.level, largest)


def _option(measure: Measure) -> float:
    option = KINDS[measure.name].default if measure.option is None else measure.option
    return 0.0 if option is None else option


# Measures of the relevant documents.


def _precision(of: _Counts) -> Values:
    """Return hits / k, also where the list is shorter than k (trec_eval's P_k)."""
    return of.found / float(of.cutoff or 1)


def _recall(of: _Counts) -> Values:
    """Return hits / relevant (recall_k; set_recall without a cut-off)."""
    return _ratio(of.found, of.relevant)


def _capped_recall(of: _Counts) -> Values:
    """Return hits / min(k, relevant): BEIR's R_cap@k (Thakur et al., 2021), relative_P_k."""
    return _ratio(of.found, np.minimum(of.relevant, of.cutoff or 1))


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
    return _ratio(_summed(of, (of.nth + 1) / (of.rank + 1)), of.relevant)


def _log_average_precision(of: _Counts) -> Values:
    """Return log max(AP, 0.00001): gm_map by query (Robertson, 2006)."""
    return np.log(np.maximum(_average_precision(of), LEAST_AP))


def _r_precision(of: _Counts) -> Values:
    """Return the precision at rank R, the number of relevant documents (Rprec)."""
    return _ratio(_summed(of, of.rank < of.relevant[of.query]), of.relevant)


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
    return _ratio(of.found, of.retrieved)


def _set_relative_precision(of: _Counts) -> Values:
    """Return relevant retrieved / min(retrieved, relevant) (set_relative_P)."""
    return _ratio(of.found, np.minimum(of.retrieved, of.relevant))


def _set_f(of: _Counts) -> Values:
    """Return (b + 1) P R / (R + b P), of set precision and recall (set_F_b).

    trec_eval's parameter, and ir_measures' beta with it, is the square of van Rijsbergen's (1979).
    """
    precision, recall, beta = _set_precision(of), _recall(of), of.option
    return _ratio((beta + 1) * precision * recall, recall + beta * precision)


def _set_average_precision(of: _Counts) -> Values:
    """Return set precision times set recall (set_map)."""
    return _set_precision(of) * _recall(of)


def _rank_biased(of: _Counts) -> Values:
    """Return (1 - p) times the sum of p^(rank - 1) over the relevant hits: RBP.

    Moffat and Zobel (2008), equation 3, with binary relevance; of what lies below the list nothing
    is assumed.
    """
    return (1 - of.option) * _summed(of, of.option**of.rank)


def _as_float(column: str) -> Callable[[_Counts], Values]:
    return lambda of: np.asarray(getattr(of, column), dtype=np.float64)


_OF_RELEVANT: dict[str, Callable[[_Counts], Values]] = {
    "P": _precision,
    "R": _recall,
    "R_cap": _capped_recall,
    "Success": _success,
    "RR": _reciprocal_rank,
    "AP": _average_precision,
    "GMAP": _log_average_precision,
    "Rprec": _r_precision,
    "IPrec": _interpolated_precision,
    "SetP": _set_precision,
    "SetRelP": _set_relative_precision,
    "SetR": _recall,
    "SetF": _set_f,
    "SetAP": _set_average_precision,
    "RBP": _rank_biased,
    "NumRet": _as_float("retrieved"),
    "NumRel": _as_float("relevant"),
    "NumRelRet": _as_float("found"),
}


# Measures of grades, and of what is judged at all. ``inside`` has the hits within the cut-off.


def _ndcg(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> Values:
    """Return DCG over that of the best order of all judged documents, discount log2(rank + 1).

    Gains are the grades (Jarvelin and Kekalainen, 2002; trec_eval's ndcg and ndcg_cut_k), those of
    ``nDCG_exp`` 2^grade - 1 (Burges et al., 2005; gdeval); a negative grade gains nothing.
    """
    queries = len(given.retrieved)
    gain = np.exp2 if measure.name == "nDCG_exp" else np.float64
    floor = 1.0 if measure.name == "nDCG_exp" else 0.0
    most = int(given.judged_grade.max(initial=0))
    if measure.name == "nDCG_exp" and most > MOST_EXPONENTIAL:
        raise DataError(
            f"{measure}: the qrels hold grade {most}, and 2^{most} is no float64; score by the "
            "grades themselves (nDCG), or map them to a few levels"
        )
    inside = inside & (given.hit_grade > 0)
    gains = (gain(given.hit_grade[inside]) - floor) / np.log2(given.hit_rank[inside] + 2.0)
    reached = _sums(given.hit_query[inside], gains, queries)
    positive = given.judged_grade > 0
    query, grade = given.judged_query[positive], given.judged_grade[positive]
    order = np.lexsort((-grade, query))
    query, grade = query[order], grade[order]
    rank = _places(np.bincount(query, minlength=queries))
    used = rank < (measure.cutoff if measure.cutoff is not None else len(rank))
    gains = (gain(grade[used]) - floor) / np.log2(rank[used] + 2.0)
    return _ratio(reached, _sums(query[used], gains, queries))


def _expected_reciprocal_rank(
    measure: Measure, given: Judgements, inside: NDArray[np.bool_]
) -> Values:
    """Return the expected 1 / rank at which a user stops (Chapelle et al., 2009, equation 4).

    A document of grade g satisfies with (2^g - 1) / 2^max; what is unjudged or below 1 never does.
    """
    queries = len(given.retrieved)
    largest = _option(settled(measure, given.judged_grade))
    if given.judged_grade.max(initial=0) > largest:
        raise ConfigError(
            f"{measure}: the qrels have grade {given.judged_grade.max()}, above the largest grade "
            f"that is given; use max={given.judged_grade.max()} or leave it out"
        )
    inside = inside & (given.hit_grade > 0)
    query, rank = given.hit_query[inside], given.hit_rank[inside]
    satisfied = (np.exp2(given.hit_grade[inside]) - 1) / 2.0**largest
    found = np.bincount(query, minlength=queries)
    nth = _places(found)
    going_on = np.ones((queries, int(found.max(initial=0)) + 1))
    going_on[query, nth + 1] = 1 - satisfied
    arrives = np.cumprod(going_on, axis=1)[query, nth]
    return _sums(query, arrives * satisfied / (rank + 1), queries)


def _bpref(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> Values:
    """Return the share of judged non-relevant documents that stand below the relevant ones.

    Buckley and Voorhees (2004), in trec_eval's form: 1/R times the sum over relevant hits of
    1 - min(n, R) / min(N, R), n the non-relevant hits above and N the judged non-relevant.
    """
    queries = len(given.retrieved)
    rel, non_relevant = _binary(given, measure.level)
    total = np.bincount(given.judged_query[given.judged_grade >= measure.level], minlength=queries)
    is_non = (given.judged_grade >= 0) & (given.judged_grade < measure.level)
    non_total = np.bincount(given.judged_query[is_non], minlength=queries)
    above = _before(given, non_relevant)
    owner = given.hit_query[rel]
    bound = np.minimum(non_total, total)[owner]
    lost = _ratio(np.minimum(above[rel], total[owner]), bound)
    return _ratio(_sums(owner, 1 - lost, queries), total)


def _inferred_ap(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> Values:
    """Return AP estimated from an incompletely judged pool (Yilmaz and Aslam, 2006).

    A negative grade says that a document was in the pool and not judged; one without a judgement
    was not in the pool and counts as not relevant.
    """
    queries = len(given.retrieved)
    rel, non_relevant = _binary(given, measure.level)
    unjudged = given.hit_grade < 0
    total = np.bincount(given.judged_query[given.judged_grade >= measure.level], minlength=queries)
    relevant_above, non_above, pooled_above = (
        _before(given, kind)[rel].astype(np.float64) for kind in (rel, non_relevant, unjudged)
    )
    above = given.hit_rank[rel].astype(np.float64)
    in_pool = _ratio(relevant_above + non_above + pooled_above, above)
    share = (relevant_above + EPSILON) / (relevant_above + non_above + 2 * EPSILON)
    expected = 1 / (above + 1) + above / (above + 1) * in_pool * share
    return _ratio(_sums(given.hit_query[rel], expected, queries), total)


def _judged(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> Values:
    """Return the share of the first k hits, or of all if there are fewer, with a judgement."""
    judged = np.bincount(given.hit_query[inside], minlength=len(given.retrieved))
    return _ratio(judged, np.minimum(given.retrieved, measure.cutoff or 0))


def _hole(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> Values:
    """Return unjudged hits among the first k, over k (hole@k; Thakur et al., 2021)."""
    cutoff = measure.cutoff or 1
    judged = np.bincount(given.hit_query[inside], minlength=len(given.retrieved))
    holes: Values = (np.minimum(given.retrieved, cutoff) - judged) / cutoff
    return holes


def _rank_biased_residual(measure: Measure, given: Judgements, inside: NDArray[np.bool_]) -> Values:
    """Return how much more RBP could be: the weight of all ranks without a judgement.

    Moffat and Zobel (2008), section 4: unjudged hits and everything below the list or cut-off.
    """
    p = _option(measure)
    weights = (1 - p) * p ** given.hit_rank[inside]
    queries = len(given.retrieved)
    return 1.0 - _sums(given.hit_query[inside], weights, queries)


_OF_GRADES: dict[str, Callable[[Measure, Judgements, NDArray[np.bool_]], Values]] = {
    "nDCG": _ndcg,
    "nDCG_exp": _ndcg,
    "ERR": _expected_reciprocal_rank,
    "Bpref": _bpref,
    "infAP": _inferred_ap,
    "Judged": _judged,
    "Hole": _hole,
    "RBP_residual": _rank_biased_residual,
}


def _binary(given: Judgements, level: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which judged hits are relevant, and which are judged not to be."""
    grade = given.hit_grade
    return grade >= level, (grade >= 0) & (grade < level)


def _before(given: Judgements, counted: NDArray[np.bool_]) -> Ints:
    """Return for each judged hit how many of ``counted`` stand above it in its query's list."""
    so_far: Ints = np.cumsum(counted) - counted
    sizes = np.bincount(given.hit_query, minlength=len(given.retrieved))
    first = np.cumsum(sizes) - sizes
    padded = np.append(so_far, 0)  # a query without hits at the end starts behind the last one
    above: Ints = so_far - padded[first][given.hit_query]
    return above


def _places(sizes: Ints) -> Ints:
    """Return 0, 1, ... within each of the groups of these sizes."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _summed(of: _Counts, weights: NDArray[Any]) -> Values:
    return _sums(of.query, weights, len(of.found))


def _sums(query: Ints, weights: NDArray[Any], queries: int) -> Values:
    """Return each query's sum of ``weights``."""
    return np.asarray(np.bincount(query, weights=weights, minlength=queries), dtype=np.float64)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> Values:
    values = np.zeros(len(part))
    np.divide(part, whole, out=values, where=whole > 0)
    return values
