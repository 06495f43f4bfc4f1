"""Examples made from the corpus alone: ``examples: {type: ict}``, ``bfs``, ``wlp``, ``texts``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Interval

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.input.same_text import same_text_key
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.training_data.files.source import ExampleSource

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
    from sluice.training import Example
    from sluice.training.generation.inverse_cloze import Passage


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
            found = (
                "names another by its id or title"
                if self.links is None
                else f"lists another's id under the metadata key {self.links!r}"
            )
            raise DataError(
                f"{dataset.name}: none of {len(passages):,} documents {found}, and wlp needs "
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
        from sluice.training.example import Text

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
    return section.loss.get("type") != "masked_language" or section.evaluate is not None


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
