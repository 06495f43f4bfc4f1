"""What the data behind a config is like: splits, numbers, lengths, columns; a sample is read."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import find_split

SAMPLE = 2_000  # documents, queries or rows that are read for their lengths
TOKENS_PER_WORD = 1.35  # of English text, in the word pieces of BERT's kin
READ = 256  # tokens that the usual sentence encoders read


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
    """

    name: str
    documents: int | None
    splits: tuple[str, ...]
    text: Lengths
    query: Lengths
    columns: tuple[str, ...] = ()

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
    """Read a sample of a file of training pairs; the first column of texts holds the queries."""
    rows = _rows(file)
    if not rows:
        raise DataError(f"{file}: no rows; expected pairs such as query and positive")
    names = tuple(rows[0])
    texts = [[str(row.get(name) or "") for row in rows] for name in names]
    lengths = [Lengths.of(each) for each in texts]
    rest = [lengths[place] for place in range(1, len(names))] or [Lengths(0, 0)]
    longest = max(rest, key=lambda each: each.most)
    return Facts(str(file), None, (), longest, lengths[0], names)


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the first rows of a CSV, TSV or JSON lines file; none of another form."""
    if not file.is_file():
        raise DataError(f"{file}: no such file; expected pairs as CSV, TSV or JSON lines")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            if file.suffix in (".csv", ".tsv"):
                delimiter = "\t" if file.suffix == ".tsv" else ","
                reader = csv.DictReader(stream, delimiter=delimiter)
                return list(itertools.islice(reader, SAMPLE))
            lines = itertools.islice((line for line in stream if line.strip()), SAMPLE)
            rows = [json.loads(line) for line in lines]
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise DataError(f"{file}: not CSV, TSV or JSON lines in UTF-8 ({error})") from None
    return [row for row in rows if isinstance(row, dict)]
