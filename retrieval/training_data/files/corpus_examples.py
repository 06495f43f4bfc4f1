"""``examples: {type: texts}``: the corpus' texts alone, for masked-language training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from sluice.encoders.foundation.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example
    from sluice.training.generation.inverse_cloze import Passage
    from sluice.training.losses.base import LossBase


@dataclass(frozen=True, slots=True)
class ClozeExamples:
    """Inverse cloze over a corpus, see ``sluice.training.generation.inverse_cloze.ict_examples``.

    ``keep`` is the chance that the sentence stays in its document, ``per_document`` how many
    sentences of each document are asked, ``documents`` a limit (the corpus' first). ``bodies``
    adds the pairs of ``bfs`` for every document.
    """

    changes: ClassVar[bool] = True  # other examples in every epoch

    keep: float = 0.1
    per_document: int = 1
    documents: int | None = None
    bodies: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise ConfigError(f"ict.keep: {self.keep}, expected a share from 0 to 1")
        for name in ("per_document", "documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"ict.{name}: {value}, expected 1 or more")

    def examples(self, dataset: Dataset, seed: int, epoch: int = 0) -> list[Example]:
        """Return the examples of an epoch; ``DataError`` where no document has two sentences."""
        from sluice.training.generation.inverse_cloze import body_examples, ict_examples

        passages = list(_passages(dataset, self.documents))
        made = list(ict_examples(passages, seed, epoch, self.keep, self.per_document))
        if not made:
            raise DataError(
                f"{dataset.name}: no document of {len(passages):,} has two sentences, which ict "
                "needs: a sentence to ask for and the rest; try examples: {type: bfs}"
            )
        return [*made, *body_examples(passages, seed, epoch)] if self.bodies else made


@dataclass(frozen=True, slots=True)
class BodyExamples:
    """Titles or first sentences and their bodies, see ``inverse_cloze.body_examples``."""

    changes: ClassVar[bool] = True

    documents: int | None = None

    def __post_init__(self) -> None:
        if self.documents is not None and self.documents < 1:
            raise ConfigError(f"bfs.documents: {self.documents}, expected 1 or more")

    def examples(self, dataset: Dataset, seed: int, epoch: int = 0) -> list[Example]:
        """Return the examples of an epoch."""
        from sluice.training.generation.inverse_cloze import body_examples

        made = list(body_examples(_passages(dataset, self.documents), seed, epoch))
        if not made:
            raise DataError(f"{dataset.name}: no document has a title or a second sentence")
        return made


def _passages(dataset: Dataset, most: int | None) -> Iterator[Passage]:
    from sluice.training.generation.inverse_cloze import Passage

    for document in islice(dataset.corpus, most):
        yield Passage(document.id, document.title, document.text)


@dataclass(frozen=True, slots=True)
class TextExamples:
    """Every document of the corpus that has a text; ``documents`` is a limit, the corpus' first."""

    documents: int | None = None

    def __post_init__(self) -> None:
        if self.documents is not None and self.documents < 1:
            raise ConfigError(f"texts.documents: {self.documents}, expected 1 or more")

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return an example a document, without a query; ``DataError`` where no text is."""
        from sluice.training import Example
        from sluice.training.example import Text

        made = [
            Example(Text(document.id, ""), (Text(document.id, document.full_text),))
            for document in islice(dataset.corpus, self.documents)
            if document.full_text.strip()
        ]
        if not made:
            raise DataError(f"{dataset.name}: no document of the corpus has a text")
        return made


def sees_queries(section: TrainingSection) -> bool:
    """Return whether a training reads queries, to learn from them or to be evaluated."""
    return section.loss.get("type") != "masked_language" or section.evaluate is not None


def splits_of(section: TrainingSection, dataset: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Return what a training learns from and what evaluates it meanwhile.

    A corpus without training queries is enough where texts alone are learnt or the examples are not
    the dataset's own, and nothing evaluates, or a dev split is there to.
    """
    from sluice.retrieval.datasets.dataset import training_splits
    from sluice.retrieval.datasets.source import find_split

    if not sees_queries(section):
        alone = dataset.with_split(None)
        return alone, alone
    if section.examples is not None and find_split("train", dataset.splits) is None:
        alone = dataset.with_split(None)
        if section.evaluate is None:
            return alone, alone
        return alone, dataset.with_split("dev")
    return training_splits(dataset, seed)


def check_texts_alone(section: TrainingSection, loss: LossBase, prefix: str) -> bool:
    """Return whether a loss learns from texts without queries; check that a training suits it."""
    name = section.loss["type"]
    of_texts = section.examples is not None and section.examples.get("type") == "texts"
    if not loss.texts_alone:
        if of_texts:
            raise ConfigError(
                f"{prefix}examples.type: texts have no queries, from which {name} learns; they are "
                "for loss: {type: masked_language}"
            )
        return False
    if section.encoder.get("type") == "towers":
        raise ConfigError(f"{prefix}encoder: {name} trains one splade encoder, not towers")
    for key in ("negatives", "teacher"):
        if getattr(section, key) is not None:
            raise ConfigError(f"{prefix}{key}: {name} learns from texts alone; leave it out")
    for key in ("query", "target_query_terms"):
        if (section.sparsity or {}).get(key) is not None:
            raise ConfigError(f"{prefix}sparsity.{key}: {name} has no queries; give document")
    return True
