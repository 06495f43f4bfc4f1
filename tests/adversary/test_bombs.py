"""Compressed bombs, endless lines, pipes and devices as inputs: one error, in bounded memory."""

import gzip
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzzing import forked

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.datasets.beir import read_documents, read_queries
from sluice.retrieval.datasets.topics import read_topics
from sluice.retrieval.documents.readers.source import as_documents
from sluice.retrieval.exchange.formats.sparse_files import ImpactFiles
from sluice.retrieval.runs.trec_files import read_qrels, read_run
from sluice.retrieval.training_data.files.formats import rows_of

pytestmark = pytest.mark.thorough

ROOM = 3 << 29  # bytes that a child may take beyond what it has: the longest PDF and some
PARTS = 128  # of 8 MB each when decompressed: 1 GB in a megabyte


def read_rows(path: Path) -> list[object]:
    return list(rows_of(path)[1])


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "run": ("x.trec.gz", read_run),
    "qrels": ("x.qrels.gz", read_qrels),
    "corpus": ("corpus.jsonl.gz", lambda path: list(read_documents(path))),
    "queries": ("queries.jsonl.gz", lambda path: list(read_queries(path))),
    "topics": ("topics.txt.gz", lambda path: list(read_topics(path))),
    "csv": ("x.csv.gz", lambda path: list(as_documents(path))),
    "tsv": ("x.tsv.gz", lambda path: list(as_documents(path))),
    "json list": ("x.json.gz", lambda path: list(as_documents(path))),
    "text": ("x.txt.gz", lambda path: list(as_documents(path))),
    "html": ("x.html.gz", lambda path: list(as_documents(path))),
    "pdf": ("x.pdf.gz", lambda path: list(as_documents(path))),
    "impacts": ("x.jsonl.gz", lambda path: list(ImpactFiles([path]).documents())),
    "training jsonl": ("t.jsonl.gz", read_rows),
    "training csv": ("t.csv.gz", read_rows),
    "training tsv": ("t.tsv.gz", read_rows),
}
# How the data begin, so that each reader takes them for its own, and what is repeated.
BEGINNINGS = {
    "corpus": b'{"_id": "', "queries": b'{"_id": "', "json list": b'[{"text": "', "impacts": b'{"',
    "csv": b'text\n"', "training csv": b'query,positive\n"', "pdf": b"%PDF-1.4\n",
}  # fmt: skip
REPEATED = {"zeros": b"\0" * 64, "lines": b"q Q0 d 1 1.0 t\n" * 4}


def bomb(beginning: bytes, repeated: bytes) -> bytes:
    part = gzip.compress(repeated * ((8 << 20) // len(repeated)), 6)
    return gzip.compress(beginning) + part * PARTS


def refused(read: Callable[[Path], object], path: Path) -> str:
    """Return the error of a reader that runs in a child with little memory."""

    def job() -> int:
        logging.disable()
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
        try:
            read(path)
        except SluiceError as error:
            print(error)
            return 0
        return 3

    ended = forked(job, timeout=60)
    assert not ended.fault(allowed=(0,)), ended
    return ended.out


@pytest.fixture(scope="module")
def bombs() -> dict[tuple[bytes, bytes], bytes]:
    return {}


@pytest.mark.parametrize(
    ("kind", "repeated"),
    [
        *((kind, "zeros") for kind in READERS),
        ("run", "lines"),
        ("csv", "lines"),
        ("qrels", "lines"),
    ],
)
def test_compressed_bombs(
    tmp_path: Path, bombs: dict[tuple[bytes, bytes], bytes], kind: str, repeated: str
) -> None:
    name, read = READERS[kind]
    key = BEGINNINGS.get(kind, b""), REPEATED[repeated]
    if key not in bombs:
        bombs[key] = bomb(*key)
    (tmp_path / name).write_bytes(bombs[key])
    error = refused(read, tmp_path / name)
    assert name in error
    assert len(error) < 500, error


@pytest.mark.parametrize("kind", READERS)
def test_pipes_and_devices(tmp_path: Path, kind: str) -> None:
    name, read = READERS[kind]
    for place, path in enumerate((tmp_path / f"pipe-{name}", tmp_path / f"device-{name}")):
        if place:
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(path)
        with pytest.raises(SluiceError, match=r"pipe or a device|not read"):
            read(path)
    (tmp_path / f"loop-{name}").symlink_to(tmp_path / f"loop-{name}")
    with pytest.raises(SluiceError, match=r"cannot be opened|no such file|a broken link"):
        read(tmp_path / f"loop-{name}")
    (tmp_path / f"folder-{name}").mkdir()
    with pytest.raises(SluiceError, match=r"folder"):
        read(tmp_path / f"folder-{name}")
