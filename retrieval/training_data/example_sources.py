"""The section ``examples``: training examples from files or the corpus, not from judgements."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import commit, new_draft, writable
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.config.component_types import EXAMPLES
from sluice.retrieval.documents.readers.fields import is_missing
from sluice.retrieval.documents.readers.frames import rows_in_frame
from sluice.retrieval.training_data.files.rows import ExampleSource, as_source
from sluice.training.losses import loss_traits

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.runs.run import Run
    from sluice.training import Example, ExampleStream


PAIRS: Final = "pairs.jsonl"  # in the work folder of the training run
EXPECTED: Final = (
    "expected a data frame, a dataset, or a list of (query, positive), of (query, positive, "
    "negative, ...), of (query, positive, [negative, ...]), of (query, document, label), or of "
    "{'query': ..., 'positive': ...}"
)


def with_rows_written(section: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """Return a training section whose ``examples`` are files, written into ``folder`` if need be.

    Rows are a pandas or polars frame, an Arrow table, a Hugging Face dataset, or an iterable of
    tuples or mappings, as ``examples`` or as ``examples.file``. A file with the same rows stays as
    it is, so that the same call reuses the model.
    """
    spec = section.get("examples")
    if _are_rows(spec):
        spec = {"type": "file", "file": spec}
    if not isinstance(spec, Mapping) or not _are_rows(spec.get("file")):
        return dict(section)
    path = folder / PAIRS
    _write(spec["file"], path, where)
    return {**section, "examples": {**spec, "file": str(path)}}


def _are_rows(value: Any) -> bool:
    """Return whether a value holds rows rather than names of files or settings."""
    if value is None or isinstance(value, (str, bytes, Path, Mapping, int, float)):
        return False
    return not (isinstance(value, list) and value and all(isinstance(t, str) for t in value))


def _write(rows: Any, path: Path, where: str) -> None:
    with new_draft(writable(path)) as draft:
        with draft.open("w", encoding="utf-8") as stream:
            lines = (json.dumps(each, ensure_ascii=False) for each in _records(rows, where))
            stream.writelines(f"{line}\n" for line in lines)
        if not draft.stat().st_size:
            raise DataError(f"{where}: no rows; {EXPECTED}")
        if not (path.exists() and filecmp.cmp(draft, path, shallow=False)):
            commit(draft, path)


def _records(rows: Any, where: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(_iterated(rows, where)):
        record = _record(row, f"{where}: row {number:,}")
        if all(value is None for value in record.values()):
            raise DataError(f"{where}: row {number:,}: {row!r:.60} has no value; remove it")
        if not number and isinstance(rows, Sequence):  # a column that only later rows have
            names = (str(name) for one in rows if isinstance(one, Mapping) for name in one)
            record = {**record, **{name: None for name in names if name not in record}}
        yield record


def _iterated(rows: Any, where: str) -> Iterable[Any]:
    held = rows_in_frame(rows, where)
    if held is not None:
        return held
    if not isinstance(rows, Iterable):
        raise DataError(f"{where}: of type {type(rows).__name__}; {EXPECTED}")
    return rows


def _record(row: Any, place: str) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {str(name): _plain(value) for name, value in row.items()}
    if not isinstance(row, (tuple, list)) or len(row) < 2:
        raise DataError(f"{place}: {row!r:.60}; {EXPECTED}")
    query, document, *others = map(_plain, row)
    fields = {"query": query, "positive": document}
    if len(others) == 1 and isinstance(others[0], list):
        fields["negative"] = _negatives(others[0], place)
    elif len(others) == 1 and not isinstance(others[0], str):
        fields["label"] = others[0]
    else:
        fields |= {f"negative_{number}": text for number, text in enumerate(others, 1)}
    return {name: value for name, value in fields.items() if value is not None}


def _negatives(value: list[Any], place: str) -> list[str]:
    texts = [text for text in value if text is not None]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{place}: the third part is {value!r:.60}; expected a negative, a list of negatives, "
            "or a label, which is one number"
        )
    return texts


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what is missing (None, NaN) is None."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy
    if is_missing(value):
        return None
    return value if isinstance(value, (str, int, float, list, Mapping)) else str(value)


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


def streamed_examples(
    spec: Mapping[str, Any] | None, dataset: Dataset, seed: int, where: str = "examples"
) -> ExampleStream | None:
    """Return the examples of a section ``examples`` that has a ``buffer``; None without one."""
    source: Any = example_source(spec, where)
    stream: ExampleStream | None = source.buffer and source.streamed(dataset, seed)
    return stream


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
    examples: Iterable[Example],
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
    grades: set[float] = set()  # of all queries
    for example in examples:
        grades.update(example.labels)
        if min(grades) <= 0 or len({*example.labels}) > 1 or (across and len(grades) > 1):
            return
    raise DataError(f"{where}: no example has {NEGATIVE}; {alone}; {MORE_NEGATIVES}")
