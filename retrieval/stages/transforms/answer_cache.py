"""What language models wrote, in a file or in memory, so that no prompt is paid for twice."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import OwnLock
from sluice.retrieval.stages.rerankers.cache_file import (
    Layout,
    damaged,
    open_database,
    reported,
    transaction,
)

TABLES = ("CREATE TABLE answers (key BLOB PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",)
LAYOUT = Layout(0x534C5441, 1, TABLES, "answers")
REMEMBERED = 10_000  # answers in memory, without a file
AT_ONCE = 500  # answers looked up by one statement


class AnswerCache:
    """Answers by (model, prompt, length), shared by processes and threads.

    ``path`` is a SQLite file, made when it is first needed; a process that is killed leaves what it
    put before. None keeps the latest answers in memory. Prompts are known by 128-bit hashes
    (blake2b). ``IndexFormatError`` for a damaged or foreign file.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = OwnLock()
        self._opened: tuple[int, sqlite3.Connection] | None = None  # by which process
        self._memory: dict[bytes, str] = {}

    def get(self, model: str, prompts: Sequence[str], length: int) -> dict[str, str]:
        """Return the answers of the prompts that have one."""
        keys = {_key(model, prompt, length): prompt for prompt in prompts}
        found: Mapping[bytes, str] = self._memory
        if self.path is not None:
            found = self._read(self.path, list(keys))
        return {prompt: found[key] for key, prompt in keys.items() if key in found}

    def put(self, model: str, prompt: str, length: int, answer: str) -> None:
        """Add an answer; one that is there already stays."""
        key = _key(model, prompt, length)
        with self._lock:
            if self.path is None:
                self._memory.setdefault(key, answer)
                while len(self._memory) > REMEMBERED:
                    del self._memory[next(iter(self._memory))]
                return
            with reported(self.path, LAYOUT):
                database = self._database(self.path)
                with transaction(database):
                    database.execute(
                        "INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, encodable(answer))
                    )

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._opened is not None and self._opened[0] == os.getpid():
                self._opened[1].close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which opens the file by itself."""
        return {**self.__dict__, "_opened": None}

    def _read(self, path: Path, keys: Sequence[bytes]) -> dict[bytes, str]:
        rows = []
        with self._lock, reported(path, LAYOUT):
            database = self._database(path)
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                statement = f"SELECT key, text FROM answers WHERE key IN ({marks})"
                rows += database.execute(statement, some).fetchall()
        if not all(isinstance(text, str) for _, text in rows):
            raise damaged(path, LAYOUT, "an answer is not text")
        return dict(rows)

    def _database(self, path: Path) -> sqlite3.Connection:
        """Return this process's connection: one that was opened before a fork is not shared."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_database(path, LAYOUT)
        return self._opened[1]


def _key(model: str, prompt: str, length: int) -> bytes:
    text = f"{model}\n{length}\n{prompt}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()


def encodable(text: str) -> str:
    """Return a text with the replacement character for lone surrogates, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
