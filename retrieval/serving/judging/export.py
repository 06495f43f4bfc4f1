"""Makes qrels of judgements: one grade for each pair, by a rule where several people judged it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.serving.judging.state import Judgements, Qrels

BEIR_HEADER = "query-id\tcorpus-id\tscore\n"
FORMATS = ("beir", "trec")


def majority(grades: Sequence[int]) -> int:
    """Return the most frequent grade; of equally frequent ones the lowest."""
    counts = Counter(grades)
    most = max(counts.values())
    return min(grade for grade, count in counts.items() if count == most)


def mean(grades: Sequence[int]) -> int:
    """Return the mean, rounded; a half is rounded up."""
    return (2 * sum(grades) + len(grades)) // (2 * len(grades))


RULES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "majority": majority,
    "mean": mean,
    "max": max,
}


def qrels_of(
    judgements: Judgements,
    rule: Annotated[
        str,
        "The grade where several judged: majority (of a tie the lower), mean (rounded, a half up) "
        "or max.",
    ] = "majority",
    assessors: Annotated[
        Sequence[str], "NAME", "Judgements of this assessor only; may be repeated."
    ] = (),
) -> Qrels:
    """Return one grade for each judged pair: of all assessors, or of those that are named.

    What was skipped has no grade. ``DataError`` if nothing is judged, ``ConfigError`` for a name
    that nobody has or an unknown rule.
    """
    if rule not in RULES:
        known = ", ".join(RULES)
        raise ConfigError(f"rule: {rule!r}; expected one of {known}{suggest(rule, RULES)}")
    known_names = judgements.assessors
    for name in assessors:
        if name not in known_names:
            listing = ", ".join(known_names) or "nobody has judged"
            raise ConfigError(
                f"assessor: {name!r}; expected one of {listing}{suggest(name, known_names)}"
            )
    graded = judgements.grades_by_pair(assessors or known_names)
    if not graded:
        raise DataError("no document is judged yet; qrels need one judgement at least")
    return {
        query: {document: RULES[rule](grades) for document, grades in of_query.items()}
        for query, of_query in graded.items()
    }


def unjudged(judgements: Judgements, qrels: Qrels) -> int:
    """Return how many candidates of the queries in qrels have no grade there."""
    return sum(
        document not in graded
        for query, graded in qrels.items()
        for document in judgements.pools.get(query, {})
    )


def qrels_text(
    qrels: Qrels,
    form: Annotated[str, "beir (three columns with a header) or trec (four)."] = "beir",
) -> str:
    """Return qrels as BEIR's three columns with a header, or as TREC's four.

    ``DataError`` for an id with white space that the form cannot hold.
    """
    if form not in FORMATS:
        raise ConfigError(
            f"format: {form!r}; expected one of {', '.join(FORMATS)}{suggest(form, FORMATS)}"
        )
    rows = [(q, doc, grade) for q, graded in qrels.items() for doc, grade in graded.items()]
    _check_ids((name for query, document, _ in rows for name in (query, document)), form)
    if form == "trec":
        return "".join(f"{query} 0 {document} {grade}\n" for query, document, grade in rows)
    lines = "".join(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)
    return BEIR_HEADER + lines


def _check_ids(names: Iterable[str], form: str) -> None:
    for name in names:
        if form == "trec" and name.split() != [name]:
            raise DataError(f"id {name!r:.80}: has white space, which TREC's form cannot hold; "
                            "choose beir, or rename it")  # fmt: skip
        if "\t" in name or name.splitlines() != [name]:
            raise DataError(f"id {name!r:.80}: has a tab or a line break; rename it")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(f"id {name!a:.80}: is not Unicode and cannot be written") from None
