"""Examples made from the corpus alone: ``examples: {type: ict}``, ``bfs``, ``wlp``, ``texts``."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Interval

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.retrieval.training_data.files.examples import FileExamples
from sluice.retrieval.training_data.files.rows import ExampleSource
from sluice.training.losses import loss_traits

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.training_data.files.rows import Row
    from sluice.training import Example
    from sluice.training.generation.inverse_cloze import PageText, Passage


@dataclass(frozen=True, slots=True)
@checked("ict.")
class ClozeExamples(ExampleSource):
    """Inverse cloze over a corpus, see ``sluice.training.generation.inverse_cloze.ict_examples``.

    ``keep`` is the chance that the sentence stays in its document, ``per_document`` how many
    sentences of each document become queries, ``documents`` a limit (the corpus' first). ``bodies``
    adds the pairs of ``bfs`` for every document.
    """

    changes: ClassVar[bool] = True  # new examples in every epoch

    keep: Annotated[
        float, Interval(ge=0, le=1), "The chance that the sentence stays in its document."
    ] = 0.1
    per_document: Annotated[int, Ge(1), "Sentences of each document that become queries."] = 1
    documents: int | None = None
    bodies: Annotated[bool, "Whether pairs of title and body are added."] = False

    def __post_init__(self) -> None:
        _check_limit(self.documents, "ict")

    def examples(self, dataset: Dataset, seed: int, epoch: int = 0) -> list[Example]:
        """Return the examples of an epoch; ``DataError`` where no document has two sentences."""
        from sluice.training.generation.inverse_cloze import body_examples, ict_examples

        passages = list(passages_of(dataset, self.documents))
        examples = list(ict_examples(passages, seed, epoch, self.keep, self.per_document))
        if not examples:
            raise DataError(
                f"{dataset.name}: none of {len(passages):,} documents has two sentences, and ict "
                "needs one as the query and one as the document; try examples: {type: bfs}"
            )
        return [*examples, *body_examples(passages, seed, epoch)] if self.bodies else examples


@dataclass(frozen=True, slots=True)
class BodyExamples(ExampleSource):
    """Titles or first sentences and their bodies, see ``inverse_cloze.body_examples``."""

    changes: ClassVar[bool] = True

    documents: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.documents, "bfs")

    def examples(self, dataset: Dataset, seed: int, epoch: int = 0) -> list[Example]:
        """Return the examples of an epoch."""
        from sluice.training.generation.inverse_cloze import body_examples

        examples = list(body_examples(passages_of(dataset, self.documents), seed, epoch))
        if not examples:
            raise DataError(f"{dataset.name}: no document has a title or a second sentence")
        return examples


@dataclass(frozen=True, slots=True)
class LinkedExamples(ExampleSource):
    """First sentences and documents that are linked, see ``linked_pages.linked_examples``.

    ``links`` is the key of the metadata that lists the ids a document links to; left out, a
    document links to those that its text names by id or title. ``documents`` is a limit, the
    corpus' first.
    """

    changes: ClassVar[bool] = True

    links: Annotated[
        str | None,
        "The metadata key that lists linked ids; left out, a document links to those that "
        "its text names by id or title.",
    ] = None
    documents: int | None = None

    def __post_init__(self) -> None:
        if self.links is not None and not (isinstance(self.links, str) and self.links):
            raise ConfigError(f"wlp.links: {self.links!r}; expected a key of the metadata")
        _check_limit(self.documents, "wlp")

    def examples(self, dataset: Dataset, seed: int, epoch: int = 0) -> list[Example]:
        """Return the examples of an epoch; ``DataError`` where no document has a link."""
        from sluice.training.generation.inverse_cloze import linked_examples, mention_links

        passages = list(passages_of(dataset, self.documents))
        if self.links is None:
            links = mention_links(passages)
        else:
            links = _noted_links(islice(dataset.corpus, self.documents), self.links)
        examples = list(linked_examples(passages, links, seed, epoch))
        if not examples:
            lack = (
                "names another by its id or title"
                if self.links is None
                else f"lists another's id under the metadata key {self.links!r}"
            )
            raise DataError(
                f"{dataset.name}: none of {len(passages):,} documents {lack}, and wlp needs "
                "links; try examples: {type: ict}"
            )
        return examples


def _noted_links(documents: Iterable[Document], key: str) -> dict[str, list[str]]:
    links: dict[str, list[str]] = {}
    for document in documents:
        noted = document.metadata.get(key)
        if noted is not None:
            targets = [noted] if isinstance(noted, (str, int, float)) else noted
            links[document.id] = [str(target) for target in targets]
    return links


def _check_limit(documents: int | None, kind: str) -> None:
    if documents is not None:
        whole_number(documents, f"{kind}.documents", 1)


def passages_of(dataset: Dataset, most: int | None) -> Iterator[Passage]:
    """Yield the documents of the corpus, its first ``most``."""
    from sluice.training.generation.inverse_cloze import Passage

    for document in islice(dataset.corpus, most):
        yield Passage(document.id, document.title, document.text)


@dataclass(frozen=True, slots=True)
class TextExamples(ExampleSource):
    """Every document of the corpus that has a text; ``documents`` is a limit, the corpus' first."""

    documents: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.documents, "texts")

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return one example per document, without a query; ``DataError`` if all are blank."""
        from sluice.training import Example
        from sluice.training.protocol import Text

        examples = [
            Example(Text(document.id, ""), (Text(document.id, document.full_text),))
            for document in islice(dataset.corpus, self.documents)
            if document.full_text.strip()
        ]
        if not examples:
            raise DataError(f"{dataset.name}: no document of the corpus has a text")
        return examples


def sees_queries(section: TrainingSection) -> bool:
    """Return whether training reads queries, to learn from them or to be evaluated."""
    return not loss_traits(section.loss).texts_alone or section.evaluate is not None


def splits_of(section: TrainingSection, dataset: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Return what training learns from and the dev split that evaluates it meanwhile.

    A corpus without training queries is enough to learn from texts alone, or from examples that
    are not the dataset's own, unless dev evaluation has no dev split to use.
    """
    from sluice.retrieval.datasets.dataset import training_splits
    from sluice.retrieval.datasets.source import find_split

    if not sees_queries(section):
        corpus = dataset.with_split(None)
        return corpus, corpus
    if section.examples is None:
        return training_splits(dataset, seed)
    if find_split("train", dataset.splits) is None:
        corpus = dataset.with_split(None)
        return corpus, corpus if section.evaluate is None else dataset.with_split("dev")
    if section.evaluate is None and too_few_to_hold_out(dataset):
        train = dataset.with_split("train")
        return train, train
    return training_splits(dataset, seed)


