"""Examples from training files: rows, the dataset's texts by id, what must not be trained on."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.same_text import same_text_key
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.training_data.files.formats import FORMATS, rows_of
from sluice.retrieval.training_data.files.rows import Labelled, Row

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example

log = logging.getLogger("sluice")

TOLD = 1000  # rows between two looks at the progress


@dataclass(frozen=True, slots=True)
class FileExamples:
    """``examples: {file: ...}``: what a training learns from lies in files of a usual format.

    ``file`` is a path or several, read in that order. ``format`` is told from the first row, or one
    of ``bge`` (jsonl of query, pos, neg, pos_scores, neg_scores), ``columns`` (anchor, positive,
    negative_1 to negative_n, and a label or score: csv, tsv, jsonl, parquet), ``triples`` (tsv of
    texts), ``id_triples`` and ``scored_triples`` (tsv of ids), ``tevatron``, ``msmarco`` (jsonl of
    ids), ``graded`` (query, document, grade). Ids without texts are the dataset's.

    ``per_query`` limits the negatives of an example, to the first of a row (``top``) or as many at
    random, by seed; a row with fewer keeps what it has. ``positives: each`` makes one example of
    every positive of a row, ``together`` one of all. ``scores: false`` takes the scores of a file
    for no teacher's. ``rows`` reads no more than so many.
    """

    file: str | list[str]
    format: str = "auto"
    per_query: int | None = None
    sampling: Literal["top", "random"] = "top"
    positives: Literal["each", "together"] = "each"
    scores: bool = True
    rows: int | None = None

    def __post_init__(self) -> None:
        known = ("auto", *FORMATS)
        if self.format not in known:
            raise ConfigError(
                f"format: {self.format!r}; known: {', '.join(known)}{suggest(self.format, known)}"
            )
        if self.per_query is not None and self.per_query < 0:
            raise ConfigError(f"per_query: {self.per_query}, expected 0 or more")
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"rows: {self.rows}, expected 1 or more")
        for name, known in (("sampling", ("top", "random")), ("positives", ("each", "together"))):
            if getattr(self, name) not in known:
                expected = " or ".join(repr(value) for value in known)
                raise ConfigError(f"{name}: {getattr(self, name)!r}, expected {expected}")
        if not self.paths:
            raise ConfigError("file: names no file; give a path, or a list of paths")

    @property
    def paths(self) -> list[Path]:
        """The files in the order they are read."""
        names = [self.file] if isinstance(self.file, str) else self.file
        return [Path(name).expanduser() for name in names]

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return the files' examples, in their order.

        ``dataset`` gives texts of ids, further known positives (where query ids and texts are its
        own), and the queries of ``dev`` and ``test``: rows that ask one of those, by text, are
        left out, with a warning. Raises ``DataError`` for a bad row and where none is left.
        """
        rows = _together(islice(self._rows(), self.rows))
        rows = with_texts(rows, dataset)
        rows = _untested(rows, dataset)
        made = list(self._made(rows, dataset, seed))
        if not made:
            raise DataError(
                f"{self.paths[0]}: no example is left of {len(rows):,} rows; see the warnings"
            )
        return made

    def _rows(self) -> Iterator[Row]:
        for path in self.paths:
            name, rows = rows_of(path, self.format)
            with progress(f"read {path.name} ({name})", None, "rows") as advance:
                for count, row in enumerate(rows, 1):
                    yield row
                    if count % TOLD == 0:
                        advance(TOLD)
                advance(count % TOLD)

    def _made(self, rows: Sequence[Row], dataset: Dataset, seed: int) -> Iterator[Example]:
        from sluice.training import Example, Text

        relevant = _relevant(rows, dataset)
        counts: Counter[str] = Counter()
        for number, row in enumerate(rows):
            query = row.query.key
            positives = [found for found in row.documents if found.label > 0]
            if not positives:
                counts["without positive"] += 1
                continue
            texts = {same_text_key(found.document.text or "") for found in positives}
            negatives = [
                found
                for found in row.documents
                if found.label <= 0
                and found.document.key not in relevant[query]
                and same_text_key(found.document.text or "") not in texts
            ]
            counts["false"] += len(row.documents) - len(positives) - len(negatives)
            if self.per_query is not None:
                counts["short"] += len(negatives) < self.per_query
                negatives = self._chosen(negatives, f"{seed}:{number}:{query}")
            together = row.graded or self.positives == "together"
            for group in [positives] if together else [[found] for found in positives]:
                documents = [*group, *negatives]
                scores = tuple(found.score for found in documents)
                yield Example(
                    Text(query, row.query.text or ""),
                    tuple(Text(one.document.key, one.document.text or "") for one in documents),
                    tuple(found.label for found in documents),
                    relevant[query],
                    scores if self.scores and not all(map(math.isnan, scores)) else (),
                )
        self._say(counts, len(rows))

    def _chosen(self, negatives: list[Labelled], key: str) -> list[Labelled]:
        wanted = self.per_query or 0
        if self.sampling == "top" or len(negatives) <= wanted:
            return negatives[:wanted]
        places = sorted(random.Random(key).sample(range(len(negatives)), wanted))
        return [negatives[place] for place in places]

    def _say(self, counts: Counter[str], rows: int) -> None:
        name = self.paths[0]
        if counts["without positive"]:
            log.warning(
                "%s: %s of %s queries have no document graded above 0, and are left out",
                name, f"{counts['without positive']:,}", f"{rows:,}",
            )  # fmt: skip
        if counts["false"]:
            log.warning(
                "%s: %s negatives are known positives of their query, by id or text, and are "
                "left out", name, f"{counts['false']:,}",
            )  # fmt: skip
        if counts["short"]:
            log.warning(
                "%s: %s of %s rows have fewer than per_query: %s negatives; they keep what they "
                "have", name, f"{counts['short']:,}", f"{rows:,}", self.per_query,
            )  # fmt: skip


