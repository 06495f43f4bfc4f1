"""Reads datasets through libraries: those of ir_datasets, and BEIR's layout on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from sluice.encoders.foundation.errors import DataError, listed, suggest
from sluice.retrieval.datasets.source import DEV_NAMES, Places, Qrels
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import NOTHING, Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.json_files import missing_field
from sluice.retrieval.documents.readers.frames import no_code, reachable, repository_of
from sluice.retrieval.runs.trec_files import Judgement, qrels_of

LAYOUT = "a dataset in BEIR layout"
BATCH = 1000  # rows converted at a time
QRELS_CONFIGS = ("qrels", "default")


class _Table(NamedTuple):
    """One configuration of one repository."""

    repository: str
    config: str

    def __str__(self) -> str:
        return f"hf:{self.repository} ({self.config})"


class HubSource:
    """Configurations ``corpus`` and ``queries``, and judgements where collections have them.

    These are the configuration ``qrels`` or ``default`` of the same repository, or the repository
    ``<name>-qrels``. A local folder that the ``datasets`` library can load works as well. Where the
    hub does not answer within five seconds its cache on this computer is used.
    """

    def __init__(self, repository: str) -> None:
        self.repository = repository_of(repository)
        self.name = f"hf:{repository}"

    def splits(self) -> list[str]:
        """Return the splits of the judgements."""
        import datasets

        table = self._qrels_table
        with reachable(table.repository, LAYOUT):
            return list(datasets.get_dataset_split_names(table.repository, table.config))

    def places(self, split: str) -> Places:
        """Return repository and configuration of the parts."""
        return Places(
            str(_Table(self.repository, "corpus")),
            str(_Table(self.repository, "queries")),
            f"{self._qrels_table} {split}",
        )

    def documents(self) -> Iterator[Document]:
        """Stream the corpus from the library's memory-mapped cache."""
        table = _Table(self.repository, "corpus")
        columns = [("_id", "id"), ("title",), ("text",), ("metadata",)]
        optional, metadata = {"title", "metadata"}, MetadataReader()
        for row, (name, title, text, own) in _rows(table, self._corpus, columns, optional=optional):
            kept = metadata.kept(own) if isinstance(own, dict) else NOTHING
            yield Document(_id(table, row, name), title or "", _text(table, row, text), kept)
        metadata.warn(table)

    def document_count(self) -> int | None:
        """Return the size once the corpus has been opened."""
        return len(self._corpus) if "_corpus" in self.__dict__ else None

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Stream the queries of all splits."""
        table = _Table(self.repository, "queries")
        columns = [("_id", "id"), ("text",)]
        for row, (name, text) in _rows(table, _only_split(table), columns):
            yield _id(table, row, name), _text(table, row, text)

    def qrels(self, split: str) -> Qrels:
        """Read the split's judgements."""
        table = self._qrels_table
        columns = [("query-id", "query_id"), ("corpus-id", "corpus_id"), ("score",)]
        data = _hub_load(table, split)

        def judgements() -> Iterator[Judgement]:
            for row, (query_id, document_id, grade) in _rows(table, data, columns):
                if isinstance(grade, bool) or not isinstance(grade, (int, float)) or grade % 1:
                    raise DataError(
                        f"{table} {split}, row {row}: score {grade!r} is not a whole number"
                    )
                ids = _id(table, row, query_id), _id(table, row, document_id)
                yield row, *ids, int(grade)

        return qrels_of(judgements, lambda row: f"{table} {split}, row {row}", f"{table} {split}")

    @cached_property
    def _corpus(self) -> Any:
        return _only_split(_Table(self.repository, "corpus"))

    @cached_property
    def _qrels_table(self) -> _Table:
        configs = _configs(self.repository)
        for name in QRELS_CONFIGS:
            if name in configs:
                return _Table(self.repository, name)
        repository = f"{self.repository}-qrels"
        return _Table(repository, _configs(repository)[0])


def _configs(repository: str) -> list[str]:
    import datasets

    with reachable(repository, LAYOUT):
        return list(datasets.get_dataset_config_names(repository, **no_code()))


def _hub_load(table: _Table, split: str | None) -> Any:
    import datasets

    with reachable(table.repository, LAYOUT):
        return datasets.load_dataset(table.repository, table.config, split=split, **no_code())


def _only_split(table: _Table) -> Any:
    splits = _hub_load(table, None)
    if table.config in splits:
        return splits[table.config]
    if len(splits) != 1:
        raise DataError(
            f"{table}: has the splits {listed(splits)}; expected one, called {table.config!r}"
        )
    return next(iter(splits.values()))


