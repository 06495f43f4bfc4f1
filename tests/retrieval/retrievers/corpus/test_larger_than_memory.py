"""A corpus whose vectors do not fit into memory: streamed, encoded, and searched from disk."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import sluice.retrieval.retrievers.corpus.vectors.corpus_vectors
from sluice.encoders import FunctionEncoder
from sluice.encoders.foundation.processes import give_back_memory
from sluice.encoders.vectors.forms import Store
from sluice.retrieval import Document, Encoding, Retriever

COUNT, WIDTH = 16_000, 1_024
VECTORS = 4 * COUNT * WIDTH  # 65 MB
ROOM = VECTORS // 2
TABLE = np.random.default_rng(5).standard_normal((64, WIDTH)).astype(np.float32)
FORMS: tuple[Store, ...] = ("float16", "int8")


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the sum of two rows of the table for each text, which is their numbers."""
    first, second = np.array([text.split() for text in texts], int).T
    return np.asarray(TABLE[first] + 0.5 * TABLE[second])


def stream() -> Iterator[Document]:
    numbers = np.random.default_rng(6).integers(0, 64, (COUNT, 2)).tolist()
    return (Document(f"d{row}", "", f"{a} {b}") for row, (a, b) in enumerate(numbers))


@contextmanager
def limited(room: int) -> Iterator[None]:
    """Let this process take no more than ``room`` bytes, mapped files not counted.

    Skips the test where the system sets no such limit, as some containers do not.
    """
    import resource  # not on Windows

    held = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if held is None:
        pytest.skip("the system does not say how much memory this process has")
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(held[1]) + room, before[1]))
    except ValueError:
        pytest.skip("the process has a lower limit already")
    try:
        if not _refused(2 * room):
            pytest.skip("the system does not keep a process within RLIMIT_DATA")
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _refused(size: int) -> bool:
    try:
        np.empty(size, np.int8)
    except MemoryError:
        return True
    return False


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("store", FORMS)
def test_half_of_the_vectors_size_is_room_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store
) -> None:
    monkeypatch.setattr(sluice.retrieval.retrievers.corpus.vectors.corpus_vectors, "CHUNK", 1024)
    encoder = FunctionEncoder(embed, name="table", dim=WIDTH, normalize=False, batch_size=512)
    encoding = Encoding(store=store, shard=1024)
    small = Retriever.build(encoder, ["1 2", "3 4"], encoding=encoding)
    small.search("1 2", k=1)  # whatever is loaded once
    give_back_memory()
    with limited(ROOM):
        built = Retriever.build(encoder, stream(), path=tmp_path / "large", encoding=encoding)
        del built
        found = Retriever.open(tmp_path / "large", encoder=encoder).search("7 9", k=20)
    exact = embed([document.text for document in stream()]).astype(np.float64)
    scores = exact @ embed(["7 9"])[0].astype(np.float64)
    best = np.sort(scores)[::-1][:20]
    tolerance = 1e-3 if store == "float16" else 2e-2
    np.testing.assert_allclose([hit.score for hit in found], best, rtol=tolerance)
    np.testing.assert_allclose([scores[int(hit.doc_id[1:])] for hit in found], best, rtol=tolerance)
