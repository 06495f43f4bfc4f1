"""Opens what is judged, and gives assessors their queries and candidates."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

from sluice.encoders.foundation.disk.files import lock, sync, writable
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.retrieval.datasets.beir import placed_queries, read_queries
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.serving.content.content import Content
from sluice.retrieval.serving.faults import Fault, invalid
from sluice.retrieval.serving.judging.judgements import (
    Entry,
    Judgement,
    Judgements,
    Pooled,
    header_line,
    is_entry,
    line_of,
    take_lines,
)
from sluice.retrieval.serving.settings import MOST_QUERY, ServeSettings

log = logging.getLogger("sluice.serve")

Answer = TypeVar("Answer")


class JudgementLog:
    """A file of JSON lines that several threads and processes add to, one at a time.

    A kill at any instant loses no acknowledged entry; a line that was cut off by it is removed by
    the next writer. The file is read anew as far as others have added to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = Judgements()
        self._lines, self._end = 0, 0  # what of the file is in the state
        self._mutex = threading.Lock()
        self._opened = False
        try:
            with writable(path).open("ab"):
                self._file_id = _id_of(path.stat())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; give another --judgements FILE") from None
        with self._newest():
            sync(path.parent)
        self._opened = True

    def read(self, take: Callable[[Judgements], Answer]) -> Answer:
        """Return what a function takes from the newest state, which nothing changes meanwhile."""
        with self._newest() as (state, _):
            return take(state)

    def add(self, make: Callable[[Judgements], Sequence[Entry]]) -> None:
        """Add the entries that a function makes of the newest state; they are on disk then.

        ``SluiceError`` where they could not be written: none of them is then in the file.
        """
        with self._newest() as (state, file):
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            entries = [replace(entry, time=now) for entry in make(state)]
            self._append(file, b"".join(map(line_of, entries)), len(entries))
            for entry in entries:
                state.apply(entry)

    @contextmanager
    def _newest(self) -> Iterator[tuple[Judgements, IO[bytes]]]:
        """Yield the state and the file, which is locked against others and read to its end."""
        with self._mutex:
            try:
                file = self.path.open("r+b", buffering=0)
            except OSError as error:
                raise self._lost(error.strerror or "") from None
            with file:  # closing it ends the lock
                lock(file)
                try:
                    self._catch_up(file)
                except DataError as error:
                    if not self._opened:
                        raise
                    # By now no client is at fault, nor needs the file's place on this machine.
                    text = str(error).replace(str(self.path), self.path.name)
                    raise SluiceError(text) from error
                yield self._state, file

    def _catch_up(self, file: IO[bytes]) -> None:
        stat = os.fstat(file.fileno())
        size = stat.st_size
        if _id_of(stat) != self._file_id or size < self._end:
            raise self._lost("another file is in its place")
        if size == 0:
            self._append(file, header_line(), 1)
            return
        file.seek(self._end)
        data = file.read(size - self._end)
        lines, rest = take_lines(self._state, self.path, data, self._lines + 1)
        self._lines += lines
        self._end += len(data) - len(rest)
        if not rest:
            return
        if is_entry(rest):  # written by hand: only its end is missing
            file.seek(size)
            self._end = size
            self._append(file, b"\n", 1)
            take_lines(self._state, self.path, rest + b"\n", self._lines)
            return
        log.warning("%s: a line that a kill had cut off was removed", self.path)
        file.truncate(self._end)

    def _append(self, file: IO[bytes], data: bytes, lines: int) -> None:
        if not data:
            return
        try:
            file.seek(self._end)
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(self._end)
            raise SluiceError(
                f"{self.path.name}: {error.strerror}; nothing was added to it: free space, and try "
                "again"
            ) from error
        self._end += len(data)
        self._lines += lines

    def _lost(self, why: str) -> SluiceError:
        return SluiceError(
            f"{self.path.name}: {why}; judgements are added to the file that was there: put it "
            "back, or start sluice serve again"
        )


