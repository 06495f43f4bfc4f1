"""The queries of a training file over a dataset's corpus: what negatives are mined for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.encoders.foundation.same_text import same_text_key
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import Places, Qrels

if TYPE_CHECKING:
    from sluice.retrieval.datasets.source import Source
    from sluice.retrieval.documents.document import Document
    from sluice.training import Example

SPLIT = "train"


class _Asked:
    """Another source's corpus with the queries and positives of examples as its train split."""

    def __init__(self, source: Source, examples: Iterable[Example]) -> None:
        self._source = source
        self.name = source.name
        self._queries: dict[str, str] = {}
        self._qrels: Qrels = {}
        for example in examples:
            query = example.query.id
            self._queries[query] = example.query.text
            self._qrels.setdefault(query, {}).update(dict.fromkeys(sorted(example.relevant), 1))

    def splits(self) -> list[str]:
        return [SPLIT]

    def places(self, split: str) -> Places:
        place = "the training file"
        return Places(self._source.places(split).corpus, place, place)

    def documents(self) -> Iterator[Document]:
        return self._source.documents()

    def document_count(self) -> int | None:
        return self._source.document_count()

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        return self._queries.items()

    def qrels(self, split: str) -> Qrels:
        return self._qrels


def asked_dataset(examples: Iterable[Example], dataset: Dataset) -> Dataset:
    """Return the examples' queries and positives as a train split over the dataset's corpus."""
    found = Dataset(
        _Asked(dataset.source, examples),
        SPLIT,
        ignore_identical_ids=dataset.ignore_identical_ids,
    )
    found.corpus = dataset.corpus
    return found


def with_negatives(
    examples: Iterable[Example], negatives: Mapping[str, Sequence[str]], texts: Mapping[str, str]
) -> list[Example]:
    """Return the examples with mined negatives behind their own.

    Left out are documents without a text, those that an example has already, those relevant to its
    query, and those whose text is that of one of its positives. They have no teacher's score.
    """
    from sluice.training import Text

    made = []
    for example in examples:
        labelled = list(zip(example.documents, example.labels, strict=True))
        known = {document.id for document, _ in labelled} | example.relevant
        same = {same_text_key(document.text) for document, label in labelled if label > 0}
        found = [
            Text(name, texts[name])
            for name in dict.fromkeys(negatives.get(example.query.id, ()))
            if name in texts and name not in known and same_text_key(texts[name]) not in same
        ]
        made.append(
            replace(
                example,
                documents=(*example.documents, *found),
                labels=(*example.labels, *[0.0] * len(found)),
                scores=(*example.scores, *[float("nan")] * len(found)) if example.scores else (),
                answered=(*example.answered, *[""] * len(found)) if example.answered else (),
            )
        )
    return made
