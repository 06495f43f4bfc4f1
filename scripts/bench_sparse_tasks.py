"""The measurements of ``bench_sparse.py``, each made in a process of its own.

A process of its own, because peak memory, thread settings and numba's start-up belong to one; and
because what one index leaves in memory must not slow the next. ``run`` starts one.
"""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_sparse_timing import DEPTHS, timing
from harness import TaskFailedError, answer, memory, task_of

if TYPE_CHECKING:
    from bench_sparse_data import Collection
    from bench_sparse_peers import Engine

log = logging.getLogger("sluice")

WARM_UP_DOCUMENTS = 2000
MEGABYTE = 1e6


def run(task: str, threads: int = 1, **given: Any) -> Any:
    """Run one task below in a new Python process and return its result."""
    return task_of(__file__, task, given, threads)


def stored_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _parts(collection: str, engine: str) -> tuple[Collection, Engine]:
    from bench_sparse_data import Collection
    from bench_sparse_peers import ENGINES

    return Collection(Path(collection)), ENGINES[engine]


def make(root: str, documents: int) -> str:
    """Make the made-up collection; return its folder."""
    from bench_sparse_data import synthetic

    return str(synthetic(Path(root), documents))


def encode(root: str, dataset: str, splade: str | None) -> str:
    """Encode a real collection; return its folder."""
    from bench_sparse_data import real

    return str(real(Path(root), dataset, splade))


def compile_kernels() -> bool:
    """Run everything of ours once, small: later processes load the compiled code from its cache."""
    import numpy as np
    from bench_sparse_kernels import doubled, positive_scores
    from bench_sparse_peers import new_index
    from bench_sparse_timing import ENGINE_CHOICES
    from scipy import sparse

    from sluice.indexing import open_index

    rng = np.random.default_rng(1)
    drawn = sparse.random_array((WARM_UP_DOCUMENTS, 500), density=0.1, rng=rng, dtype=np.float32)
    some = sparse.csr_array(drawn)
    for fidelity in ("exact", "u8"):
        with tempfile.TemporaryDirectory() as folder:
            index = new_index(fidelity)
            index.add(some)
            index.save(Path(folder) / "index")
            opened = open_index(Path(folder) / "index")
            for engine in ENGINE_CHOICES:
                for k in DEPTHS:
                    opened.search(some[:8], k, params={"engine": engine})
    by_term = some.tocsc()
    postings = (by_term.indptr, by_term.indices, by_term.data)
    positive_scores(*postings, some.indices[:1], some.data[:1], WARM_UP_DOCUMENTS)
    return bool(doubled(1))


def build(collection: str, engine: str, path: str) -> dict[str, float]:
    """Build an engine's index from the stored vectors, reading them included; on one thread."""
    from bench_sparse_data import Collection, write

    source, chosen = _parts(collection, engine)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove(target)
    with tempfile.TemporaryDirectory() as folder:  # compiled code is loaded before the clock starts
        small = Path(folder) / "collection"
        write(small, source.part(0, min(WARM_UP_DOCUMENTS, source.documents)), {})
        if chosen.files != "bm25s":
            chosen.build(Collection(small), Path(folder) / "index")
    gc.collect()
    start, worked = time.perf_counter(), time.process_time()
    chosen.build(source, target)
    return {
        "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - worked,
        "peak_megabytes": 1.048576 * memory("VmHWM"), "megabytes": stored_bytes(target) / MEGABYTE,
    }  # fmt: skip


def serve(collection: str, engine: str, path: str, kind: str, queries: int) -> dict[str, float]:
    """Open an index, answer the queries, and return what was resident at most."""
    source, chosen = _parts(collection, engine)
    asked = source.queries(kind, queries)
    start = time.perf_counter()
    search = chosen.open(source, Path(path), asked)
    opened = time.perf_counter() - start
    for k in DEPTHS:
        for place in range(asked.shape[0]):
            search(place, k)
    return {"peak_megabytes": 1.048576 * memory("VmHWM"), "open_seconds": opened}