def _id_of(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


Known = Callable[[str], bool]  # whether a document is there


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """A query and how far an assessor is with it.

    ``candidates`` is None before it is pooled by the pipelines and the depth of now.
    """

    query: str
    text: str
    candidates: int | None
    judged: int
    skipped: int

    @property
    def is_done(self) -> bool:
        """Whether the assessor has seen all candidates."""
        return self.candidates is not None and self.judged + self.skipped >= self.candidates


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document to judge, and what the assessor said of it."""

    document: str
    said: Judgement | None


class Judging:
    """Queries to judge, in a fixed order, and the log of what was said.

    ``depth`` documents of each of the ``pipelines`` are pooled. A candidate keeps its place for
    everybody and every day: it depends on the ids of query and document alone.
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        log: JudgementLog,
        pipelines: Sequence[str],
        depth: int,
    ) -> None:
        self.queries, self.log = queries, log
        self.pipelines, self.depth = tuple(pipelines), depth
        self._pooled: dict[str, int] = {}  # the state of the documents that a query was pooled from
        for query, text in log.read(lambda state: dict(state.texts)).items():
            if queries.get(query, text) != text:
                raise ConfigError(
                    f"{log.path}: was made for query {query!r} with the text {text!r:.60}, which "
                    f"is {queries[query]!r:.60} now; give another --judgements FILE, or the "
                    "queries of before"
                )

    def needs_pool(self, query: str, number: int) -> bool:
        """Return whether a query is not pooled from this state of the documents yet."""
        self.check(query)
        return self._pooled.get(query) != number

    def pool(self, query: str, number: int, documents: Iterable[str]) -> None:
        """Add documents that the pipelines found to a query's candidates."""
        # In the order of the ids: the file does not say which pipeline was first either.
        documents = sorted(set(documents))
        by = (self.pipelines, self.depth)

        def entries(state: Judgements) -> list[Pooled]:
            known = state.pools.get(query, {})
            new = tuple(document for document in documents if document not in known)
            if not new and by in state.pooled_by.get(query, ()):
                return []
            return [Pooled(query, self.queries[query], new, *by)]

        self.log.add(entries)
        self._pooled[query] = number

    def progress(self, assessor: str, known: Known) -> list[QueryProgress]:
        """Return how far an assessor is with each query."""
        return self.log.read(
            lambda state: [self._progress(state, query, assessor, known) for query in self.queries]
        )

    def progress_of(self, query: str, assessor: str, known: Known) -> QueryProgress:
        """Return how far an assessor is with one query."""
        return self.log.read(lambda state: self._progress(state, query, assessor, known))

    def next_query(self, assessor: str, known: Known, passed: Collection[str] = ()) -> str | None:
        """Return the first query that an assessor has not seen all candidates of, None if done."""

        def first(state: Judgements) -> str | None:
            return next(
                (
                    query
                    for query in self.queries
                    if query not in passed
                    and not self._progress(state, query, assessor, known).is_done
                ),
                None,
            )

        return self.log.read(first)

    def candidates(self, query: str, assessor: str, known: Known) -> list[Candidate]:
        """Return a query's candidates with what the assessor said, those that are gone left out."""
        self.check(query)

        def listed(state: Judgements) -> list[Candidate]:
            said = state.judged(query, assessor)
            there = [document for document in state.pools.get(query, {}) if known(document)]
            return [Candidate(document, said.get(document)) for document in in_order(query, there)]

        return self.log.read(listed)

    def say(self, said: Judgement, known: Known) -> QueryProgress:
        """Add a judgement, and return how far the assessor is with the query."""
        self.check(said.query)

        def entries(state: Judgements) -> list[Judgement]:
            if said.document not in state.pools.get(said.query, {}):
                raise invalid(
                    f"document: {said.document[:80]!r} is not a candidate of query "
                    f"{said.query[:80]!r}; expected one of /judge/task",
                    "document",
                )
            return [said]

        self.log.add(entries)
        return self.progress_of(said.query, said.assessor, known)

    def undo(self, assessor: str, known: Known) -> tuple[Judgement, QueryProgress]:
        """Take back an assessor's last entry on these queries; return what the document has now.

        A log may hold other queries too: those of another service, or of another day.
        """
        restored: list[Judgement] = []

        def entries(state: Judgements) -> list[Judgement]:
            undoing = state.undoing(assessor, self.queries)
            restored.extend([] if undoing is None else [undoing])
            return restored

        self.log.add(entries)
        if not restored:
            raise Fault(409, "nothing_to_undo", "there is nothing to take back in these queries")
        return restored[0], self.progress_of(restored[0].query, assessor, known)

    def check(self, query: str) -> None:
        """Raise a ``Fault`` for a query that is not to be judged."""
        if query not in self.queries:
            raise Fault(
                404, "not_found", f"query: no {query[:80]!r}; /judge/queries lists them",
                param="query",
            )  # fmt: skip

    def _progress(
        self, state: Judgements, query: str, assessor: str, known: Known
    ) -> QueryProgress:
        text = self.queries.get(query, state.texts.get(query, ""))
        pooled = (self.pipelines, self.depth) in state.pooled_by.get(query, ())
        said = {
            document: each
            for document, each in state.judged(query, assessor).items()
            if each.grade is not None or each.skipped  # and not taken back
        }
        # A document that is gone counts where it was judged before.
        there = [doc for doc in state.pools.get(query, {}) if doc in said or known(doc)]
        own = [said[doc] for doc in there if doc in said]
        judged = sum(each.grade is not None for each in own)
        skipped = sum(each.skipped for each in own)
        return QueryProgress(query, text, len(there) if pooled else None, judged, skipped)