def too_few_to_hold_out(dataset: Dataset) -> bool:
    """Return whether a dataset has no dev split, and too few training queries to make one."""
    from sluice.retrieval.datasets.source import find_split

    if find_split("dev", dataset.splits) is not None:
        return False
    queries = dataset.with_split("train").queries
    return len(set(map(same_text_key, queries.values()))) < 2


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
        if not (any(self._counts().values()) or self.queries or self.judgements):
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
        for kind, count in {**self._counts(), "queries": bool(self.queries)}.items():
            if count and not counts[kind]:
                raise DataError(
                    f"{dataset.name}: examples.{kind}: the corpus gives none; leave {kind} out"
                )
        return examples

    def _counts(self) -> dict[str, int]:
        return {kind: getattr(self, kind) for kind in KINDS}

    def _of_documents(self, dataset: Dataset, seed: int) -> Iterator[Example]:
        from sluice.training import Example, Text
        from sluice.training.generation.inverse_cloze import page_texts

        passages = {passage.id: passage for passage in passages_of(dataset, None)}
        texts: list[PageText] = list(page_texts(passages.values(), self._counts(), seed))
        texts += self._phrases(list(passages.values()), seed)
        for number, each in enumerate(texts):
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
        maker = PairMaker.from_passages(passages)
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
