"""A folder that is served while it changes: readers switch from one state to the next."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.output.changes import (
    Changed,
    add_documents,
    delete_documents,
    undo_interrupted,
    unfinished,
    update_documents,
)
from sluice.retrieval.retrievers.folder import read_head
from sluice.retrieval.serving.content.content import (
    EXPERIMENT,
    Content,
    heads_in,
    kind_of,
    models_of,
    open_content,
)
from sluice.retrieval.serving.settings import ServeSettings

REMEMBERED = 1_000  # states whose numbers are kept


class Numbers:
    """Counts states from 1: one that was seen before keeps its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._last = 0

    def number(self, state: str) -> int:
        """Return the number of the state that has this fingerprint."""
        if state not in self._numbers:
            self._last += 1
            self._numbers[state] = self._last
            while len(self._numbers) > REMEMBERED:
                self._numbers.pop(next(iter(self._numbers)))
        return self._numbers[state]


class Peers:
    """One process that serves a folder alone; several ones override every method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = Numbers()

    def writing(self) -> AbstractContextManager[object]:
        """Wait until nobody else of them changes the folder, and keep it so in the block."""
        return self._lock

    def number(self, state: str) -> int:
        """Return the number that all of them give to a state."""
        return self._numbers.number(state)

    def changed(self) -> int:
        """Return when all of them have opened the newest state: how many of them could not."""
        return 0


log = logging.getLogger("sluice.serve")

ATTEMPTS = 20  # at a state that does not change while it is opened
SETTLED_WITHIN = 10.0  # seconds that a change under way may take when the folder is first opened

State = tuple[tuple[str, int, int, int], ...]


class Written(NamedTuple):
    """A change that is on disk, and the number of the state that is served after it.

    ``fault`` says why that state does not have the change yet; empty if it has.
    """

    changed: list[Changed]
    state: int
    fault: str = ""


class LiveFolder:
    """The newest complete state of a folder, and the writes to it, one at a time.

    A new state is opened beside the one that is served, and takes its place when all of it is
    there: a request is answered from one of them as a whole. A change that has not reached all
    retrievers of an experiment yet is waited for.
    """

    def __init__(self, folder: Path, settings: ServeSettings, peers: Peers | None = None) -> None:
        self.folder, self._settings = folder, settings
        self._peers = Peers() if peers is None else peers
        self.kind = kind_of(folder)
        if settings.writable and not self.kind.writable:
            raise ConfigError(
                f"--writable: {folder} is a saved {self.kind.name}, whose documents do not change; "
                "leave it out, or serve an experiment's or a retriever's folder"
            )
        self.fault = ""  # why the newest state is not served
        self._settle()
        self._state = self._seen()
        self._content = self._opened(None)
        self._refreshing = threading.Lock()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def content(self) -> Content:
        """The state that requests are answered from."""
        return self._content

    def watch(self) -> None:
        """Look for changes by other processes, until ``close``."""
        if self.kind.writable and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="sluice-watch", daemon=True)
            self._watcher.start()

    def close(self) -> None:
        """End watching, and the workers of shards."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._settings.shard_workers is not None:
            self._settings.shard_workers.close()

    def refresh(self) -> bool:
        """Serve the folder's newest state; whether it is another one than before."""
        with self._refreshing:
            seen = self._seen()
            if seen == self._state:
                self.fault = ""  # a change that failed was undone
                return False
            if waiting := unfinished(self.folder):
                self.fault = waiting
                return False
            try:
                self._content = self._opened(self._content)
            except Exception as error:
                known = isinstance(error, SluiceError | OSError)
                fault = str(error) if known else "opening it failed; the log has the cause"
                if fault != self.fault:
                    log.warning("still serving the state before: %s", error, exc_info=not known)
                self.fault = fault
                return False
            self._state, self.fault = seen, ""
            log.info("serving state %d of the documents", self._content.number)
            return True

    @property
    def behind(self) -> str:
        """Why the folder's newest state is not served; empty where it is."""
        with self._refreshing:
            return self.fault if self._seen() != self._state else ""

    def add(self, documents: Iterable[Document]) -> Written:
        """Add documents and serve them; ``DataError`` for an id that is there."""
        return self._write(lambda models: add_documents(
            self.folder, documents, allow=self._settings.allow, models=models
        ))  # fmt: skip

    def update(self, documents: Iterable[Document]) -> Written:
        """Replace documents by id, add the others, and serve them."""
        return self._write(lambda models: update_documents(
            self.folder, documents, allow=self._settings.allow, models=models
        ))  # fmt: skip

    def delete(self, ids: Sequence[str]) -> Written:
        """Delete documents by id; ``DataError`` for an id that none has."""
        return self._write(lambda models: delete_documents(
            self.folder, ids, allow=self._settings.allow, models=models
        ))  # fmt: skip

    def _write(self, change: Callable[[dict[str, Any]], list[Changed]]) -> Written:
        with self._peers.writing():
            changed = change(models_of(self._content))
            try:
                self.refresh()
                fault = self.behind
                # Inside: what another one writes is not waited for.
                if others := self._peers.changed():
                    fault = fault or f"not served yet by {plural(others, 'other worker')}"
            except (SluiceError, OSError) as error:  # the change is on disk all the same
                fault = str(error)
            return Written(changed, self._content.number, fault)

    def _settle(self) -> None:
        """Undo a change that was killed half-way, and wait for one that is under way."""
        if self.kind is not EXPERIMENT:
            return
        if self._settings.writable:
            with self._peers.writing():
                undo_interrupted(self.folder)
        ends = time.monotonic() + SETTLED_WITHIN
        while unfinished(self.folder) and time.monotonic() < ends:
            time.sleep(0.1)

    def _watch(self) -> None:
        while not self._stopped.wait(self._settings.reload_every):
            try:
                self.refresh()
            except Exception:  # the service answers from the state it has
                log.exception("looking for changes failed")

    def _opened(self, before: Content | None) -> Content:
        """Open a state that no change went through meanwhile."""
        for _ in range(ATTEMPTS):
            content = open_content(
                self.folder, pipelines=self._settings.pipelines,
                allow=self._settings.allow, before=before,
                shard_workers=self._settings.shard_workers,
            )  # fmt: skip
            if not self.kind.writable:
                return content
            if before is not None and (waiting := unfinished(self.folder)):
                raise SluiceError(waiting)
            now = {head.name: head for head in map(read_head, self._folders())}
            if all(now.get(name) == head for name, head in content.heads.items()):
                heads = {name: asdict(head) for name, head in content.heads.items()}
                return replace(content, number=self._peers.number(fingerprint_of(heads)))
        raise SluiceError(f"{self.folder}: it changes all the time; try again later")

    def _folders(self) -> list[Path]:
        return [path.parent for path in heads_in(self.folder)]

    def _seen(self) -> State:
        """Return what tells one state of the folder's documents from another."""
        if not self.kind.writable:
            return ()
        stats = [(path, path.stat()) for path in heads_in(self.folder)]
        return tuple((str(p), s.st_mtime_ns, s.st_ino, s.st_size) for p, s in stats)
