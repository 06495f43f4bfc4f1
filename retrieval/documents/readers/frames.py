"""Reads frames of pandas and polars, Arrow tables, and tables of the ``datasets`` library."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import DataError, listed
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.readers.documents import Documents, size_of
from sluice.retrieval.documents.readers.fields import SAMPLE, Asked, Row, check_names, choose

BATCH = 1024  # rows converted at a time
INDEX = "index"  # what the index of a pandas frame is called, where it has no name


class Reader(NamedTuple):
    """What a frame is called, a function that streams its rows, and the column its index is."""

    kind: str
    rows: Callable[[], Iterator[tuple[str, Row]]]
    label: str | None = None


def documents_in_frame(source: Any, asked: Asked) -> Documents | None:
    """Return the documents of a frame, known by what it can do; None for anything else."""
    reader = _reader(source)
    return None if reader is None else _documents(source, reader, asked, reader.kind)


def documents_in_dataset(data: Any, asked: Asked, *, name: str) -> Documents:
    """Return the documents of a dataset of the ``datasets`` library, which messages call ``name``.

    Their fingerprint is the library's own.
    """
    reader = Reader("dataset", lambda: _numbered(_batched(data)), None)
    return _documents(data, reader, asked, name)


def rows_in_frame(source: Any, name: str) -> Iterator[Row] | None:
    """Return the rows of a frame, without a pandas index; None for anything else.

    Raises ``DataError``, with ``name``, where two columns have one name.
    """
    reader = _reader(source)
    if reader is None:
        return None
    check_names(name, _names(source))
    rows = reader.rows() if reader.label is None else _pandas(source, None)
    return (row for _, row in rows)


def _documents(source: Any, reader: Reader, asked: Asked, name: str) -> Documents:
    size = size_of(source)
    check_names(name, _names(source))
    sample = [row for _, row in islice(reader.rows(), SAMPLE)]
    names = _names(source) or list(dict.fromkeys(key for row in sample for key in row))
    if reader.label is not None and reader.label not in names:
        names = [reader.label, *names]
    fields = choose(name, names, sample, asked, index=reader.label)
    rows_in_all = "" if size is None else f" of {plural(size, 'row')}"
    contents = getattr(source, "_fingerprint", None)
    return Documents(
        name,
        lambda: fields.documents(name, reader.rows()),
        described=f"{name}{rows_in_all}: {fields.describe()}",
        size=size,
        contents=None if not isinstance(contents, str) else lambda: fingerprint_of(contents, asked),
        guessed=True,
        numbered=fields.id is None,
    )


def _reader(source: Any) -> Reader | None:
    if hasattr(source, "itertuples") and hasattr(source, "index"):
        index = _index_of(source)
        return Reader("pandas frame", lambda: _pandas(source, index), index)
    if hasattr(source, "collect_schema") and hasattr(source, "collect"):
        source = source.collect()
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return Reader("polars frame", lambda: _numbered(source.iter_rows(named=True)))
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return Reader("Arrow table", lambda: _numbered(_arrow(source)))
    if hasattr(source, "column_names") and hasattr(source, "iter"):
        return Reader("dataset", lambda: _numbered(_batched(source)))
    return None


def _names(source: Any) -> list[str]:
    if hasattr(source, "collect_schema"):
        return list(source.collect_schema().names())
    columns = getattr(source, "column_names", None)
    if columns is None:
        columns = getattr(source, "columns", None)
    return [] if columns is None else [str(name) for name in columns]


def _index_of(frame: Any) -> str | None:
    """Return the name of a frame's index if it says more than the rows' numbers."""
    index = frame.index
    if type(index).__name__ in ("RangeIndex", "MultiIndex"):
        return None
    return str(index.name or INDEX)


def _pandas(frame: Any, index: str | None) -> Iterator[tuple[str, Row]]:
    names = [str(name) for name in frame.columns]
    for number, (label, values) in enumerate(
        zip(frame.index, frame.itertuples(index=False, name=None), strict=True)
    ):
        row = dict(zip(names, values, strict=True))
        if index is not None:
            row.setdefault(index, label)
        yield f"row {number}", row


def _numbered(rows: Iterator[Mapping[str, Any]]) -> Iterator[tuple[str, Row]]:
    for number, row in enumerate(rows):
        yield f"row {number}", row


def _arrow(table: Any) -> Iterator[Row]:
    for batch in table.to_batches(max_chunksize=BATCH):
        yield from batch.to_pylist()


def _batched(data: Any) -> Iterator[Row]:
    for batch in data.iter(batch_size=BATCH):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))


log = logging.getLogger("sluice")
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
FILES = ("README.md", "*.parquet", "*.jsonl", "*.json", "*.csv")  # of a dataset in a folder
PATIENCE = 5.0  # seconds to wait for the hub before using its cache
SPLITS = ("corpus", "train")  # the split that is read, where there are several


def repository_of(name: str) -> str:
    """Return the repository that ``hf:name`` means: owner/name, or the path of a local dataset.

    Anything else is a ``DataError`` before a disk or the network is touched: the library looks for
    files below whatever folder it is given.
    """
    folder = Path(name)
    if ".." not in name and NAME.fullmatch(name):
        return name
    if (
        ".." not in name
        and folder.is_absolute()
        and folder.name
        and any(any(folder.glob(each)) for each in FILES)
    ):
        return name
    raise DataError(
        f"hf:{name}: expected 'hf:owner/name', or the absolute path of a folder with a dataset's "
        f"files ({', '.join(FILES)})"
    )


@functools.cache
def documents_on_hub(name: str, asked: Asked) -> Documents:
    """Return the documents of ``owner/name`` or ``owner/name#configuration``.

    Of several splits ``corpus`` is read, or else ``train``.
    """
    import datasets

    repository, _, config = name.partition("#")
    repository = repository_of(repository)
    with reachable(repository, "a table of documents"):
        splits = datasets.load_dataset(repository, config or None, **no_code())
    split = next((each for each in SPLITS if each in splits), None)
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split is None:
        raise DataError(
            f"hf:{name}: splits are {listed(splits)}; expected one, or one called corpus or "
            "train; load the one you mean in Python and pass it"
        )
    return documents_in_dataset(splits[split], asked, name=f"hf:{name} ({split})")


def no_code() -> dict[str, bool]:
    """Return the option by which ``datasets`` runs no code of a repository; since 4 it has none."""
    import datasets

    return {"trust_remote_code": False} if int(datasets.__version__.split(".")[0]) < 4 else {}


@contextmanager
def reachable(repository: str, expected: str) -> Iterator[None]:
    """Report any failure inside as one error; without the hub, let the library use its cache.

    Left alone, the library retries an unreachable hub for most of a minute.
    """
    with ExitStack() as stack:
        if not Path(repository).is_dir() and not _hub_answers(repository):
            stack.enter_context(_offline())
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # the library's own tree, the hub's, and those of many parsers
            raise DataError(
                f"hf:{repository}: cannot be read ({type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else 'no reason given'}); expected "
                f"{expected} on the hub, or in its cache when the network is down"
            ) from error


@contextmanager
def _offline() -> Iterator[None]:
    """Switch both libraries to their caches; they read the environment only when imported."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _hub_answers(repository: str) -> bool:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().dataset_info(repository, timeout=PATIENCE)
    except OfflineModeIsEnabled:
        return False
    except HfHubHTTPError as error:
        raise DataError(
            f"hf:{repository}: the hub answers: {str(error).splitlines()[0]}; expected "
            "'hf:owner/name' of a dataset you may read (huggingface-cli login)"
        ) from None
    except ValueError as error:
        raise DataError(f"hf:{repository}: {error}; expected 'hf:owner/name'") from None
    except Exception as error:  # whatever the transport raises: no name, no route, no answer
        log.warning("the hub is not reachable (%s); using its cache", type(error).__name__)
        return False
    return True
