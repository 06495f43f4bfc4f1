"""Where a training's examples come from, when not from the dataset's judgements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example

EXAMPLES = {
    "bfs": "sluice.retrieval.training_data.files.corpus_examples:BodyExamples",
    "file": "sluice.retrieval.training_data.files.examples:FileExamples",
    "ict": "sluice.retrieval.training_data.files.corpus_examples:ClozeExamples",
    "texts": "sluice.retrieval.training_data.files.corpus_examples:TextExamples",
}


def file_examples(
    section_examples: Mapping[str, Any],
    dataset: Dataset,
    seed: int,
    *,
    epoch: int = 0,
    where: str = "examples",
) -> list[Example]:
    """Return the examples that a section ``examples`` describes.

    ``dataset`` is the train split: it gives the texts of ids, and dev and test queries, which are
    never trained on. ``epoch`` matters to sources that draw other examples in each (ict, bfs).
    """
    source = _made(section_examples, where, None)
    drawn = {"epoch": epoch} if getattr(source, "changes", False) else {}
    found: list[Example] = source.examples(dataset, seed, **drawn)
    return found


def source_of(section: TrainingSection) -> Mapping[str, Any] | None:
    """Return the source that a training's section names, or that its loss takes without one."""
    texts = section.loss.get("type") == "masked_language"
    return {"type": "texts"} if texts and section.examples is None else section.examples


def check_examples(spec: Mapping[str, Any], where: str, allow: Allow = None) -> None:
    """Check a section ``examples`` before any work: its keys, and that its files are there."""
    source = _made(spec, where, allow)
    for path in getattr(source, "paths", ()):
        if not path.is_file():
            names = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
            raise ConfigError(f"{where}.file: no file {path}{suggest(path.name, names)}")


def example_files(spec: Mapping[str, Any] | None) -> list[Path]:
    """Return the files that a section ``examples`` names, for the key of a training."""
    source = None if spec is None else _made(spec, "examples", None)
    return list(getattr(source, "paths", ()))


def changes(spec: Mapping[str, Any] | None) -> bool:
    """Return whether a section ``examples`` draws others in every epoch."""
    return spec is not None and bool(getattr(_made(spec, "examples", None), "changes", False))


def refuse_unlearnable(examples: list[Example], alone: str, where: str = "examples") -> None:
    """Raise ``DataError`` if no example has a negative of its own.

    For cross-encoders and losses over a query's own documents; ``alone`` says which, in a clause.
    """
    if not any(label <= 0 for example in examples for label in example.labels):
        graded = any(len(set(example.labels)) > 1 for example in examples)
        if not graded:
            raise DataError(
                f"{where}: none of {len(examples):,} examples has a negative, and {alone}; give "
                "rows with negatives, or mine some: negatives: {type: mined, retriever: ...}"
            )


def _made(spec: Mapping[str, Any], where: str, allow: Allow) -> Any:
    given = dict(spec)
    given.setdefault("type", "file")
    return build(given, EXAMPLES, where=where, allow=allow)