def _rows(
    table: _Table,
    data: Any,
    columns: Sequence[tuple[str, ...]],
    *,
    optional: Iterable[str] = (),
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Stream (row number from 0, values); each column is the first of its names that exists."""
    present = list(data.column_names)
    chosen = []
    for names in columns:
        name = next((name for name in names if name in present), None)
        if name is None and names[0] not in optional:
            raise DataError(
                f"{table}: {missing_field(names[0], present, 'column')}; expected BEIR's columns"
            )
        chosen.append(name)
    row = 0
    for batch in data.iter(batch_size=BATCH):
        size = len(batch[present[0]])
        values = [batch[name] if name is not None else [None] * size for name in chosen]
        for entry in zip(*values, strict=True):
            yield row, entry
            row += 1


def _id(table: _Table, row: int, value: Any) -> str:
    return value if isinstance(value, str) and value else id_text(f"{table}, row {row}: id", value)


def _text(table: _Table, row: int, value: Any) -> str:
    if not isinstance(value, str):
        raise DataError(f"{table}, row {row}: text {value!r}, expected a string")
    return value


SPLIT_NAMES = ("train", "test", *DEV_NAMES)
Read = TypeVar("Read")


def ir_datasets_ids() -> list[str]:
    """Return every id the library knows."""
    import ir_datasets

    return list(ir_datasets.registry)


class IrDatasetsSource:
    """A family of ids that share a corpus.

    ``beir/scifact/test`` means the family ``beir/scifact``, whose splits are the ids below it
    that have judgements, called by the rest of the id (``train``, ``dev/small``). Judgements of the
    family's own id are its ``test`` unless an id has that name; ``train`` and ``dev`` may
    come from further up (``msmarco-passage/trec-dl-2019`` trains on ``msmarco-passage/train``).
    """

    def __init__(self, name: str) -> None:
        ids = ir_datasets_ids()
        if name not in ids:
            raise DataError(f"ir_datasets has no dataset {name!r}{suggest(name, ids)}")
        parent, _, last = name.rpartition("/")
        self.name = parent if last in SPLIT_NAMES and parent in ids else name
        self._ids = _split_ids(self.name, ids)

    def splits(self) -> list[str]:
        """Return the names of the splits that have judgements."""
        return list(self._ids)

    def places(self, split: str) -> Places:
        """Return the ids that the parts come from."""
        place = f"ir_datasets:{self._ids.get(split, self.name)}"
        return Places(f"ir_datasets:{self.name} docs", f"{place} queries", f"{place} qrels")

    def documents(self) -> Iterator[Document]:
        """Stream the corpus, downloading it if necessary."""
        return _reading(self.name, "docs", lambda loaded: map(_document, loaded.docs_iter()))

    def document_count(self) -> int | None:
        """Return the size the library's metadata states."""
        count = getattr(_load(self.name), "docs_count", lambda: None)()
        return None if count is None else int(count)

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Stream the split's queries."""
        return _reading(
            self._ids[split], "queries", lambda loaded: map(_query, loaded.queries_iter())
        )

    def qrels(self, split: str) -> Qrels:
        """Read the split's judgements."""
        name = self._ids[split]

        def judgements() -> Iterator[Judgement]:
            entries = _reading(name, "qrels", lambda loaded: iter(loaded.qrels_iter()))
            for number, entry in enumerate(entries, 1):
                yield number, entry.query_id, entry.doc_id, int(entry.relevance)

        where = f"ir_datasets:{name}"
        return qrels_of(judgements, lambda number: f"{where}, judgement {number}", where)


def _split_ids(root: str, ids: Iterable[str]) -> dict[str, str]:
    known = set(ids)
    splits = {
        name.removeprefix(f"{root}/"): name
        for name in ids
        if name.startswith(f"{root}/") and _load(name).has_qrels()
    }
    if "test" not in splits and _load(root).has_qrels():
        splits["test"] = root
    above = root.rpartition("/")[0]
    while above in known and _load(above).has_docs():
        for name in ("train", "dev"):
            if name not in splits and f"{above}/{name}" in known:
                splits[name] = f"{above}/{name}"
        above = above.rpartition("/")[0]
    return splits


def _load(name: str) -> Any:
    import ir_datasets

    return ir_datasets.load(name)


def _reading(name: str, part: str, read: Callable[[Any], Iterator[Read]]) -> Iterator[Read]:
    """Pass on what the library yields; what it raises becomes one error that names the id."""
    try:
        yield from read(_load(name))
    except DataError:
        raise
    except Exception as error:  # downloads, archives and parsers of many kinds may fail
        raise DataError(
            f"ir_datasets:{name}: cannot read its {part} ({type(error).__name__}: {error}); the "
            "first use downloads it: check the network, and the licence on its page of ir_datasets"
        ) from error


def _document(entry: Any) -> Document:
    if hasattr(entry, "text"):
        return Document(entry.doc_id, getattr(entry, "title", "") or "", entry.text or "")
    return Document(entry.doc_id, "", entry.default_text() or "")


def _query(entry: Any) -> tuple[str, str]:
    return entry.query_id, entry.text if hasattr(entry, "text") else entry.default_text()
