"""Opens a dataset by name: a corpus to stream, the queries of one split, and their judgements."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sluice.encoders.foundation.bounded_input import expanded, same_text_key
from sluice.encoders.foundation.errors import ConfigError, DataError, listed, suggest
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.retrieval.datasets.source import Corpus, MemorySource, Qrels, Source, find_split
from sluice.retrieval.documents.document import Document
from sluice.retrieval.runs.trec_files import read_qrels

__all__ = ["Corpus", "Dataset", "Document", "load_dataset", "training_splits"]

log = logging.getLogger("sluice")

IgnoreIdenticalIds = bool | Literal["auto"]
DATA_FOLDER = "SLUICE_DATA"  # the environment variable
LOOSE = ("queries", "qrels", "columns", "allow", "code")
KEYS = ("name", "split", "ignore_identical_ids", "level", "corpus", *LOOSE)
UNJUDGED = "no split has judgements; searching and indexing work without, evaluating does not"


class IdenticalIds(NamedTuple):
    """The decision, and the counts it rests on."""

    drop: bool
    shared: int  # queries that have the id of a document
    standing: int  # of those, those whose text is part of that document, unjudged
    reason: str


class IdenticalIdCheck:
    """Looks at documents one by one, then decides.

    Hits are dropped where, of the queries that share an id with a document, at least half are
    found word for word in it without being judged relevant to it (ArguAna). Where ids coincide by
    numbering alone (Cranfield), or the document of that id is the answer, every hit stays.
    """

    def __init__(self, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]]) -> None:
        self._queries = queries
        self._qrels = qrels
        self._shared = 0
        self._standing = 0

    def see(self, document: Document) -> None:
        """Compare a document with the query of its id, if there is one."""
        query = self._queries.get(document.id)
        if query is None:
            return
        self._shared += 1
        relevant = self._qrels.get(document.id, {}).get(document.id, 0) > 0
        words = _padded(query)
        if words.strip() and not relevant and words in _padded(document.full_text):
            self._standing += 1

    def decide(self) -> IdenticalIds:
        """Return the decision from the documents seen."""
        drop = self._standing > 0 and 2 * self._standing >= self._shared
        if self._shared == 0:
            reason = "no query has the id of a document"
        else:
            reason = (
                f"{plural(self._shared, 'query')} with the id of a document, "
                f"{self._standing:,} of them word for word in its text"
            )
        return IdenticalIds(drop, self._shared, self._standing, reason)


def decide_identical_ids(
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    documents: Iterable[Document] | Callable[[str], Document | None],
) -> IdenticalIds:
    """Decide from a pass over documents, or from a look-up by id (a document store's ``find``)."""
    check = IdenticalIdCheck(queries, qrels)
    if callable(documents):
        for name in queries:
            document = documents(name)
            if document is not None:
                check.see(document)
    else:
        for document in documents:
            check.see(document)
    return check.decide()


def _padded(text: str) -> str:
    return f" {same_text_key(text)} "


class Dataset:
    """One split of a collection.

    ``queries`` are those the split's qrels judge, in the order of the qrels; judged queries that
    have no text stay in ``qrels``, where they score 0, and one warning names them.
    ``split=None`` opens the corpus alone. ``level`` is the least grade that ``evaluate`` takes as
    relevant (not nDCG, which has the grades themselves): 2 in T2Ranking and TREC Deep Learning.
    """

    def __init__(
        self,
        source: Source,
        split: str | None = "test",
        *,
        ignore_identical_ids: IgnoreIdenticalIds = "auto",
        level: int = 1,
    ) -> None:
        if ignore_identical_ids not in (True, False, "auto"):
            raise ConfigError(
                f"dataset.ignore_identical_ids: {ignore_identical_ids!r}, "
                "expected auto, true or false"
            )
        self.source = source
        self.name = source.name
        self.ignore_identical_ids = ignore_identical_ids
        self.level = whole_number(level, "dataset.level", 1)
        self.corpus = Corpus(source)
        self.split = None if split is None else self._available(split)
        self._identical_ids: IdenticalIds | None = None

    @classmethod
    def from_memory(
        cls,
        documents: Iterable[Document],
        queries: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]],
        *,
        name: str = "memory",
        split: str = "test",
    ) -> Dataset:
        """Make a dataset of one split from documents, queries and judgements in memory."""
        return cls(MemorySource(name, documents, {split: (queries, qrels)}), split)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, split={self.split!r})"

    @property
    def splits(self) -> list[str]:
        """The names of the splits that have judgements."""
        return self.source.splits()

    def with_split(self, split: str | None) -> Dataset:
        """Return another split over the same corpus."""
        other = Dataset(
            self.source, split, ignore_identical_ids=self.ignore_identical_ids, level=self.level
        )
        other.corpus = self.corpus
        return other

    @cached_property
    def qrels(self) -> Qrels:
        """The judgements: query id -> {document id: grade}."""
        return self.source.qrels(self._split)

    @cached_property
    def queries(self) -> dict[str, str]:
        """The texts of the judged queries by id, in the order of the qrels."""
        judged = self.qrels
        texts = {name: text for name, text in self.source.queries(self._split) if name in judged}
        without = [name for name in judged if name not in texts]
        place = self.source.places(self._split)
        if not texts:
            raise DataError(
                f"{place.qrels}: none of its {plural(len(judged), 'judged query')} "
                f"({', '.join(without[:3])}) is in {place.queries}; "
                "the files do not belong together"
            )
        if without:
            log.warning(
                "%s: no text in %s for %s, which will score 0: %s",
                place.qrels,
                place.queries,
                plural(len(without), "judged query"),
                ", ".join(without[:3]),
            )
        return {name: texts[name] for name in judged if name in texts}

    def identical_ids(self, find: Callable[[str], Document | None] | None = None) -> IdenticalIds:
        """Decide whether hits whose id is the query's own are dropped from this dataset's runs.

        ``auto`` looks at the documents that share a query's id: by ``find`` (a document store's)
        if it is given, otherwise in one pass over the corpus.
        """
        if self.ignore_identical_ids != "auto":
            drop = bool(self.ignore_identical_ids)
            return IdenticalIds(drop, 0, 0, f"ignore_identical_ids: {str(drop).lower()}")
        if self._identical_ids is None:
            self._identical_ids = decide_identical_ids(
                self.queries, self.qrels, find or self.corpus
            )
        return self._identical_ids

    @property
    def _split(self) -> str:
        if self.split is None:
            raise DataError(
                f"dataset {self.name}: opened without a split, so it has only a corpus; "
                f"choose one of {listed(self.splits)}"
            )
        return self.split

    def _available(self, split: str) -> str:
        splits = self.splits
        available = find_split(split, splits)
        if available is None:
            looked_for = f"(looked for {self.source.places(split).qrels})"
            if not splits:
                raise DataError(f"dataset {self.name}: {UNJUDGED} {looked_for}")
            raise DataError(
                f"dataset {self.name}: no split {split!r}; available: {listed(splits)}"
                f"{suggest(split, splits)} {looked_for}"
            )
        return available


