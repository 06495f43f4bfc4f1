"""``examples: {type: ict}`` and ``{type: bfs}``: pairs made from the dataset's corpus alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from sluice.encoders.foundation.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example
    from sluice.training.generation.inverse_cloze import Passage


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
