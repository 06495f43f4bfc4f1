"""Builds and searches indexes of millions of documents on one machine: time, memory, disk.

    OMP_NUM_THREADS=1 python scripts/bench_scale.py FOLDER KIND MILLIONS [MILLIONS ...]

Kinds: ``bm25`` and ``splade`` (InvertedIndex from drawn vectors), ``splade-u8``, ``texts``
(``Retriever.build`` with BM25 from a stream of texts, analysis included), ``fp16`` and ``int8``
(every vector compared, from codes in memory), ``flat`` (FlatIndex, float32 in a mapped file and
int8 before it) and ``ivf`` (1,024 cells of int8 codes), 384 dimensions. Documents are drawn as they
are read (``bench_scale_data``); the time of drawing is left out of the build's.

Each size is built and searched in processes of its own, on one thread. Its figures are written to
FOLDER and its index removed (``KEEP=1`` keeps it), so a run continues where one was ended; at the
end comes the table of all there is. Temporary files lie in FOLDER too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_sparse_tasks import remove, stored_bytes
from harness import answer, task_of

K = 10
COLD = 100  # queries asked of files that are not in memory
ROUNDS = 3
CHECKED = 40  # queries whose hits are compared with those of every posting
DENSE = ("fp16", "int8", "flat", "ivf")
KINDS = ("bm25", "splade", "splade-u8", "texts", *DENSE)
FACTORIES = {"fp16": "SQfp16", "int8": "SQ8", "ivf": "IVF1024,SQ8"}
NPROBE = 16


class Clock:
    """Seconds on the wall and of this process's processor, between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Clock:
        self._from = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._from[0]
        self.cpu += time.process_time() - self._from[1]


class Streamed:
    """Iterates chunks, and remembers how long they took to draw."""

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks, self.clock = chunks, Clock()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self.clock:
                chunk = next(self._chunks, None)
            if chunk is None:
                return
            yield chunk


def memory() -> dict[str, float]:
    """Return the megabytes of this process now, files that it maps left out, and at its peak."""
    from sluice.encoders.foundation.processes import _peak

    status = Path("/proc/self/status").read_text()
    anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return {"anonymous": int(anonymous.split()[1]) / 1e3, "peak": _peak() / 1e6}


def build(kind: str, documents: int, path: str) -> dict[str, float]:
    """Build an index in ``path``; return seconds, peak memory and bytes on disk."""
    from sluice.encoders.foundation.processes import give_back_memory, peak_memory

    if kind == "texts":
        return _build_texts(documents, path)
    index, source = _empty(kind), _source(kind, documents)
    _build_small(kind)
    give_back_memory()
    before = memory()["anonymous"]
    clock = Clock()
    streamed = Streamed(source.chunks())
    with peak_memory():
        with clock:
            if kind in DENSE:
                wanted = index.training_rows(documents)
                if wanted:
                    index.train(_sample(source, wanted))
                index.spool(Path(path).parent / "spool")
            for chunk in streamed:
                index.add(chunk)
            index.save(Path(path))
        after = memory()
    postings = 0 if kind in DENSE else _postings(index)
    return _costs(clock, streamed.clock, before, after["peak"], Path(path), postings)


def _build_texts(documents: int, path: str) -> dict[str, float]:
    from bench_scale_data import Passages

    from sluice import BM25Encoder, Document, Retriever
    from sluice.encoders.foundation.processes import give_back_memory, peak_memory

    small = [Document(str(n), "", each) for n, each in enumerate(["a b", "b c"])]
    Retriever.build(BM25Encoder(), small)
    give_back_memory()
    before, clock = memory()["anonymous"], Clock()
    streamed = Streamed(Passages(documents).texts())
    corpus = (Document(f"d{n}", "", each) for n, each in enumerate(streamed))
    with peak_memory():
        with clock:
            retriever = Retriever.build(BM25Encoder(), corpus, path=path)
        after = memory()
    folder, postings = Path(path), _postings(retriever.index)
    costs = _costs(clock, streamed.clock, before, after["peak"], folder, postings)
    return {**costs, "index_megabytes": stored_bytes(folder / "index") / 1e6}


def _costs(
    clock: Clock, drawing: Clock, before: float, peak: float, path: Path, postings: int
) -> dict[str, float]:
    """Return what a build took, without the time in which its input was drawn."""
    return {
        "seconds": clock.wall - drawing.wall, "cpu_seconds": clock.cpu - drawing.cpu,
        "drawing_seconds": drawing.wall, "memory_before": before, "peak_megabytes": peak,
        "disk_megabytes": stored_bytes(path) / 1e6, "postings": float(postings),
    }  # fmt: skip


