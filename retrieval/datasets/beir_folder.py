"""A folder in BEIR layout: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/<split>.tsv``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.beir_files import read_documents, read_queries
from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.documents.document import Document
from sluice.retrieval.runs.trec_files import read_qrels


class BeirFolder:
    """Reads the folder; corpus and queries may be compressed (``.jsonl.gz``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self._count: int | None = None

    def splits(self) -> list[str]:
        """Return the names of the files in ``qrels/``."""
        return sorted(file.stem for file in (self.path / "qrels").glob("*.tsv"))

    def places(self, split: str) -> Places:
        """Return the paths of the three files."""
        return Places(
            str(_file(self.path, "corpus")),
            str(_file(self.path, "queries")),
            str(self.path / "qrels" / f"{split}.tsv"),
        )

    def documents(self) -> Iterator[Document]:
        """Stream the corpus file."""
        return read_documents(self._existing("corpus"))

    def document_count(self) -> int | None:
        """Count the lines of an uncompressed corpus file (a gigabyte takes about a second)."""
        path = _file(self.path, "corpus")
        if self._count is None and path.suffix == ".jsonl" and path.exists():
            self._count = _count_lines(path)
        return self._count

    def queries(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the queries of all splits, which lie in one file."""
        return read_queries(self._existing("queries"))

    def qrels(self, split: str) -> Qrels:
        """Read the split's judgements."""
        return read_qrels(self.path / "qrels" / f"{split}.tsv")

    def _existing(self, part: str) -> Path:
        path = _file(self.path, part)
        if not path.exists():
            raise DataError(f"{self.path}: no {part}.jsonl or {part}.jsonl.gz in this dataset")
        return path


def is_beir_folder(path: Path) -> bool:
    """Tell whether any of the three parts is there."""
    return path.is_dir() and (
        _file(path, "corpus").exists()
        or _file(path, "queries").exists()
        or any((path / "qrels").glob("*.tsv"))
    )


def beir_folders(parent: Path) -> list[str]:
    """Return the names of the datasets directly under a folder."""
    if not parent.is_dir():
        return []
    return sorted(path.name for path in parent.iterdir() if is_beir_folder(path))


def _file(folder: Path, part: str) -> Path:
    compressed = folder / f"{part}.jsonl.gz"
    plain = folder / f"{part}.jsonl"
    return compressed if compressed.exists() and not plain.exists() else plain


def _count_lines(path: Path) -> int:
    """Count the lines that hold more than white space, as reading would."""
    with path.open("rb") as stream:
        return sum(1 for line in stream if not line.isspace())
