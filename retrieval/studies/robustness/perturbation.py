"""Perturbs queries and documents for stress tests, and tables what came of it.

A perturbation depends only on its name, a seed and the text, so it is the same in any order,
process and system.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.lexical.analyzer import analyzer
from sluice.retrieval.documents.document import Document
from sluice.retrieval.evaluation.comparison import SignificanceTest
from sluice.retrieval.evaluation.measures import Measure, over_queries
from sluice.retrieval.evaluation.table import MARK, Table

CLEAN = "clean"
TOP = 10  # ranks that count as promotion

Values = NDArray[np.float64]


class Shift(NamedTuple):
    """A document's rank, from 1, in the clean ranking and in the one where it is perturbed.

    A document that fell out of the results has the rank after the last.
    """

    query: str
    doc_id: str
    before: int
    after: int


@dataclass(slots=True)
class Outcome:
    """One perturbation's effect on one system; ``values`` has a number per query by measure."""

    queries: list[str]
    values: dict[str, Values]
    overlaps: list[float]
    shifts: list[Shift] = field(default_factory=list)

    @property
    def rbo(self) -> float | None:
        """The mean rank-biased overlap with the clean ranking, over the first 100 documents."""
        return float(np.mean(self.overlaps)) if self.overlaps else None


class Filtering(NamedTuple):
    """The stuffing filter's threshold, and the shares of clean and stuffed documents it flags."""

    threshold: float
    false_positives: float
    stuffed: float


@dataclass(slots=True)
class Robustness:
    """The outcomes by system and perturbation (``clean`` comes first), and their table."""

    outcomes: dict[str, dict[str, Outcome]]
    filtering: dict[str, Filtering]
    skipped: dict[str, str]
    table: Table


def outcome_table(result: Robustness, measures: Sequence[Measure], alpha: float) -> Table:
    """Return a row for each system and perturbation."""
    table = Table()
    for name in map(str, measures):
        table.columns |= {name: ".4f", f"{name} change": "+.4f", f"{name} p": ".2g"}
    table.columns |= {"RBO": ".3f", "median shift": "+.0f", f"into top {TOP}": ".1%"}
    for system, outcomes in result.outcomes.items():
        for perturbation, outcome in outcomes.items():
            row = table.rows.setdefault(f"{system} {perturbation}", {"RBO": outcome.rbo})
            if outcome.shifts:
                moved = [shift.before - shift.after for shift in outcome.shifts]
                row["median shift"] = float(np.median(moved))
                promoted = [shift.after <= TOP for shift in outcome.shifts]
                row[f"into top {TOP}"] = float(np.mean(promoted))
        for measure in measures:
            for perturbation, outcome in outcomes.items():
                if outcome.queries:
                    value = over_queries(measure, outcome.values[str(measure)])
                    table.rows[f"{system} {perturbation}"][str(measure)] = value
            _add_tests(table, system, str(measure), outcomes, alpha)
    table.caption = _caption(result, alpha)
    return table


def _add_tests(
    table: Table,
    system: str,
    measure: str,
    outcomes: Mapping[str, Outcome],
    alpha: float,
) -> None:
    """Add the changes to the clean run, their p-values and marks."""
    clean = outcomes[CLEAN]
    base = dict(zip(clean.queries, clean.values[measure].tolist(), strict=True))
    perturbed = {name: each for name, each in outcomes.items() if name != CLEAN and each.queries}
    before = {name: np.array([base[q] for q in each.queries]) for name, each in perturbed.items()}
    testing = SignificanceTest(alpha=alpha)
    family = [
        testing.compared(
            f"{system} {name}", f"{system} {CLEAN}", measure, each.values[measure], before[name]
        )
        for name, each in perturbed.items()
    ]
    for change in testing.corrected(family):
        row = table.rows[change.system]
        row[f"{measure} change"] = change.difference
        row[f"{measure} p"] = change.p_corrected
        if change.significant:
            table.marks[change.system, f"{measure} change"] = MARK
        table.comparisons.append(change)


