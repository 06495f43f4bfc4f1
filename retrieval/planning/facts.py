"""What the data behind a config is like: splits, numbers, lengths, columns; a sample is read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.input.bounded import expanded
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.training_data.files.formats import rows_of
from sluice.retrieval.training_data.files.records import read_records

SAMPLE = 2_000  # documents, queries or rows that are read for their lengths
TOKENS_PER_WORD = 1.35  # of English text, in the word pieces of BERT's kin
READ = 256  # tokens that the usual sentence encoders read
_NEGATIVE = re.compile("neg|label|score|grade", re.I).search  # in the name of a column


class Lengths(NamedTuple):
    """Words of texts: the median, and what 95 of 100 do not exceed; 0 where nothing was read."""

    median: int
    most: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> Lengths:
        """Measure texts."""
        words = sorted(len(text.split()) for text in texts)
        if not words:
            return cls(0, 0)
        return cls(words[len(words) // 2], words[min(len(words) - 1, len(words) * 95 // 100)])

    def tokens(self, least: int, most: int) -> int:
        """Return a number of tokens that reads nearly all, in steps of 16, within bounds."""
        needed = round(self.most * TOKENS_PER_WORD) + 2  # with [CLS] and [SEP]
        return max(least, min(most, -(-needed // 16) * 16))


class Facts(NamedTuple):
    """A dataset, or a file of pairs, as far as a config needs to know it.

    ``documents`` is None where counting takes a pass; ``splits`` are those with judgements.
    ``negatives``: whether a file of pairs has negatives or labels.
    """

    name: str
    documents: int | None
    splits: tuple[str, ...]
    text: Lengths
    query: Lengths
    columns: tuple[str, ...] = ()
    negatives: bool = False

    @property
    def cut(self) -> bool:
        """Whether more than a few documents are longer than an encoder reads."""
        return self.text.most * TOKENS_PER_WORD > READ

    @property
    def training(self) -> bool:
        """Whether there is a train split."""
        return find_split("train", self.splits) is not None

    @property
    def evaluated(self) -> str:
        """The split to evaluate on: test, else dev, else any."""
        for name in ("test", "dev"):
            found = find_split(name, self.splits)
            if found is not None:
                return found
        return self.splits[0] if self.splits else "test"


def dataset_facts(dataset: Dataset) -> Facts:
    """Read a sample of a dataset's documents and queries."""
    documents = [d.full_text for d in itertools.islice(dataset.corpus, SAMPLE)]
    size = dataset.corpus.size
    if size is None and len(documents) < SAMPLE:
        size = len(documents)
    splits = dataset.splits
    first = next((s for s in ("train", "test", *splits) if find_split(s, splits)), None)
    queries: list[str] = []
    if first is not None:
        queries = list(itertools.islice(dataset.with_split(first).queries.values(), SAMPLE))
    return Facts(dataset.name, size, tuple(splits), Lengths.of(documents), Lengths.of(queries))


def pair_facts(file: Path) -> Facts:
    """Read a sample of a file of training pairs, as training reads it.

    Where its columns are not guessed, the first one of texts holds the queries. Raises
    ``DataError`` for a file or a row that training refuses too.
    """
    path = expanded(file)
    records = [value for _, value in itertools.islice(read_records(path), SAMPLE)]
    if not records:
        raise DataError(f"{file}: no rows; expected pairs such as query and positive")
    names = tuple(dict.fromkeys(name for value in records for name in value))
    try:
        _, rows = rows_of(path)
    except DataError:  # not guessed: the config's author says it, under columns
        return _unguessed(file, names, records)
    sample = list(itertools.islice(rows, SAMPLE))
    queries = (row.query.text or "" for row in sample)
    documents = (one.document.text or "" for row in sample for one in row.documents)
    negatives = any(row.graded or any(one.label <= 0 for one in row.documents) for row in sample)
    text, query = Lengths.of(documents), Lengths.of(queries)
    return Facts(str(file), None, (), text, query, names, negatives)


def _unguessed(file: Path, names: tuple[str, ...], records: list[dict[str, Any]]) -> Facts:
    lengths = [Lengths.of(str(value.get(name) or "") for value in records) for name in names]
    longest = max(lengths[1:] or [Lengths(0, 0)], key=lambda each: each.most)
    negatives = any(map(_NEGATIVE, names))
    return Facts(str(file), None, (), longest, lengths[0], names, negatives)
