"""Says what each column of a table of results means, for those who have not met it before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.measures import parse_measure

# docs/measures.md has the formulas and their sources; ``{at}`` is "the first 10" or "all".
MEANINGS: Final = {
    "nDCG": "gain of {at} documents, discounted by rank, over that of the best order; 1 is perfect",
    "nDCG_exp": "as nDCG over {at} documents, with gains 2^grade - 1; 1 is perfect",
    "P": "share of {at} documents that are relevant",
    "R": "share of a query's relevant documents that are among {at}",
    "R_cap": "relevant documents among {at}, over as many as could be there",
    "Success": "share of queries with a relevant document among {at}",
    "AP": "precision at each relevant document, averaged over a query's relevant documents",
    "GMAP": "geometric mean of AP over queries: weak queries weigh more",
    "RR": "1 / rank of the first relevant document among {at} (MRR)",
    "Rprec": "precision at the rank that is a query's number of relevant documents",
    "Bpref": "judged non-relevant documents below relevant ones; unjudged ones do not count",
    "infAP": "AP estimated from a sampled pool of judgements",
    "IPrec": "best precision at this recall or more",
    "SetP": "share of all retrieved documents that are relevant",
    "SetRelP": "relevant documents retrieved, over as many as could be",
    "SetR": "share of a query's relevant documents that were retrieved",
    "SetF": "weighted harmonic mean of precision and recall of all retrieved documents",
    "SetAP": "precision times recall of all retrieved documents",
    "NumRet": "documents retrieved, summed over queries",
    "NumRel": "relevant documents in the judgements, summed over queries",
    "NumRelRet": "relevant documents retrieved, summed over queries",
    "ERR": "expected 1 / rank at which a user who is satisfied by grades stops",
    "RBP": "gain of a user who continues to the next document with probability p",
    "RBP_residual": "what RBP could gain if everything unjudged were relevant",
    "Judged": "share of {at} documents that have a judgement",
    "Hole": "share of {at} documents that have no judgement",
}
COSTS: Final = {
    "p50 ms": "median time of one query alone, encoding included, in milliseconds",
    "p95 ms": "19 of 20 queries take no longer, in milliseconds",
    "p99 ms": "99 of 100 queries take no longer, in milliseconds",
    "queries/s": "queries a second, all of them handed over at once",
    "index MB": "size of every index that the system searches, in megabytes",
    "bytes/doc": "size of the indexes for each document, in bytes",
    "indexed docs/s": "documents a second when the indexes were built, encoding included",
    "peak MB": "most memory of the process during the run, models included, in megabytes",
}


def meanings(columns: Iterable[str]) -> dict[str, str]:
    """Return what each of the columns means; a user's own measures are left out."""
    found = {}
    for column in columns:
        text = COSTS.get(column) or _of_measure(column)
        if text:
            found[column] = text
    return found


def _of_measure(column: str) -> str:
    try:
        measure = parse_measure(column)
    except ConfigError:
        return ""
    at = f"the first {measure.cutoff:,}" if measure.cutoff else "all retrieved"
    text = MEANINGS.get(measure.name, "").format(at=at)
    level = f" (relevant is a grade of {measure.level} or more)" if measure.level != 1 else ""
    return text + level if text else ""