def _together(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, graded ones of one query as one row where its first stood.

    A document graded twice keeps the later grade.
    """
    kept: list[Row] = []
    places: dict[str, int] = {}
    lists: dict[int, dict[str, Labelled]] = {}
    for row in rows:
        if not row.graded:
            kept.append(row)
            continue
        key = row.query.key
        if key not in places:
            places[key] = len(kept)
            kept.append(row)
        found = lists.setdefault(places[key], {})
        found.update((one.document.key, one) for one in row.documents)
    for place, documents in lists.items():
        best_first = sorted(documents.values(), key=lambda one: -one.label)
        kept[place] = kept[place]._replace(documents=tuple(best_first))
    return kept


def _relevant(rows: Iterable[Row], dataset: Dataset) -> dict[str, frozenset[str]]:
    """Return all known positives of each query: the file's, and the dataset's of the same query."""
    found: dict[str, set[str]] = {}
    own: dict[str, str] = dataset.queries if dataset.split is not None else {}
    for row in rows:
        key = row.query.key
        if key not in found:
            same = row.query.id is not None and key in own and _is_same(own[key], row.query.text)
            grades = dataset.qrels[key] if same else {}
            found[key] = {doc for doc, grade in grades.items() if grade > 0}
        found[key].update(one.document.key for one in row.documents if one.label > 0)
    return {key: frozenset(documents) for key, documents in found.items()}


def _untested(rows: list[Row], dataset: Dataset) -> list[Row]:
    """Return the rows without those whose query is one of the dataset's dev or test queries."""
    held: set[str] = set()
    for split in ("dev", "test"):
        if find_split(split, dataset.splits) is not None:
            held.update(map(same_text_key, dataset.with_split(split).queries.values()))
    kept = [row for row in rows if same_text_key(row.query.text or "") not in held]
    if len(kept) < len(rows):
        log.warning(
            "%s: %s of %s rows of the training file ask a query of the dev or test split, and are "
            "left out",
            dataset.name,
            f"{len(rows) - len(kept):,}",
            f"{len(rows):,}",
        )
    return kept


def _is_same(text: str, other: str | None) -> bool:
    return same_text_key(text) == same_text_key(other or "")


def with_texts(rows: list[Row], dataset: Dataset) -> list[Row]:
    """Return the rows with the dataset's texts where they have ids only.

    Documents that the dataset has no text for (or a blank one) are left out, and so are rows that
    lose their query or their last positive: counted in a warning. ``DataError`` if that is all.
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
    query_texts, document_texts = _queries(queries, dataset), _documents(documents, dataset)
    kept = [found for row in rows if (found := _filled(row, query_texts, document_texts))]
    lost = len(rows) - len(kept)
    absent = sorted(queries - query_texts.keys()) + sorted(documents - document_texts.keys())
    if not kept and rows:
        raise DataError(
            f"{rows[0].place}: none of the {len(rows):,} rows names a query and a positive that "
            f"dataset {dataset.name} has texts for (such as {', '.join(absent[:3])}); the file "
            "belongs to another collection: give that as dataset"
        )
    if absent:
        log.warning(
            "%s: has no text for %s of the ids in the training file (%s); %s of %s rows are left "
            "out for it",
            dataset.name, f"{len(absent):,}", ", ".join(absent[:3]), f"{lost:,}", f"{len(rows):,}",
        )  # fmt: skip
    return kept


def _queries(wanted: set[str], dataset: Dataset) -> dict[str, str]:
    if not wanted:
        return {}
    stream = dataset.source.queries(dataset.split or "train")
    return {name: text for name, text in stream if name in wanted and text.strip()}


def _documents(wanted: set[str], dataset: Dataset) -> dict[str, str]:
    if not wanted:
        return {}
    found: Iterable[tuple[str, str]] = ((d.id, d.full_text) for d in dataset.corpus)
    return {name: text for name, text in found if name in wanted and text}


def _filled(row: Row, queries: Mapping[str, str], documents: Mapping[str, str]) -> Row | None:
    """Return the row with its texts, None where its query or every positive has none."""
    query = row.query
    if query.text is None:
        query = query._replace(text=queries.get(query.id or ""))
    made = []
    for one in row.documents:
        document = one.document
        if document.text is None:
            document = document._replace(text=documents.get(document.id or ""))
        if document.text is not None:
            made.append(one._replace(document=document))
    had = any(one.label > 0 for one in row.documents)  # a graded list may have none
    whole = query.text is not None and any(one.label > 0 for one in made) >= had
    return row._replace(query=query, documents=tuple(made)) if whole else None
