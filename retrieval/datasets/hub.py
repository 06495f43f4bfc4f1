"""Reads datasets in BEIR layout on the Hugging Face hub through the ``datasets`` library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import DataError, listed
from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import NOTHING, Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.jsonl import missing_field
from sluice.retrieval.documents.readers.hub import no_code, reachable, repository_of
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
        data = _load(table, split)

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


def _load(table: _Table, split: str | None) -> Any:
    import datasets

    with reachable(table.repository, LAYOUT):
        return datasets.load_dataset(table.repository, table.config, split=split, **no_code())


def _only_split(table: _Table) -> Any:
    splits = _load(table, None)
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
