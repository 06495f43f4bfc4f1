"""Reads T2Ranking's folder: ``collection.tsv``, ``queries.<split>.tsv``, ``qrels.<split>.tsv``.

(Xie et al. 2023, arXiv 2304.03679; the layout is that of github.com/THUIR/T2Ranking.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.beir import BeirFolder
from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct
from sluice.retrieval.documents.json_files import read_lines
from sluice.retrieval.runs.trec_files import qrels_of, read_qrels

RETRIEVAL = "retrieval."  # before a split whose judgements are pairs, all relevant


class T2RankingFolder(BeirFolder):
    """The folder of the published data; tables begin with a line of names and quote nothing.

    ``train`` and ``dev`` have the grades 0 to 3 of ``qrels.<split>.tsv``, of which 2 and 3 count as
    relevant in retrieval (``level: 2``); ``retrieval.train`` and ``retrieval.dev`` are the pairs of
    ``qrels.retrieval.<split>.tsv``, each of grade 1.
    """

    def splits(self) -> list[str]:
        """Return the splits that have judgements."""
        files = self.path.glob("qrels.*.tsv")
        return sorted(file.name.removeprefix("qrels.").removesuffix(".tsv") for file in files)

    def places(self, split: str) -> Places:
        """Return the paths of the three files."""
        files = self.path / "collection.tsv", self._queries_file(split), self.qrels_file(split)
        return Places(*map(str, files))

    def documents(self) -> Iterator[Document]:
        """Stream the passages."""
        pairs = distinct(lambda: _pairs(self.path / "collection.tsv", "pid, passage"))
        return (Document(name, "", text) for name, text in pairs)

    def document_count(self) -> int | None:
        """Return None: counting takes a pass."""
        return None

    def queries(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the split's queries."""
        return distinct(lambda: _pairs(self._queries_file(split), "qid, query"))

    def qrels(self, split: str) -> Qrels:
        """Read the split's judgements."""
        file = self.qrels_file(split)
        if not split.startswith(RETRIEVAL):
            return read_qrels(file)

        def pairs() -> Iterator[tuple[int, str, str, int]]:
            for place, (query, document) in _pairs(file, "qid, pid"):
                yield int(place.rpartition(":")[2]), query, document, 1

        return qrels_of(pairs, lambda number: f"{file}:{number}", str(file))

    def qrels_file(self, split: str) -> Path:
        """Return the path of the split's judgements."""
        return self.path / f"qrels.{split}.tsv"

    def _queries_file(self, split: str) -> Path:
        return self.path / f"queries.{split.removeprefix(RETRIEVAL)}.tsv"


def t2ranking_folder(path: Path) -> Path | None:
    """Return the folder with the data, that one or its ``data``; None where it is another's."""
    for folder in (path, path / "data"):
        if (folder / "collection.tsv").is_file() and any(folder.glob("queries.*.tsv")):
            return folder
    return None


def _pairs(file: Path, names: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (place, (id, text)) of the lines after the first, which has the names."""
    if not file.exists():
        raise DataError(f"{file.parent}: no {file.name} in this T2Ranking folder")
    place = ""
    for number, line in read_lines(file):
        name, tab, text = line.partition("\t")
        place = f"{file}:{number}"
        if number == 1 and not name.strip().isdigit():
            continue
        if not tab or not name.strip() or not text.strip():
            raise DataError(f"{place}: expected {names}, with a tab between")
        yield place, (name.strip(), text.strip())
    if not place:
        raise DataError(f"{file}: empty; expected {names}, with a tab between")
