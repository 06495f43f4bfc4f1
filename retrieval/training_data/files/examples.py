"""Reads training files into examples: adds texts by id, drops what must not be trained on."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from sluice.encoders.foundation.bounded_input import expanded, same_text_key
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.training_data.files.columns import check_columns
from sluice.retrieval.training_data.files.formats import FORMATS, rows_of
from sluice.retrieval.training_data.files.row_lists import streamable, together
from sluice.retrieval.training_data.files.rows import (
    DESCRIPTIONS,
    NO_SCORE,
    ExampleSource,
    Labelled,
    Row,
    below_limits,
    check_limits,
    drawn,
    limits_of,
    without_right_ones,
)
from sluice.training.negatives.settings import Among, Mining

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example, ExampleStream

log = logging.getLogger("sluice")

REPORTED = 1000  # rows between two updates of the progress


@dataclass(frozen=True, slots=True)
@checked()
class FileExamples(ExampleSource):
    """``examples: {file: ...}``: training examples from files of the usual formats.

    ``file`` is a path or several, read in that order. ``format`` is detected from the first row, or
    one of ``bge`` (jsonl of query, pos, neg, pos_scores, neg_scores, neg_queries: queries that the
    negatives answer), ``columns`` (anchor, positive, negative_1 to negative_n, and a label or
    score: csv, tsv, jsonl, parquet), ``triples`` (tsv of texts), ``id_triples`` and
    ``scored_triples`` (tsv of ids), ``tevatron``, ``msmarco`` (jsonl of ids), ``graded`` (query,
    document, grade), ``descriptions`` (jsonl of sentence, good, bad: descriptions that fit it and
    such that do not). Ids without texts are the dataset's. ``columns`` says what columns of other
    names hold: ``query``, ``positive``, ``negative`` (one or a list), ``label``; those it does not
    say are guessed, and the log names them.

    ``per_query`` limits the negatives of an example: to the first of a row (``top``) or to as many
    at random, by seed; a row with fewer keeps them all. ``positives: each`` makes one example of
    every positive of a row, ``together`` one of all. ``max_positive_ratio`` p and ``margin`` m drop
    negatives by the scores that rows bring: kept are those of ``s < s+ - |s+| (1 - p)`` and
    ``s < s+ - m``, s+ the ``positive_score`` (lowest, mean, highest) of the row's positives; so one
    file of many candidates serves every threshold. ``scores: false`` ignores the scores in a
    file. ``rows`` is the most rows to read.

    With ``buffer`` the files stay on disk: every epoch reads them anew and draws its batches from
    so many examples. Such rows bring their texts, whole lists of documents and no negative queries.

    Rows of any format may have ``negative_queries``, which their positives do not answer: for the
    loss ``misfits``. The setting of that name limits them to as many of a row, drawn by seed; 0
    leaves them out.
    """

    file: Annotated[str | list[str], "The file, or several."]
    format: Annotated[
        str,
        "bge, columns, triples, id_triples, scored_triples, tevatron, msmarco, graded, "
        "descriptions; auto: seen from the first row.",
    ] = "auto"
    per_query: Annotated[int | None, Ge(0), "Negatives of an example, at most."] = None
    sampling: Annotated[
        Literal["top", "random"], "Which negatives: top (the first), or random."
    ] = "top"
    positives: Annotated[
        Literal["each", "together"],
        "Several positives in a row: each an example, or together in one.",
    ] = "each"
    scores: Annotated[bool, "Whether scores in the rows are learnt, as a teacher's."] = True
    max_positive_ratio: Annotated[
        float | None,
        "The highest share of the positive's score in the row that a negative may have; "
        "left out, any.",
    ] = None
    margin: Annotated[
        float | None, "How far a negative's score in the row must be below the positive's."
    ] = None
    positive_score: Annotated[
        Among, "Of several positives, the score that counts for these limits."
    ] = "lowest"
    rows: Annotated[int | None, Ge(1)] = None
    negative_queries: Annotated[
        int | None,
        Ge(0),
        "Of a row's queries that its positives do not answer, at most so many, drawn by "
        "seed; 0: none.",
    ] = None
    buffer: Annotated[
        int | None,
        Ge(1),
        "Examples in memory at a time: files larger than memory are read in every epoch and "
        "shuffled within so many; left out, all.",
    ] = None
    columns: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            check_columns(self.columns)
            if self.format != "auto":
                raise ConfigError(
                    f"columns: is for files of columns, and format: {self.format} has its own "
                    "names; leave format out"
                )
        known = ("auto", *FORMATS, DESCRIPTIONS)
        if self.format not in known:
            raise ConfigError(
                f"format: {self.format!r}; known: {', '.join(known)}{suggest(self.format, known)}"
            )
        check_limits(self.max_positive_ratio, self.margin, self.positive_score)
        for name, known in (("sampling", ("top", "random")), ("positives", ("each", "together"))):
            if getattr(self, name) not in known:
                expected = " or ".join(repr(value) for value in known)
                raise ConfigError(f"{name}: {getattr(self, name)!r}, expected {expected}")
        if not self.paths:
            raise ConfigError("file: an empty list; give a path, or a list of paths")

    @property
    def paths(self) -> list[Path]:
        """The files in the order they are read."""
        names = [self.file] if isinstance(self.file, str) else self.file
        return [expanded(name) for name in names]

    def first_rows(self) -> Iterator[Row]:
        """Yield the first row of every file; ``DataError`` for a file of no known format."""
        for path in self.paths:
            _, rows = rows_of(path, self.format, self.columns)
            yield next(rows)

    def stream(self) -> Iterator[Row]:
        """Yield the rows, without the scores where ``scores`` is off."""
        read = (rows_of(path, self.format, self.columns)[1] for path in self.paths)
        for row in islice(chain.from_iterable(read), self.rows):
            bare = tuple(one._replace(score=NO_SCORE) for one in row.documents)
            yield row if self.scores else row._replace(documents=bare)

    def streamed(self, dataset: Dataset, seed: int) -> ExampleStream:
        """Return the files' examples as they are read, without those of dev and test queries."""
        from sluice.training import ExampleStream

        tested = tested_texts(dataset)

        def relevant(row: Row) -> frozenset[str]:
            own = {one.document.key for one in row.documents if one.label > 0}
            return frozenset(known_positives(row.query.key, row.query.text or "", dataset) | own)

        def read() -> Iterator[Example]:
            rows = streamable(islice(self._rows(), self.rows), tested, self.negative_queries)
            yield from self._examples(rows, relevant, seed)

        return ExampleStream(read, buffer=self.buffer or 1)

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return the files' examples, in their order.

        ``dataset`` gives texts of ids, further known positives (where query ids and texts are its
        own), and the queries of ``dev`` and ``test``: rows with the text of one of those are left
        out, with a warning. Raises ``DataError`` for a bad row, and if no row is left.
        """
        rows = together(islice(self._rows(), self.rows))
        rows = with_texts(rows, dataset)
        tested = tested_texts(dataset)
        rows = untested(rows, dataset, tested)
        limit = self.negative_queries
        rows = without_right_ones(rows, dataset, tested, limit, str(self.paths[0]))
        relevant = _relevant(rows, dataset)
        examples = list(self._examples(rows, lambda row: relevant[row.query.key], seed))
        if not examples:
            raise DataError(
                f"{self.paths[0]}: no example is left of {len(rows):,} rows; see the warnings"
            )
        return examples

    def _rows(self) -> Iterator[Row]:
        for path in self.paths:
            name, rows = rows_of(path, self.format, self.columns)
            with progress(f"read {path.name} ({name})", None, "rows") as advance:
                for count, row in enumerate(rows, 1):
                    yield row
                    if count % REPORTED == 0:
                        advance(REPORTED)
                advance(count % REPORTED)

    def _examples(
        self, rows: Iterable[Row], relevant_of: Callable[[Row], frozenset[str]], seed: int
    ) -> Iterator[Example]:
        from sluice.training import Example, Text

        counts: Counter[str] = Counter()
        for number, row in enumerate(rows):
            counts["rows"] += 1
            query, relevant = row.query.key, relevant_of(row)
            positives = [one for one in row.documents if one.label > 0]
            if not positives:
                counts["without positive"] += 1
                continue
            texts = {same_text_key(one.document.text or "") for one in positives}
            negatives = [
                one
                for one in row.documents
                if one.label <= 0
                and one.document.key not in relevant
                and same_text_key(one.document.text or "") not in texts
            ]
            counts["false"] += len(row.documents) - len(positives) - len(negatives)
            if self._limits is not None:
                within = below_limits(row, negatives, self._limits)
                counts["unscored"] += within is None
                below = negatives if within is None else within
                counts["limited"] += len(negatives) - len(below)
                counts["scored"] += within is not None
                negatives = below
            if self.per_query is not None:
                counts["short"] += len(negatives) < self.per_query
                negatives = self._chosen(negatives, f"{seed}:{number}:{query}")
            together = row.graded or self.positives == "together"
            for group in [positives] if together else [[one] for one in positives]:
                documents = [*group, *negatives]
                scores = tuple(one.score for one in documents)
                answered = tuple(one.answered for one in documents)
                yield Example(
                    Text(query, row.query.text or ""),
                    tuple(Text(one.document.key, one.document.text or "") for one in documents),
                    tuple(one.label for one in documents),
                    relevant,
                    scores if self.scores and not all(map(math.isnan, scores)) else (),
                    answered=answered if any(answered) else (),
                    negative_queries=drawn(row, self.negative_queries, f"{seed}:{number}:{query}"),
                )
        if self._limits is not None:
            self._check_scored(counts)
        self._warn(counts, counts["rows"])

    @property
    def _limits(self) -> Mining | None:
        """The limits of the negatives' scores, None without any."""
        if self.max_positive_ratio is None and self.margin is None:
            return None
        return limits_of(self.max_positive_ratio, self.margin, self.positive_score)

    def _check_scored(self, counts: Counter[str]) -> None:
        """Raise ``DataError`` if no row could be held to the limits; say what they dropped."""
        if not counts["scored"]:
            raise DataError(
                f"{self.paths[0]}: no row has scores of its positive and its negatives, which "
                "max_positive_ratio and margin need; mine again (`sluice mine` writes them), or "
                "leave the limits out"
            )
        log.info(
            "%s: %s negatives are too near their positives", self.paths[0],
            f"{counts['limited']:,}",
        )  # fmt: skip

    def _chosen(self, negatives: list[Labelled], key: str) -> list[Labelled]:
        limit = self.per_query or 0
        if self.sampling == "top" or len(negatives) <= limit:
            return negatives[:limit]
        places = sorted(random.Random(key).sample(range(len(negatives)), limit))
        return [negatives[place] for place in places]

    def _warn(self, counts: Counter[str], rows: int) -> None:
        said = {
            "without positive": f"left out {{}} of {rows:,} queries: no document graded above 0",
            "unscored": f"kept all negatives of {{}} of {rows:,} rows, whose scores are incomplete",
            "false": "left out negatives that are known positives of their query, by id or text: "
            "{}",
            "short": f"fewer negatives than per_query: {self.per_query} in {{}} of {rows:,} rows",
        }
        for kind, text in said.items():
            if counts[kind]:
                log.warning("%s: %s", self.paths[0], text.format(f"{counts[kind]:,}"))