def load_dataset(name: str | Path | Mapping[str, Any], split: str | None = "test") -> Dataset:
    """Open a dataset by name; nothing but the list of splits is read before it is needed.

    A name is tried as, in this order: ``hf:owner/name`` (BEIR layout on the hub),
    ``ir_datasets:id``, the built-in ``pydocs``, a folder in BEIR layout or T2Ranking's, a file of
    documents, a folder of that name under ``$SLUICE_DATA``, an ir_datasets id (one that names a
    split, ``beir/scifact/test``, selects its family). A mapping is the YAML form
    ``{name: ..., split: ..., ignore_identical_ids: auto | true | false, level: 1}``, or
    ``{corpus: ..., queries: ..., qrels: ..., columns: ..., allow: ..., code: ...}`` for files of
    one's own, see ``sluice.retrieval.datasets.beir.LooseFiles``; only the corpus is needed.

    ``split=None`` opens the corpus alone. Raises ``DataError`` for an unknown name or split.
    """
    if not isinstance(name, Mapping):
        return Dataset(find_source(name), split)
    for key in name:
        if key not in KEYS:
            raise ConfigError(
                f"dataset.{key}: a dataset takes {', '.join(KEYS)}{suggest(str(key), KEYS)}"
            )
    return Dataset(
        _source_of(name),
        name.get("split", split),
        ignore_identical_ids=name.get("ignore_identical_ids", "auto"),
        level=name.get("level", 1),
    )


def _source_of(settings: Mapping[str, Any]) -> Source:
    """Return the source of a mapping: loose files where it has a corpus, otherwise by name."""
    from sluice.retrieval.datasets.beir import LooseFiles

    if "corpus" in settings:
        parts = {key: settings[key] for key in ("corpus", *LOOSE, "name") if key in settings}
        return LooseFiles(**parts)
    loose = next((key for key in LOOSE if key in settings), None)
    if loose is not None:
        raise ConfigError(f"dataset.{loose}: goes with a corpus; add corpus: FILE or FOLDER")
    if not isinstance(settings.get("name"), (str, Path)):
        raise ConfigError(
            f"dataset.name: {settings.get('name')!r}, expected the name of a dataset or a folder; "
            "or corpus: FILE for files of your own"
        )
    return find_source(settings["name"])