def truth(collection: str, fidelity: str, path: str, kind: str, queries: int, out: str) -> str:
    """Score every document for each query in float32 and keep the best; return the file.

    ``exact``: over the collection itself. ``u8``: over the impacts that the index says it stores.
    """
    import numpy as np
    from bench_sparse_data import CHUNK, Collection
    from bench_sparse_kernels import positive_scores
    from bench_sparse_peers import one_by_one
    from scipy import sparse

    source = Collection(Path(collection))
    if fidelity == "exact":
        documents = source.part(0, source.documents)
    else:
        from sluice.indexing import InvertedIndex, open_index

        index = open_index(path)
        if not isinstance(index, InvertedIndex):
            raise TaskFailedError(f"{path}: not an inverted index")
        spans = range(0, index.rows, CHUNK)
        stored = [index.documents(np.arange(s, min(s + CHUNK, index.rows))) for s in spans]
        documents = sparse.csr_array(sparse.vstack(stored, format="csr"))
        del stored
    by_term = documents.tocsc()
    del documents
    postings = (by_term.indptr, by_term.indices, by_term.data)
    most = max(DEPTHS)
    asked = one_by_one(source.queries(kind, queries))
    best = np.full((len(asked), most), -1, dtype=np.int64)
    values = np.full((len(asked), most), -np.inf, dtype=np.float32)
    for place, row in enumerate(asked):
        rows, scores = positive_scores(*postings, row.indices, row.data, source.documents)
        if len(rows) > most:
            edge = np.partition(scores, len(scores) - most)[len(scores) - most]
            rows, scores = rows[scores >= edge], scores[scores >= edge]
        order = np.lexsort((rows, -scores))[:most]
        best[place, : len(order)], values[place, : len(order)] = rows[order], scores[order]
    np.savez(out, rows=best, scores=values)
    return out


def threads(collection: str, path: str, kind: str, queries: int, rounds: int) -> dict[str, Any]:
    """Search a batch on one thread and on two, in turn; return milliseconds of each."""
    import numba
    from bench_sparse_data import Collection

    from sluice.indexing import open_index

    asked = Collection(Path(collection)).queries(kind, queries)
    index = open_index(path)
    times: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(rounds + 1):
        for number, kept in times.items():
            numba.config.NUMBA_NUM_THREADS = number  # read by the index at each batch
            start = time.perf_counter()
            index.search(asked, 10)
            if turn:  # the first warms up
                kept.append(1000 * (time.perf_counter() - start))
    return {"one": times[1], "two": times[2], "queries": asked.shape[0]}


def first_query(collection: str, path: str, kind: str) -> dict[str, float]:
    """Return the milliseconds of numba's start-up, then of opening an index and one answer."""
    import numpy  # noqa: F401 - loaded before the clock starts: any caller has them
    import scipy.sparse  # noqa: F401
    from bench_sparse_data import Collection

    query = Collection(Path(collection)).queries(kind, 1)
    moments = [time.perf_counter()]
    from bench_sparse_kernels import doubled

    doubled(1)
    moments.append(time.perf_counter())
    from sluice.indexing import InvertedIndex, open_index  # noqa: F401 - what opening would import

    moments.append(time.perf_counter())
    index = open_index(path)
    moments.append(time.perf_counter())
    index.search(query, 10)
    moments.append(time.perf_counter())
    names = ("numba", "imports", "open", "first")
    steps = zip(names, moments, moments[1:], strict=False)
    return {name: 1000 * (after - before) for name, before, after in steps}


def text_indexing(dataset: str, rounds: int) -> dict[str, Any]:
    """Tokenise and index a corpus for BM25 with ours and bm25s in turn; return seconds of each."""
    from bench_sparse_peers import ENGINES, index_with_bm25s, new_index

    from sluice import BM25Encoder, load_dataset

    texts = [document.full_text for document in load_dataset(dataset, split=None).corpus]

    def ours(given: list[str]) -> None:
        index = new_index("exact")
        index.add(BM25Encoder().fit_documents(given))
        index.stats()  # whatever is put off until the first search is done

    contestants: dict[str, Callable[[list[str]], Any]] = {"ours": ours}
    if ENGINES["bm25s"].installed:
        contestants["bm25s"] = index_with_bm25s
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant(texts[:500])
    for _ in range(rounds):
        for name, contestant in contestants.items():
            gc.collect()
            start = time.perf_counter()
            contestant(texts)
            times[name].append(time.perf_counter() - start)
    return {"seconds": times, "documents": len(texts)}


TASKS: tuple[Callable[..., Any], ...] = (
    make, encode, compile_kernels, build, serve, truth, timing, threads, first_query, text_indexing,
)  # fmt: skip

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("bm25s").propagate = False  # it sets its own level
    answer(*TASKS)