def _caption(result: Robustness, alpha: float) -> str:
    counts = [len(outcomes[CLEAN].queries) for outcomes in result.outcomes.values()]
    parts = [
        f"{MARK} differs from the system's clean run: paired two-sided t-test, p < {alpha:g}, "
        f"Holm-corrected over its perturbations; {max(counts, default=0):,} queries. Perturbed "
        f"documents are not judged relevant and rank below {TOP}, one at a time; a positive shift "
        "is upwards."
    ]
    parts += [
        f"{name}: a stuffing filter (share of query terms above {each.threshold:.2f}) flags "
        f"{each.stuffed:.1%} of the stuffed documents and {each.false_positives:.1%} of clean ones."
        for name, each in result.filtering.items()
    ]
    parts += [f"{name}: no document was perturbed ({why})." for name, why in result.skipped.items()]
    return " ".join(parts)


LEAST_LETTERS = 4  # of a word that gets a typo
TYPO_SHARE = 0.25  # of such words in a query, at least one
TIMES = 5  # that a query is repeated in a stuffed document
TRUNCATED = 0.5  # share of the words that truncation keeps
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_WORD = re.compile(r"[^\W\d_]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Around(NamedTuple):
    """The query that a document is perturbed for, and a sentence about something else."""

    query: str
    unrelated: str


def perturbed_query(text: str, name: str, seed: int = 0) -> str:
    """Return a query under one of ``QUERY_PERTURBATIONS``.

    Typos go into a quarter of the words of four letters or more (at least one) and never change a
    word's first letter: a neighbour on the keyboard, two letters swapped, one dropped, one doubled
    (Zhuang and Zuccon, 2021). ``truncated`` keeps the first half of the words. A query with nothing
    to change is returned unchanged.
    """
    change_text = QUERY_PERTURBATIONS[_known(name, QUERY_PERTURBATIONS)]
    return change_text(text, Random(f"{seed}/{name}/{text}"))


def perturbed_document(document: Document, name: str, around: Around) -> Document:
    """Return a document under one of ``DOCUMENT_PERTURBATIONS``.

    ``stuffed`` puts the query five times before the text. ``sentence-first`` and ``sentence-last``
    add an unrelated sentence before or after it. ``truncated`` keeps the first half of its words.
    ``upper`` writes title and text in capitals. The title stays in front.
    """
    return DOCUMENT_PERTURBATIONS[_known(name, DOCUMENT_PERTURBATIONS)](document, around)


def first_sentence(text: str) -> str:
    """Return a text's first sentence, up to a full stop, an exclamation or a question mark."""
    return _SENTENCE.split(text.strip(), maxsplit=1)[0]


class StuffingFilter(NamedTuple):
    """Flags a document if the query's terms are more than a share ``threshold`` of its terms."""

    threshold: float
    language: str = "en"

    @classmethod
    def fitted(
        cls,
        pairs: list[tuple[str, str]],
        *,
        false_positives: float = 0.01,
        language: str = "en",
    ) -> StuffingFilter:
        """Return the lowest threshold that flags at most this share of clean (query, text) pairs.

        The pairs should resemble those to filter, such as queries with the documents that a
        retriever returns for them, which share terms with the query. ``ConfigError`` if there are
        none.
        """
        if not pairs or not 0 <= false_positives < 1:
            raise ConfigError(
                f"stuffing filter: {len(pairs)} clean pairs and false_positives={false_positives}; "
                "expected at least one pair, and a share from 0 to below 1"
            )
        shares = sorted((term_share(*pair, language=language) for pair in pairs), reverse=True)
        return cls(shares[int(false_positives * len(shares))], language)

    def flags(self, query: str, text: str) -> bool:
        """Return whether the document is flagged."""
        return term_share(query, text, language=self.language) > self.threshold


def term_share(query: str, text: str, *, language: str = "en") -> float:
    """Return the share of a text's terms, stopped and stemmed, that are terms of the query."""
    terms = analyzer(language)
    of_query, of_text = set(terms(query)), terms(text)
    return sum(term in of_query for term in of_text) / len(of_text) if of_text else 0.0


def _known(name: str, table: Mapping[str, object]) -> str:
    if name not in table:
        raise ConfigError(
            f"perturbation: unknown {name!r}; known: {', '.join(table)}{suggest(name, table)}"
        )
    return name


def _neighbours() -> dict[str, str]:
    """Return the letters beside and diagonally beside each key of a QWERTY keyboard."""
    near: dict[str, str] = {}
    for number, row in enumerate(_ROWS):
        for place, letter in enumerate(row):
            beside = [row[at] for at in (place - 1, place + 1) if 0 <= at < len(row)]
            if number:  # a lower row is shifted half a key to the right
                beside += [_ROWS[number - 1][at] for at in (place, place + 1)]
            if number + 1 < len(_ROWS):
                below = _ROWS[number + 1]
                beside += [below[at] for at in (place - 1, place) if 0 <= at < len(below)]
            near[letter] = "".join(sorted(beside))
    return near


_NEAR = _neighbours()


def _typos(change: Callable[[str, Random], str]) -> Callable[[str, Random], str]:
    def change_text(text: str, random: Random) -> str:
        words = [match for match in _WORD.finditer(text) if len(match[0]) >= LEAST_LETTERS]
        count = max(1, round(TYPO_SHARE * len(words)))
        for match in sorted(random.sample(words, min(count, len(words))), key=_start, reverse=True):
            text = text[: match.start()] + change(match[0], random) + text[match.end() :]
        return text

    return change_text


def _start(match: re.Match[str]) -> int:
    return match.start()


def _neighbour(word: str, random: Random) -> str:
    places = [place for place in range(1, len(word)) if word[place].lower() in _NEAR]
    if not places:
        return word
    place = random.choice(places)
    letter = random.choice(_NEAR[word[place].lower()])
    return word[:place] + (letter.upper() if word[place].isupper() else letter) + word[place + 1 :]


def _swap(word: str, random: Random) -> str:
    places = [place for place in range(1, len(word) - 1) if word[place] != word[place + 1]]
    if not places:
        return word
    place = random.choice(places)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _drop(word: str, random: Random) -> str:
    place = random.randrange(1, len(word))
    return word[:place] + word[place + 1 :]


def _double(word: str, random: Random) -> str:
    place = random.randrange(1, len(word))
    return word[: place + 1] + word[place:]


def _truncated(text: str) -> str:
    words = text.split()
    return " ".join(words[: max(1, round(TRUNCATED * len(words)))])


def _stuffed(document: Document, around: Around) -> Document:
    return document._replace(text=" ".join([*[around.query] * TIMES, document.text]).strip())


QUERY_PERTURBATIONS: Mapping[str, Callable[[str, Random], str]] = {
    "typo-neighbour": _typos(_neighbour),
    "typo-swap": _typos(_swap),
    "typo-drop": _typos(_drop),
    "typo-double": _typos(_double),
    "upper": lambda text, _: text.upper(),
    "lower": lambda text, _: text.lower(),
    "title": lambda text, _: text.title(),
    "truncated": lambda text, _: _truncated(text),
}
DOCUMENT_PERTURBATIONS: Mapping[str, Callable[[Document, Around], Document]] = {
    "stuffed": _stuffed,
    "sentence-first": lambda document, around: document._replace(
        text=f"{around.unrelated} {document.text}".strip()
    ),
    "sentence-last": lambda document, around: document._replace(
        text=f"{document.text} {around.unrelated}".strip()
    ),
    "truncated": lambda document, _: document._replace(text=_truncated(document.text)),
    "upper": lambda document, _: document._replace(
        title=document.title.upper(), text=document.text.upper()
    ),
}