def training_splits(
    name: str | Path | Mapping[str, Any] | Dataset, seed: int
) -> tuple[Dataset, Dataset]:
    """Return what to train on and what to evaluate on during training: never a test split.

    These are ``train`` and ``dev`` where the dataset has both; without ``dev``, a tenth of the
    train queries is held out of training, chosen by ``seed``
    (``sluice.retrieval.datasets.source``).
    """
    train = name.with_split("train") if isinstance(name, Dataset) else load_dataset(name, "train")
    if find_split("dev", train.splits) is None:
        from sluice.retrieval.datasets.source import HeldOutSource

        held_out = HeldOutSource(train.source, seed)
        train = Dataset(
            held_out,
            "train",
            ignore_identical_ids=train.ignore_identical_ids,
            level=train.level,
        )
    return train, train.with_split("dev")


def find_source(name: str | Path) -> Source:
    """Return the source of that name, tried in the order that ``load_dataset`` documents."""
    from sluice.retrieval.datasets.beir import BeirFolder, is_beir_folder
    from sluice.retrieval.datasets.t2ranking import T2RankingFolder, t2ranking_folder

    text = str(name)
    if text.startswith("hf:"):
        from sluice.retrieval.datasets.libraries import HubSource

        return HubSource(text.removeprefix("hf:"))
    if text.startswith("ir_datasets:"):
        from sluice.retrieval.datasets.libraries import IrDatasetsSource

        return IrDatasetsSource(text.removeprefix("ir_datasets:"))
    if text == "pydocs":
        from sluice.retrieval.datasets.pydocs import PydocsSource

        return PydocsSource()
    path = expanded(text)
    data = os.environ.get(DATA_FOLDER)
    if text and (folder := t2ranking_folder(path)) is not None:
        return T2RankingFolder(folder)
    if text and is_beir_folder(path):
        return BeirFolder(path)
    if text and path.is_file():
        from sluice.retrieval.datasets.beir import LooseFiles

        return LooseFiles(path)
    if isinstance(name, Path) or path.is_absolute() or text.startswith(("./", "../", "~")):
        raise _not_a_folder(path)
    if text and data and (folder := t2ranking_folder(expanded(data) / text)) is not None:
        return T2RankingFolder(folder)
    if text and data and is_beir_folder(expanded(data) / text):
        return BeirFolder(expanded(data) / text)
    return _from_ir_datasets(text, data)


def _from_ir_datasets(name: str, data: str | None) -> Source:
    from sluice.retrieval.datasets.libraries import IrDatasetsSource, ir_datasets_ids

    ids = ir_datasets_ids()
    if name in ids:
        return IrDatasetsSource(name)
    from sluice.retrieval.datasets.beir import beir_folders

    local = beir_folders(expanded(data)) if data else []
    under = (
        f"a folder under ${DATA_FOLDER} ({data}: {listed(local)})"
        if data
        else f"a folder under ${DATA_FOLDER} (which is not set)"
    )
    if expanded(name).is_dir():
        raise _folder_of_files(Path(name))
    raise DataError(
        f"dataset {name!r} not found; tried the built-in pydocs, a folder in BEIR layout at "
        f"{Path(name)} (seen from {Path.cwd()}), {under}, and an ir_datasets id"
        f"{suggest(name, [*local, 'pydocs', *ids])}; a dataset on the hub is 'hf:owner/name'"
    )


def _not_a_folder(path: Path) -> DataError:
    from sluice.retrieval.datasets.beir import beir_folders

    if path.is_dir():
        return _folder_of_files(path)
    state = "is neither a folder nor a file"
    near = beir_folders(path.parent)
    return DataError(
        f"{path}: expected a folder in BEIR layout (corpus.jsonl, queries.jsonl, "
        f"qrels/<split>.tsv), and it {state}{suggest(path.name, near)}"
    )


def _folder_of_files(path: Path) -> DataError:
    return DataError(
        f"{path}: a folder without corpus.jsonl, so no dataset in BEIR layout; to search the files "
        f"in it: sluice index {path} --output my; to use them as a corpus: dataset: "
        f"{{corpus: {path}}}"
    )


def judgements(name: str) -> Qrels:
    """Return the judgements of a qrels file, or of the test split of the dataset of that name."""
    if Path(name).is_file() or name.endswith((".tsv", ".txt", ".qrels", ".trec", ".gz")):
        return read_qrels(Path(name))
    try:
        return load_dataset(name).qrels
    except DataError as error:
        raise DataError(f"{name}: not a file of judgements; as a dataset: {error}") from None
