"""The section ``examples``: training examples from files or the corpus, not from judgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.config.component_types import EXAMPLES
from sluice.retrieval.training_data.files.rows import ExampleSource, as_source
from sluice.training.losses import loss_traits

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.runs.run import Run
    from sluice.training import Example


NEGATIVE = "a negative"
MORE_NEGATIVES = (
    "give rows with negatives, or mine some (with a dataset): negatives: {type: mined, "
    "retriever: ...}"
)


def example_source(
    spec: Mapping[str, Any] | None, where: str = "examples", allow: Allow = None
) -> ExampleSource:
    """Return what a section ``examples`` says; without one, a source that names and has nothing."""
    if spec is None:
        return ExampleSource()
    return as_source(build({"type": "file", **spec}, EXAMPLES, where=where, allow=allow), where)


def file_examples(
    section_examples: Mapping[str, Any],
    dataset: Dataset,
    seed: int,
    *,
    epoch: int = 0,
    where: str = "examples",
    open_lists: Callable[[Any, str], Stage | Run] | None = None,
    folder: Path | None = None,
) -> list[Example]:
    """Return the examples that a section ``examples`` describes.

    ``dataset`` is the train split: it gives the texts of ids, and dev and test queries, which are
    never trained on. ``epoch`` matters to sources that draw new examples in each (ict, bfs).
    ``open_lists`` opens what the section searches with, by its key path. ``folder`` is where a
    source keeps what took long to make (generated).
    """
    source = example_source(section_examples, where)
    lists = None
    if source.lists is not None:
        if open_lists is None:
            raise ConfigError(f"{where}.retriever: cannot be opened here")
        lists = open_lists(source.lists, f"{where}.retriever")
    return source.of_epoch(dataset, seed, epoch, lists, folder)


def searched_with(spec: Mapping[str, Any] | None) -> Any:
    """Return what a section ``examples`` searches its corpus with, as it names it; or None."""
    return None if spec is None else spec.get("retriever")


def source_of(section: TrainingSection) -> Mapping[str, Any] | None:
    """Return the section ``examples``, or the one that the loss implies."""
    texts = loss_traits(section.loss).texts_alone
    return {"type": "texts"} if texts and section.examples is None else section.examples


def check_examples(spec: Mapping[str, Any], where: str, allow: Allow = None) -> None:
    """Check a section ``examples`` before any work: its keys, its files and their first rows."""
    source = example_source(spec, where, allow)
    for path in source.paths:
        if not path.is_file():
            names = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
            raise ConfigError(f"{where}.file: no file {path}{suggest(path.name, names)}")
    for _ in source.first_rows():
        pass


def refuse_unlearnable(
    examples: list[Example],
    alone: str,
    where: str = "examples",
    *,
    across: bool = False,
) -> None:
    """Raise ``DataError`` if no example has a negative of its own.

    For cross-encoders and losses over a query's own documents; ``alone`` says which, in a clause.
    ``across``: the loss compares documents
    of different queries too, by their grades.
    """
    negative = any(label <= 0 for example in examples for label in example.labels)
    grades = [set(example.labels) for example in examples]
    graded = any(len(own) > 1 for own in grades) or (across and len(set().union(*grades)) > 1)
    if not negative and not graded:
        raise DataError(f"{where}: no example has {NEGATIVE}; {alone}; {MORE_NEGATIVES}")
