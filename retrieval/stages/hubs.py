"""Penalises hubs: subtracts each document's normaliser, estimated on a bank of queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import OwnLock, fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.runs.several_runs import Pool
from sluice.retrieval.stages.hub_normaliser import HEAD, Normaliser

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.retriever import Retriever

Mode = Literal["dynamic", "static"]
MOST = 5000  # queries of a bank that is a file or a dataset


class Normalised(Around):
    """A retriever whose scores are normalised against hubs, by a ``Normaliser``.

    ``static`` normalises every query, ``dynamic`` (Bogolin et al., 2022) those alone whose first
    hit is a hub of the bank, bank by bank. The retriever's first ``depth`` hits are reordered (its
    k first, if more), so documents below them cannot rise: give the number of documents for all, or
    search ``Normaliser.augmented``. ``explain`` shows which banks were used for a query.
    """

    looks_inside = True
    lexical = False

    def __init__(
        self,
        retriever: Stage,
        normaliser: Normaliser | Fitting,
        *,
        mode: Mode = "dynamic",
        depth: int = DEPTH,
    ) -> None:
        if mode not in ("dynamic", "static"):
            raise ConfigError(f"mode: {mode!r}; expected 'dynamic' or 'static'")
        self.normaliser = normaliser
        self.mode: Mode = mode
        self.depth = whole_number(depth, "depth", 1)
        self._head: Any = None
        self._known: dict[str, int] = {}  # rows by id: the store takes 8 microseconds for one
        super().__init__(retriever, "normalised")

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search, then reorder the hits; queries that are not normalised keep their scores."""
        retriever = _retriever_of(self.stage)
        normaliser = self.normaliser
        if not isinstance(normaliser, Normaliser):
            normaliser = normaliser.for_retriever(retriever)
        if self._head is not retriever.head:  # another one after each change
            normaliser.check(retriever)
            self._head, self._known = retriever.head, {}
        known = self._known
        depth = DEPTH if k is None else k
        run = self.stage.rank(queries, given, max(depth, self.depth))
        active = self._active(normaliser, retriever, run, known)
        rankings: dict[str, Ranking] = dict(run)
        for banks in dict.fromkeys(active.values()):
            if any(banks):
                members = [query for query, its in active.items() if its == banks]
                shifts = normaliser.shifts(banks)
                rankings.update(_shifted(run, members, retriever, known, shifts))
        note({"normalised": active})
        return Run({query: ranking[:depth] for query, ranking in rankings.items()}, name=self.name)

    def _active(
        self, normaliser: Normaliser, retriever: Retriever, run: Run, known: dict[str, int]
    ) -> dict[str, tuple[bool, ...]]:
        """Return which banks are used for each query."""
        if self.mode == "static":
            return dict.fromkeys(run, (True,) * len(normaliser.banks))
        first = {query: ranking.doc_ids[0] for query, ranking in run.items() if len(ranking)}
        rows = _rows(retriever, known, list(first.values()))
        hubs = np.stack([bank.hubs[rows] for bank in normaliser.banks], axis=1).tolist()
        return dict(zip(first, map(tuple, hubs), strict=True))


def _shifted(
    run: Run,
    queries: Sequence[str],
    retriever: Retriever,
    known: dict[str, int],
    shifts: NDArray[np.float32],
) -> dict[str, Ranking]:
    rankings: dict[str, Ranking] = {}
    for pool in Pool.blocks([run], queries):
        rows = _rows(retriever, known, pool.hits)
        (lists,) = pool.lists
        rankings.update(pool.ranked(pool.spread(lists, lists.scores + shifts[rows])))
    return rankings


def _rows(retriever: Retriever, known: dict[str, int], doc_ids: Sequence[str]) -> NDArray[np.int64]:
    new = [doc for doc in dict.fromkeys(doc_ids) if doc not in known]
    if new:
        rows = retriever.store.rows(new)
        lost = np.flatnonzero(rows < 0)
        if len(lost):
            raise DataError(
                f"{retriever.name}: document {new[lost[0]]!r} was deleted meanwhile; search again"
            )
        known.update(zip(new, rows.tolist(), strict=True))
    return np.fromiter(map(known.__getitem__, doc_ids), np.int64, len(doc_ids))


def _retriever_of(stage: Stage) -> Retriever:
    from sluice.retrieval.retrievers.retriever import retriever_of

    retriever = retriever_of(stage)
    if retriever is None:
        raise ConfigError(
            f"normalised({stage.name}): needs a retriever itself, whose documents have "
            "normalisers; fuse, cut or rerank what it returns"
        )
    return retriever


