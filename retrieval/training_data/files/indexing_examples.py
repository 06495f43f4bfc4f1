"""``examples: {type: indexing}``: texts of every document, and queries, that ask for it."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.retrieval.training_data.files.corpus_examples import passages_of
from sluice.retrieval.training_data.files.examples import FileExamples
from sluice.retrieval.training_data.files.source import ExampleSource

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.training_data.files.rows import Row
    from sluice.training import Example
    from sluice.training.generation.inverse_cloze import PageText, Passage

log = logging.getLogger("sluice")

KINDS = ("words", "sentences", "paragraphs", "mentions", "phrases")


@dataclass(frozen=True, slots=True)
class IndexingExamples(ExampleSource):
    """Texts of each document, see ``sluice.training.generation.inverse_cloze``, and queries for it.

    ``words``: one text of so many first words (the indexing task of DSI). ``sentences``: at most so
    many of more than ten words; ``paragraphs``: the first three sentences, and other three, at most
    so many; ``mentions``: three sentences around so many mentions of other documents, which ask for
    these (the three tasks of CorpusBrain). ``phrases``: so many queries of its key phrases.
    ``queries`` are files of queries that a model wrote for the documents (`sluice teach generate`),
    and with ``judgements`` those of the train split are learnt too (DSI's retrieval task).
    """

    words: Annotated[int, "One text of so many first words of each document, 64; 0: none."] = 64
    sentences: Annotated[
        int, "Sentences of more than ten words of each document, at most so many."
    ] = 0
    paragraphs: Annotated[
        int, "The first three sentences of each document, and other three, at most."
    ] = 0
    mentions: Annotated[
        int, "Windows around so many mentions of other documents, which ask for these."
    ] = 0
    phrases: Annotated[int, "Queries of key phrases of each document."] = 0
    queries: Annotated[
        str | list[str] | None,
        "Files of queries for documents, as `sluice teach generate` writes them.",
    ] = None
    judgements: Annotated[bool, "Whether the queries of the train split are learnt too."] = False

    def __post_init__(self) -> None:
        for kind in KINDS:
            whole_number(getattr(self, kind), f"indexing.{kind}", 0)
        if not (any(self._wanted().values()) or self.queries or self.judgements):
            raise ConfigError(
                f"indexing: nothing to learn from; give {', '.join(KINDS)}, queries or judgements"
            )

    @property
    def paths(self) -> Sequence[Path]:
        """The files of queries."""
        return () if self._file is None else self._file.paths

    @property
    def _file(self) -> FileExamples | None:
        return None if self.queries is None else FileExamples(self.queries)

    def first_rows(self) -> Iterator[Row]:
        """Yield the first row of each file of queries."""
        return iter(()) if self._file is None else self._file.first_rows()

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return the examples, document by document, then the queries; ``DataError`` for none."""
        examples = list(self._of_documents(dataset, seed))
        counts = Counter(each.query.id.rpartition("-")[0].rpartition("-")[2] for each in examples)
        for name, more in (("queries", self._written(dataset, seed)), ("judgements",
                           self._judged(dataset))):  # fmt: skip
            examples += more
            counts[name] += len(more)
        said = ", ".join(f"{kind} {count:,}" for kind, count in counts.items() if count)
        log.info("%s: %s for identifiers: %s", dataset.name, plural(len(examples), "text"), said)
        for kind, count in {**self._wanted(), "queries": bool(self.queries)}.items():
            if count and not counts[kind]:
                raise DataError(
                    f"{dataset.name}: examples.{kind}: the corpus gives none; leave {kind} out"
                )
        return examples

    def _wanted(self) -> dict[str, int]:
        return {kind: getattr(self, kind) for kind in KINDS}

    def _of_documents(self, dataset: Dataset, seed: int) -> Iterator[Example]:
        from sluice.training import Example, Text
        from sluice.training.generation.inverse_cloze import page_texts

        passages = {passage.id: passage for passage in passages_of(dataset, None)}
        made: list[PageText] = list(page_texts(passages.values(), self._wanted(), seed))
        made += self._phrases(list(passages.values()), seed)
        for number, each in enumerate(made):
            document = passages[each.document_id]
            yield Example(
                Text(f"{each.document_id}-{each.kind}-{number}", each.query),
                (Text(each.document_id, f"{document.title} {document.text}".strip()),),
                relevant=frozenset({each.document_id}),
            )

    def _phrases(self, passages: Sequence[Passage], seed: int) -> Iterator[PageText]:
        from sluice.training.generation.corpus_pairs import PairMaker
        from sluice.training.generation.inverse_cloze import PageText

        if not self.phrases:
            return
        maker = PairMaker.of(passages)
        for passage in passages:
            chance = random.Random(f"indexing:{seed}:{passage.id}")
            drawn = (maker.pair("phrases", passage, chance) for _ in range(self.phrases))
            for query in dict.fromkeys(pair.query for pair in drawn if pair is not None):
                yield PageText("phrases", query, passage.id)

    def _written(self, dataset: Dataset, seed: int) -> list[Example]:
        return [] if self._file is None else self._file.of_epoch(dataset, seed, 0)

    def _judged(self, dataset: Dataset) -> list[Example]:
        from sluice.training import pair_examples

        if not self.judgements:
            return []
        if dataset.split is None:
            raise DataError(
                f"{dataset.name}: examples.judgements: it has no train split; leave judgements out"
            )
        qrels = {name: own for name, own in dataset.qrels.items() if name in dataset.queries}
        needed = {name for own in qrels.values() for name, grade in own.items() if grade > 0}
        texts = {d.id: d.full_text for d in dataset.corpus if d.id in needed}
        there = {q: {d: g for d, g in own.items() if d in texts} for q, own in qrels.items()}
        examples = list(pair_examples(dataset.queries, there, texts))
        if not examples:
            raise DataError(
                f"{dataset.name}: examples.judgements: no document of the corpus is judged "
                "relevant to a training query; leave judgements out"
            )
        return examples
