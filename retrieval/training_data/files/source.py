"""The base of sources of training examples, which a section ``examples`` names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.runs.run import Run
    from sluice.retrieval.training_data.files.rows import Row
    from sluice.training import Example


class ExampleSource:
    """Makes training examples of a dataset: a subclass writes ``examples``.

    One that ``changes`` draws new examples in every epoch: its ``examples`` takes ``epoch`` too.
    """

    __slots__ = ()

    @property
    def changes(self) -> bool:
        """Whether an epoch's examples differ from those of the one before."""
        return False

    @property
    def lists(self) -> Any:
        """What it searches the corpus with, as ``negatives.retriever`` names it; None: nothing."""
        return None

    @property
    def paths(self) -> Sequence[Path]:
        """The files it reads, which must exist; they decide what is learnt."""
        return ()

    @property
    def models(self) -> Sequence[str]:
        """The folders or hub ids of the models it opens; they decide what is learnt."""
        return ()

    @property
    def keeps(self) -> bool:
        """Whether its ``examples`` takes ``folder``, where what took long to make is kept."""
        return False

    def first_rows(self) -> Iterator[Row]:
        """Yield the rows that show before any work whether its files can be read."""
        return iter(())

    def stream(self) -> Iterator[Row] | None:
        """Return the rows as they are in its files; None where examples are made otherwise."""
        return None

    def of_epoch(
        self,
        dataset: Dataset,
        seed: int,
        epoch: int,
        lists: Stage | Run | None = None,
        folder: Path | None = None,
    ) -> list[Example]:
        """Return the examples of an epoch, the same ones in each unless the source changes.

        ``lists`` is what ``self.lists`` names, opened; ``folder`` is for a source that ``keeps``.
        """
        source: Any = self
        further: dict[str, Any] = {"epoch": epoch} if self.changes else {}
        if lists is not None:
            further["lists"] = lists
        if self.keeps:
            further["folder"] = folder
        examples: list[Example] = source.examples(dataset, seed, **further)
        return examples


class _Adapted(ExampleSource):
    """Gives a user's own source, not an ``ExampleSource``, the attributes that it lacks."""

    __slots__ = ("_source", "examples")

    def __init__(self, source: Any) -> None:
        self._source = source
        self.examples = source.examples

    @property
    def changes(self) -> bool:
        """The source's own, else False."""
        return bool(getattr(self._source, "changes", False))

    @property
    def paths(self) -> Sequence[Path]:
        """The source's own, else none."""
        return tuple(getattr(self._source, "paths", ()))


def as_source(source: Any, where: str = "examples") -> ExampleSource:
    """Return a source with every attribute: itself, or an adapter around a user's own.

    That is an object with ``examples(dataset, seed)``, which may have ``changes`` and ``paths``.
    Raises ``ConfigError`` for anything else.
    """
    if isinstance(source, ExampleSource):
        return source
    if not callable(getattr(source, "examples", None)):
        raise ConfigError(
            f"{where}: {type(source).__name__} has no examples; expected an object with "
            "examples(dataset, seed)"
        )
    return _Adapted(source)