class Fitting:
    """A normaliser for the first search: opened from its folder, or fitted to a bank.

    A fitted one is saved in ``folder``, if given, and opened by the next process as long as bank (a
    file's content, a dataset's name), settings and documents are the same.
    """

    def __init__(
        self, bank: str | None, folder: str | None, *, beta: float, documents: int
    ) -> None:
        if bank is None and folder is None:
            raise ConfigError(
                "normalised: needs bank=, a dataset or a file of queries, or fitted=, the folder "
                "of a normaliser"
            )
        if bank is None and not (Path(str(folder)) / HEAD).is_file():
            raise ConfigError(
                f"fitted: no normaliser in {folder!r}; give bank= too, and one is fitted and saved "
                "there, or save one with Normaliser.fit(retriever, queries).save(...)"
            )
        self.bank, self.folder = bank, folder
        self.beta, self.documents = beta, documents
        self._normaliser: Normaliser | None = None
        self._lock = OwnLock()

    def for_retriever(self, retriever: Retriever) -> Normaliser:
        """Return the normaliser of this retriever, opened or fitted at the first call."""
        with self._lock:
            if self._normaliser is None:
                self._normaliser = self._open_or_fit(retriever)
            return self._normaliser

    def _open_or_fit(self, retriever: Retriever) -> Normaliser:
        if self.bank is None:
            return Normaliser.load(str(self.folder))
        settings = {"bank": self.bank, "beta": self.beta, "documents": self.documents}
        if Path(self.bank).is_file():  # a file may have changed; a dataset goes by its name
            settings["queries"] = fingerprint_of(Path(self.bank).read_bytes())
        if self.folder is not None and (Path(self.folder) / HEAD).is_file():
            saved = Normaliser.load(self.folder)
            try:
                saved.check(retriever)
            except ConfigError:
                saved.facts.clear()  # of other documents: it is fitted again
            known = saved.facts.get("asked", {})
            if settings == {key: known.get(key) for key in settings}:
                return saved
        queries = bank_queries(self.bank)
        fitted = Normaliser.fit(retriever, queries, beta=self.beta, documents=self.documents)
        fitted.facts["asked"] = settings
        if self.folder is not None:
            fitted.save(self.folder)
        return fitted


def bank_queries(source: str, where: str = "bank") -> list[str]:
    """Return the texts of a bank's queries: up to 5,000, drawn by a fixed seed.

    ``source`` is a ``.jsonl`` file of objects with ``text``, a ``.txt`` file with one query a line,
    or the name of a dataset, of whose split ``train`` the queries are.
    """
    path = Path(source)
    if path.suffix not in (".jsonl", ".txt"):
        from sluice.retrieval.datasets.dataset import load_dataset

        texts = list(load_dataset(source, "train").queries.values())
    elif not path.is_file():
        raise ConfigError(f"{where}: no file {source!r}; expected queries, .jsonl or .txt")
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [line for line in lines if line.strip()]
        if path.suffix == ".jsonl":
            texts = [_text(line, source, number) for number, line in enumerate(texts, 1)]
    if len(texts) <= MOST:
        return texts
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:MOST])
    return [texts[place] for place in chosen.tolist()]


def _text(line: str, source: str, number: int) -> str:
    try:
        text = json.loads(line)["text"]
        if isinstance(text, str):
            return text
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f'{source}:{number}: expected a JSON object with "text", found {line[:80]!r}')


def normalised(
    retriever: Stage,
    /,
    *,
    bank: Annotated[str | None, "The dataset whose train queries hubs are estimated on."] = None,
    fitted: Annotated[str | None, "The file of a saved normaliser, instead of a bank."] = None,
    mode: Annotated[
        Mode, "dynamic: only queries whose first hit is a hub; static: all."
    ] = "dynamic",
    beta: Annotated[float, "How sharply hubs differ from other documents."] = 20.0,
    documents: Annotated[int, "Documents that normalisers are made for; 0: those seen."] = 0,
    depth: Annotated[int, "Hits that are reordered."] = DEPTH,
) -> Normalised:
    """``normalised(dense, bank='scifact', mode='static')`` of a pipeline: see ``Normalised``."""
    if beta <= 0:
        raise ConfigError(f"beta: {beta!r}; expected a number above 0")
    whole_number(documents, "documents", 0)
    fitting = Fitting(bank, fitted, beta=beta, documents=documents)
    return Normalised(retriever, fitting, mode=mode, depth=depth)