def _relevant(rows: Iterable[Row], dataset: Dataset) -> dict[str, frozenset[str]]:
    """Return all known positives of each query: the file's, and the dataset's of the same query."""
    relevant: dict[str, set[str]] = {}
    for row in rows:
        key, text = row.query.key, row.query.text or ""
        if key not in relevant:
            relevant[key] = set() if row.query.id is None else known_positives(key, text, dataset)
        relevant[key].update(one.document.key for one in row.documents if one.label > 0)
    return {key: frozenset(documents) for key, documents in relevant.items()}


def known_positives(query_id: str, text: str, dataset: Dataset) -> set[str]:
    """Return the documents relevant to a query that the dataset's split has by this id and text."""
    own: dict[str, str] = dataset.queries if dataset.split is not None else {}
    if query_id not in own or same_text_key(own[query_id]) != same_text_key(text):
        return set()
    return {doc for doc, grade in dataset.qrels[query_id].items() if grade > 0}


def tested_texts(dataset: Dataset) -> set[str]:
    """Return the keys of the texts of the dataset's dev and test queries."""
    tested: set[str] = set()
    for split in ("dev", "test"):
        if find_split(split, dataset.splits) is not None:
            tested.update(map(same_text_key, dataset.with_split(split).queries.values()))
    return tested


