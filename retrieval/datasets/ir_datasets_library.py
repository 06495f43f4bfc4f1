"""Reads datasets of the ir_datasets library: one id for the corpus, one for each split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sluice.encoders.foundation.errors import DataError, suggest
from sluice.retrieval.datasets.source import DEV_NAMES, Places, Qrels
from sluice.retrieval.documents.document import Document
from sluice.retrieval.runs.trec_files import Judgement, qrels_of

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