def in_order(query: str, documents: Iterable[str]) -> list[str]:
    """Return documents in an order that says nothing of the pipelines: by a hash with the query."""

    def place(document: str) -> bytes:
        pair = f"{len(query)} {query}{document}"
        return hashlib.sha256(pair.encode("utf-8", "surrogatepass")).digest()

    return sorted(documents, key=place)


def judgements_file(source: str, folder: Path) -> Path:
    """Return where judgements go by default: beside the queries' file, or beside the folder."""
    path = Path(source)
    if path.is_file():
        return path.with_name(f"{path.name}.judgements.jsonl")
    whole = folder.absolute()
    return whole.with_name(f"{whole.name}.{source}.judgements.jsonl")


NAME = "--judge"


def open_judging(settings: ServeSettings, folder: Path, content: Content) -> Judging | None:
    """Open the queries to judge and the log of judgements; None where nothing is judged.

    ``ConfigError`` for queries that are neither a file nor a split of the dataset, for one that no
    pipeline could search for, and where nothing is served that finds candidates.
    """
    source = settings.judge
    if source is None:
        return None
    if not content.stages or content.store is None:
        raise ConfigError(
            f"{NAME}: {folder} has no documents to judge; serve an experiment's or a retriever's "
            "folder"
        )
    queries = _queries(source, folder, content)
    for query, text in queries.items():
        if wrong := _wrong(text):
            raise ConfigError(f"{NAME} {_place(source, query)}: query {query!r:.80} {wrong}")
    if not queries:
        raise ConfigError(f"{NAME} {source}: no queries in it; expected one or more")
    log = JudgementLog(settings.judgements or judgements_file(source, folder))
    return Judging(queries, log, list(content.stages), settings.judge_depth)


def _wrong(text: str) -> str:
    """Return why no pipeline could search for a text, an empty string if it can."""
    if not text.strip():
        return "is blank; give it a text, or leave it out"
    if len(text) > MOST_QUERY:
        return (
            f"has {len(text):,} characters; a search takes up to {MOST_QUERY:,}: shorten it, or "
            "leave it out"
        )
    return ""


def _place(source: str, query: str) -> str:
    """Return where a query stands: with its line, if it is in a file."""
    path = Path(source)
    if not path.is_file():
        return source
    places = (place for place, (name, _) in placed_queries(path)() if name == query)
    return next(places, source)


def _queries(source: str, folder: Path, content: Content) -> dict[str, str]:
    path = Path(source)
    if path.is_file():
        return dict(read_queries(path))
    experiment = content.source
    if not isinstance(experiment, Experiment):
        raise ConfigError(
            f"{NAME} {source}: no such file, and {folder} is not an experiment with a dataset; "
            "give a file of queries"
        )
    try:
        return dict(experiment.dataset(source).queries)
    except SluiceError as error:
        raise ConfigError(
            f"{NAME} {source}: no such file; as a split of the dataset: {error}"
        ) from None