def untested(rows: list[Row], dataset: Dataset, tested: set[str]) -> list[Row]:
    """Return the rows without those whose query is ``tested``: a dev or test query's."""
    untested = [row for row in rows if same_text_key(row.query.text or "") not in tested]
    if len(untested) < len(rows):
        log.warning(
            "%s: left out %s of %s rows of the training file: their query is in the dev or test "
            "split", dataset.name, f"{len(rows) - len(untested):,}", f"{len(rows):,}",
        )  # fmt: skip
    return untested


def with_texts(rows: list[Row], dataset: Dataset) -> list[Row]:
    """Return the rows with the dataset's texts where they have ids only.

    Documents without a text are left out, and so are rows that lose their query or their last
    positive: counted in a warning. ``DataError`` if no row is left.
    """
    queries = {row.query.id for row in rows if row.query.text is None and row.query.id}
    documents = {
        one.document.id
        for row in rows
        for one in row.documents
        if one.document.text is None and one.document.id
    }
    if not queries and not documents:
        return rows
    query_of, answers = query_texts(queries, dataset), document_texts(documents, dataset)
    filled = [full for row in rows if (full := _filled(row, query_of, answers))]
    absent = sorted(queries - query_of.keys()) + sorted(documents - answers.keys())
    if not filled and rows:
        raise DataError(
            f"{rows[0].place}: none of the {len(rows):,} rows names a query and a positive that "
            f"dataset {dataset.name} has texts for (such as {', '.join(absent[:3])}); the file "
            "belongs to another collection: name that as dataset"
        )
    if absent:
        log.warning(
            "%s: no text for %s of %s ids in the training file (%s); left out %s of %s rows",
            dataset.name, f"{len(absent):,}", f"{len(queries) + len(documents):,}",
            ", ".join(absent[:3]), f"{len(rows) - len(filled):,}", f"{len(rows):,}",
        )  # fmt: skip
    return filled


def query_texts(ids: set[str], dataset: Dataset) -> dict[str, str]:
    """Return the texts of the train queries among ``ids`` that have one."""
    if not ids:
        return {}
    stream = dataset.source.queries(dataset.split or "train")
    return {name: text for name, text in stream if name in ids and text.strip()}


def document_texts(ids: set[str], dataset: Dataset) -> dict[str, str]:
    """Return the texts of the documents among ``ids`` that have one."""
    if not ids:
        return {}
    return {d.id: d.full_text for d in dataset.corpus if d.id in ids and d.full_text}


def _filled(row: Row, queries: Mapping[str, str], documents: Mapping[str, str]) -> Row | None:
    """Return the row with its texts, None if its query or all its positives lack one."""
    query = row.query
    if query.text is None:
        query = query._replace(text=queries.get(query.id or ""))
    filled = []
    for one in row.documents:
        document = one.document
        if document.text is None:
            document = document._replace(text=documents.get(document.id or ""))
        if document.text is not None:
            filled.append(one._replace(document=document))
    had = any(one.label > 0 for one in row.documents)  # a graded list may have none
    complete = query.text is not None and any(one.label > 0 for one in filled) >= had
    return row._replace(query=query, documents=tuple(filled)) if complete else None