def _postings(index: Any) -> int:
    return int(index.stats().postings)


def _sample(source: Any, wanted: int) -> Any:
    """Return vectors for training, as ``Retriever.build`` draws them: from all over."""
    chunks = -(-source.documents // 50_000)
    each = -(-wanted // chunks)
    return np.concatenate([chunk[:each] for chunk in source.chunks()])[:wanted]


def _empty(kind: str) -> Any:
    from sluice.indexing import FaissIndex, FlatIndex, InvertedIndex

    if kind in FACTORIES:
        return FaissIndex(FACTORIES[kind], metric="ip")
    if kind == "flat":
        return FlatIndex(first_pass="int8")
    return InvertedIndex(fidelity="u8" if kind == "splade-u8" else "exact")


def _source(kind: str, documents: int) -> Any:
    from bench_scale_data import Expanded, Passages, Points

    if kind in DENSE:
        return Points(documents)
    return Passages(documents) if kind in ("bm25", "texts") else Expanded(documents)


def _build_small(kind: str) -> None:
    """Load or compile all kernels, before any clock starts."""
    from scipy import sparse

    from sluice.indexing import open_index

    if kind in DENSE:
        if kind == "flat":
            flat, rows = _empty(kind), np.eye(20_000, 384, dtype=np.float32)
            flat.add(rows)
            flat.search(rows[:1], K)
        return
    index, width = _empty(kind), 70_000 if kind == "bm25" else 500
    drawn = sparse.random_array(
        (3000, width), density=50 / width, rng=np.random.default_rng(1), dtype=np.float32
    )
    some = sparse.csr_array(drawn)
    index.add(some)
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        opened = open_index(Path(folder) / "index")
        for engine in ("auto", "blocks", "terms"):
            opened.search(some[[0]], K, params={"engine": engine})


def forget_pages(path: Path) -> None:
    """Let the system forget what it holds of the files of a folder."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def serve(kind: str, documents: int, path: str, hits: str) -> dict[str, Any]:
    """Search an index whose files are not in memory, then warm; one query at a time.

    Milliseconds on the wall, and of the thread's processor, which a busy machine does not stretch.
    """
    source = _source(kind, documents)
    if kind == "texts":
        from sluice.retrieval import Retriever

        asked = source.text_queries()
        small = Retriever.build(["a b", "b c"])
        small.search("a", k=1)
        _build_small("bm25")
        forget_pages(Path(path))
        with (opening := Clock()):
            retriever = Retriever.open(path)
        ask: Any = lambda query: retriever.search(query, k=K)  # noqa: E731
        queries: Any = asked
    else:
        from sluice.indexing import open_index

        _build_small(kind)
        index: Any = open_index(path)
        rows = source.queries() if kind in DENSE else None
        if rows is None:
            from sluice.indexing.inverted.segment_list import frequencies

            rows = source.queries(frequencies(index._segments, index.width))
        del index
        forget_pages(Path(path))
        with (opening := Clock()):
            index = open_index(path)
        params = {"nprobe": NPROBE} if kind == "ivf" else {}
        ask = lambda query: index.search(query, K, params=params)  # noqa: E731
        queries = [rows[[place]] for place in range(rows.shape[0])]
    few = max(len(queries) // 10, 20) if kind in ("flat", "fp16", "int8") else len(queries)
    queries = queries[:few]
    cold = [_timed(ask, query) for query in queries[: min(COLD, few)]]
    for query in queries:
        ask(query)
    rounds = [[_timed(ask, query) for query in queries] for _ in range(ROUNDS)]
    warm, cpu = np.median(np.array(rounds), axis=0).T
    report: dict[str, Any] = {"open_ms": 1000 * opening.wall, "first_ms": cold[0][0]}
    for name, times in (("cold", [t for t, _ in cold]), ("warm", warm), ("warm_cpu", cpu)):
        report[name] = [round(float(np.percentile(times, p)), 3) for p in (50, 99)]
    rollup = Path("/proc/self/smaps_rollup").read_text().split()
    report["pss_megabytes"] = int(rollup[rollup.index("Pss:") + 1]) / 1e3
    if kind not in ("texts", *DENSE):
        report |= _against_all(index, rows)
    elif kind in DENSE:
        found = np.vstack([ask(query).rows for query in queries])
        report |= _recall(found, Path(hits), kind)
    return report


def _timed(ask: Any, query: Any) -> tuple[float, float]:
    start, worked = time.perf_counter(), time.thread_time()
    ask(query)
    return 1000 * (time.perf_counter() - start), 1000 * (time.thread_time() - worked)


def _against_all(index: Any, rows: Any) -> dict[str, Any]:
    """Compare with the engine that reads every posting; say what the planner chose."""
    some = rows[:CHECKED]
    usual, every = index.search(some, K), index.search(some, K, params={"engine": "terms"})
    plans = index.plan(rows, K)
    deep = [_timed(lambda q: index.search(q, 1000), rows[[place]])[0] for place in range(100)]
    return {
        "wrong": int((usual.rows != every.rows).any(axis=1).sum()),
        "engines": {
            name: sum(plan.engine == name for plan in plans) for name in {p.engine for p in plans}
        },
        "top_1000": [round(float(np.percentile(deep, p)), 3) for p in (50, 99)],
    }


def _recall(found: Any, hits: Path, kind: str) -> dict[str, Any]:
    """Return the recall against the exact hits, where those are known; keep them otherwise."""
    if kind == "flat":
        np.save(hits, found)
    if not hits.exists():
        return {}
    exact = np.load(hits)
    pairs = zip(found, exact, strict=False)
    shares = [len(np.intersect1d(a, b)) / len(b) for a, b in pairs]
    return {"recall": round(float(np.mean(shares)), 4)}


def measured(root: Path, kind: str, documents: int) -> None:
    """Build and search one size, unless its figures are there."""
    results = root / "results" / f"{kind}-{documents}.json"
    if results.exists():
        return
    temporary, path = root / "tmp", root / f"{kind}-{documents}"
    for folder in (temporary, results.parent):
        folder.mkdir(parents=True, exist_ok=True)
    built = path.with_suffix(".json")
    common: Any = {"kind": kind, "documents": documents, "path": str(path)}
    if not built.exists():
        remove(path)
        built.write_text(json.dumps(task_of(__file__, "build", common, TMPDIR=str(temporary))))
    served = task_of(
        __file__, "serve", {**common, "hits": str(root / f"hits-{documents}.npy")},
        TMPDIR=str(temporary),
    )  # fmt: skip
    figures = {"build": json.loads(built.read_text()), "serve": served}
    print(f"{kind} {documents:,}: {json.dumps(figures)}", flush=True)
    results.write_text(json.dumps(figures))
    if not os.environ.get("KEEP"):
        remove(path)
        built.unlink()


def table(root: Path) -> str:
    """Return all figures there are as a table; ratios are those to a tenth of the documents."""
    lines = [
        "| | documents | build | CPU | peak | disk | a document | cold p50 / p99 | warm p50 / p99"
        " | CPU p50 / p99 | |",
        "|---" * 11 + "|",
    ]
    for kind in KINDS:
        files = sorted(
            (root / "results").glob(f"{kind}-[0-9]*.json"),
            key=lambda file: int(file.stem.rpartition("-")[2]),
        )
        for file in files:
            figures, documents = json.loads(file.read_text()), int(file.stem.rpartition("-")[2])
            built, served = figures["build"], figures["serve"]
            notes = [f"recall {served['recall']:.3f}"] if "recall" in served else []
            notes += [f"{served['wrong']} of {CHECKED} wrong"] if "wrong" in served else []
            cells = [
                kind, f"{documents:,}", f"{built['seconds']:,.0f} s",
                f"{built['cpu_seconds']:,.0f} s", f"{built['peak_megabytes']:,.0f} MB",
                f"{built['disk_megabytes']:,.0f} MB",
                f"{1e6 * built['disk_megabytes'] / documents:,.0f} bytes",
                *(" / ".join(f"{t:.2f}" for t in served[n]) for n in ("cold", "warm", "warm_cpu")),
                "; ".join(notes),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) < 4 or sys.argv[2] not in KINDS:
        sys.exit(f"{__doc__}\nexpected FOLDER, one of {', '.join(KINDS)}, and millions")
    root = Path(sys.argv[1]).resolve()
    for millions in sys.argv[3:]:
        measured(root, sys.argv[2], int(1e6 * float(millions)))
    print(table(root))


if __name__ == "__main__":
    if not answer(build, serve):
        main()
