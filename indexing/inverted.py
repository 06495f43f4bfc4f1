"""Exact search over sparse impacts: BM25, SPLADE and their kin."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy as np
from numba import config
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from encoders.errors import ConfigError, DataError, IndexFormatError, suggest
from encoders.files import is_alive
from indexing.arrays import fact, write_array
from indexing.compiling import said_once
from indexing.document_order import ORDERS, document_order
from indexing.hits import Hits
from indexing.index import Index
from indexing.live import Mask, Rows
from indexing.overlap import measured_overlap
from indexing.planning import ENGINES, Plan, plan_of
from indexing.pruning import heaviest_terms, pruned_queries
from indexing.search_kernel import LAZY_BLOCKS, RECORD, search_segments
from indexing.segment import LAYOUT, MOST_BLOCKS, Segment, open_segment
from indexing.segment_build import build_segment
from indexing.segment_table import segment_tables
from indexing.segment_documents import stored_documents, streamed_documents
from indexing.spool import Spool
from indexing.vectors import checked_sparse
from indexing.whole import whole_number

log = logging.getLogger("sluice")

Sparse = sparse.csr_array[Any]
FIDELITIES = ("exact", "u8")
MAX_ROWS = 2**31  # row numbers share an int64 with the score's bits
MOST_TERMS = 2**31
TASKS_PER_THREAD = 4  # pieces of a batch: few enough to be cheap, enough to even out the threads
SEGMENT_DOCUMENTS = 32 * MOST_BLOCKS  # of one segment, at the block size of large ones
SEGMENT_POSTINGS = 1 << 30
USUAL: Mapping[str, Any] = {"engine": "auto", "alpha": 1.0, "beta": 1.0}
EVERYTHING = np.zeros(0, dtype=np.bool_)  # a mask that excludes nothing
EVERYTHING.setflags(write=False)  # as other masks: numba would compile for both kinds
IN_MEMORY = 1 << 23  # postings of a new segment that is kept in memory; larger ones are files


class Contribution(NamedTuple):
    """What one term adds to a score: ``contribution`` is ``query_weight`` times ``impact``."""

    term: int
    query_weight: float
    impact: float
    contribution: float


@dataclass(frozen=True, slots=True)
class InvertedStatistics:
    """Counts of an inverted index, deleted documents included until ``compact``."""

    documents: int
    terms: int  # width of the vocabulary
    used_terms: int  # terms that some document carries
    postings: int
    mean_terms: float  # per document: the L0 of documents
    longest: int  # postings of the most frequent term
    segments: int


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """What queries ask of an index; ``flops`` predicts ``multiplications / documents``.

    FLOPS is the sum over the terms of the share of queries times the share of documents that carry
    it (Paria et al., 2020; Formal et al., 2021): the mean number of shared terms.
    """

    mean_terms: float  # per query: the L0 of queries
    flops: float
    multiplications: float  # per query, of the exhaustive engine


class Placed(NamedTuple):
    """A segment, the index's row of its first document, and its files where it has some."""

    segment: Segment
    first_row: int
    files: tuple[Path, str] | None = None  # folder and prefix


class InvertedIndex(Index):
    """Documents by the terms they carry, with their impacts; vectors are scipy CSR arrays.

    With ``fidelity="exact"`` a score is the float32 sum over the shared terms in ascending term
    order, each product rounded to float32 and a sum beyond it to the largest, and ties go to the
    lower row: equal to brute force, rows included, whatever engine, block size or number of
    threads. ``"u8"`` keeps impacts as 8 bits with a scale for each term, is about two thirds of the
    size, and is exact in the same sense for the impacts it keeps; a merge of segments may round
    them again. Documents that share no term with the query are no hits. Negative, NaN and infinite
    weights are refused, explicit zeros dropped.

    ``n_terms`` fixes the vocabulary's width; without it the width is that of the widest matrix
    added, because a vocabulary may grow. Query terms beyond it have no postings. ``block_size`` is
    a power of two up to 256, chosen by size unless given. ``order`` rearranges documents inside:
    ``"input"``, ``"cluster"`` or ``"bisection"``; rows stay those of adding. ``top_terms`` keeps
    only a document's heaviest terms, which is no longer exact.

    ``search`` takes the parameters ``engine`` (``"auto"``, ``"blocks"``, ``"terms"``), ``alpha``
    (0 to 1: below 1 blocks are left out whose bound, times alpha, is below the k-th score) and
    ``beta`` (0 to 1: the share of the query's terms that is searched, heaviest first).

    The index is a list of immutable segments. Added documents become a segment before the next
    search, ``save`` or ``compact``, or once they are many, and small segments are merged. Searches
    may run while another thread changes the index: each sees the state it began with. Batches run
    on ``NUMBA_NUM_THREADS`` threads (default: all cores).
    """

    type_name = "inverted"

    def __init__(
        self,
        n_terms: int | None = None,
        *,
        fidelity: str = "exact",
        block_size: int | None = None,
        order: str = "input",
        top_terms: int | None = None,
    ) -> None:
        super().__init__()
        self.n_terms = None if n_terms is None else whole_number(n_terms, "n_terms", 1)
        self.fidelity = _choice("fidelity", fidelity, FIDELITIES)
        self.order = _choice("order", order, ORDERS)
        self.block_size = None if block_size is None else whole_number(block_size, "block_size", 1)
        if self.block_size and (self.block_size > 256 or self.block_size & (self.block_size - 1)):
            raise ConfigError(f"block_size: {block_size}, expected a power of two up to 256")
        self.top_terms = None if top_terms is None else whole_number(top_terms, "top_terms", 1)
        self._segments: tuple[Placed, ...] = ()
        self._spool = Spool()  # added, not yet in a segment
        self._changing = RLock()  # held by whoever changes the index
        self._measured: set[tuple[float, float]] = set()
        self._tables = segment_tables([])  # of the segments; the readers' are filled
        self._value = np.empty(0, np.float32 if self.fidelity == "exact" else np.uint8)
        self._present: Self | None = None  # what readers share until the next change

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        return type(self)(
            self.n_terms,
            fidelity=self.fidelity,
            block_size=self.block_size,
            order=self.order,
            top_terms=self.top_terms,
        )

    @property
    def width(self) -> int:
        """Terms of the vocabulary so far."""
        widths = (placed.segment.terms for placed in self._segments)
        return max(self.n_terms or 0, self._spool.terms, *widths, 0)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(placed.segment.size_bytes for placed in self._reader()._segments)

    def stats(self) -> InvertedStatistics:
        """Return how many documents, terms and postings there are."""
        reader = self._reader()
        frequencies = reader._frequencies()
        postings = int(frequencies.sum())
        return InvertedStatistics(
            documents=reader.rows,
            terms=reader.width,
            used_terms=int(np.count_nonzero(frequencies)),
            postings=postings,
            mean_terms=postings / reader.rows if reader.rows else 0.0,
            longest=int(frequencies.max(initial=0)),
            segments=len(reader._segments),
        )

    def query_stats(self, queries: Sparse) -> QueryStatistics:
        """Return the queries' L0 and FLOPS over this index, and the multiplications they take."""
        matrix = self._checked(queries, "queries")
        reader, count = self._reader(), max(int(matrix.shape[0]), 1)
        frequencies = reader._frequencies()
        known = matrix.indices[matrix.indices < len(frequencies)]
        share = np.bincount(known, minlength=len(frequencies)) / count
        return QueryStatistics(
            mean_terms=matrix.nnz / count,
            flops=float(share @ frequencies) / max(reader.rows, 1),
            multiplications=float(frequencies[known].sum()) / count,
        )

    def documents(self, rows: ArrayLike) -> Sparse:
        """Return the stored impacts of rows, float32 ``[len(rows), width]``; deleted ones too."""
        reader = self._reader()
        wanted = reader._live.known(np.asarray(rows), "documents")
        width = reader.width
        found = [sparse.csr_array((0, width), dtype=np.float32)]
        back = np.empty(len(wanted), dtype=np.int64)
        done = 0
        for placed in reader._segments:
            local = wanted - placed.first_row
            here = np.flatnonzero((local >= 0) & (local < placed.segment.documents))
            if len(here):
                part = stored_documents(placed.segment, local[here])
                part.resize((len(here), width))
                found.append(part)
                back[here] = np.arange(done, done + len(here))
                done += len(here)
        whole: Sparse = sparse.vstack(found, format="csr")
        return whole[back]

    def explain(self, query: Sparse, row: int) -> list[Contribution]:
        """Return each shared term's part of the score of ``row``, in ascending term order.

        ``query`` is one sparse row ``[1, terms]``; the float32 sum of the parts is the score.
        """
        matrix = self._checked(query, "query")
        if matrix.shape[0] != 1:
            raise DataError(f"explain: {matrix.shape[0]} queries, expected one row")
        if not 0 <= row < self.rows:
            raise DataError(f"explain: no row {row}; this index has {self.rows:,} rows")
        document = self.documents([row])
        impacts = dict(zip(document.indices.tolist(), document.data, strict=True))
        return [
            Contribution(term, float(weight), float(impacts[term]), float(weight * impacts[term]))
            for term, weight in zip(matrix.indices.tolist(), matrix.data, strict=True)
            if term in impacts
        ]

    def plan(
        self, queries: Sparse, k: int, *, params: Mapping[str, Any] | None = None
    ) -> list[Plan]:
        """Search, and return what the planner chose for each query, why, and what it did."""
        given = self._settings(params)
        reader = self._reader()
        matrix = self._checked(queries, "queries")
        places = min(whole_number(k, "k", 1), max(len(reader), 1))
        work = np.zeros((matrix.shape[0], RECORD), dtype=np.int64)
        reader._run(matrix, places, reader._live.allowed(), given, work)
        return [plan_of(line, given["engine"]) for line in work]

    def add(self, vectors: Any) -> Rows:
        """Append document vectors and return their rows, int64 ``[n]``.

        The vectors are copied. ``DataError`` for NaN, a negative weight, a wrong dtype or width;
        then nothing is added.
        """
        with self._changing:
            self._present = None
            return super().add(vectors)

    def delete(self, rows: ArrayLike) -> None:
        """Put tombstones on ``rows``: they are no hits any more and keep their numbers.

        ``DataError`` for an unknown or already deleted row; then nothing is deleted.
        """
        with self._changing:
            super().delete(rows)
            self._present = None

    def compact(self) -> Rows:
        """Drop deleted rows and close the gaps; return old row -> new row (-1 where deleted).

        Searches go on meanwhile, over the state before.
        """
        with self._changing:
            reader = self._reader()
            allowed = reader._live.allowed()
            segments = reader._segments
            if allowed is not None:
                segments = self._built(reader._kept(allowed))
            elif len(segments) > 1:
                segments = self._built(reader._kept(np.ones(reader.rows, dtype=np.bool_)))
            self._segments = segments
            moved = self._live.compact()
            self._present = None
            return moved

    def _reader(self) -> Self:
        """Return this index as it is now, which no change reaches; added documents are in it."""
        reader = self._present
        if reader is None:
            with self._changing:
                self._flush()
                reader = object.__new__(type(self))
                reader.__dict__.update(self.__dict__)
                reader._live = copy.copy(self._live)
                reader._tables = segment_tables([placed[:2] for placed in self._segments])
                self._present = reader._present = reader
        return reader

    def _checked(self, vectors: Any, what: str) -> Sparse:
        matrix = checked_sparse(vectors, what)
        if self.n_terms is not None and what != "queries" and matrix.shape[1] > self.n_terms:
            raise DataError(
                f"{what}: {matrix.shape[1]} terms, this index was made for {self.n_terms}; "
                "encode with the encoder the index was built with"
            )
        if matrix.shape[1] > MOST_TERMS:
            raise DataError(
                f"{what}: {matrix.shape[1]:,} terms, an index has at most 2,147,483,648"
            )
        return matrix

    def _append(self, documents: Sparse) -> None:
        if self.rows + documents.shape[0] > MAX_ROWS:
            raise DataError(f"documents: an index holds at most {MAX_ROWS:,}; use several")
        count, first = int(documents.shape[0]), 0
        ends = documents.indptr[1:].astype(np.int64)
        while first < count:
            begun = int(ends[first - 1]) if first else 0
            room = begun + SEGMENT_POSTINGS - self._spool.postings
            last = min(
                first + SEGMENT_DOCUMENTS - len(self._spool),
                int(np.searchsorted(ends, room, side="right")),
            )
            if last <= first and len(self._spool):
                self._flush()
                continue
            last = max(last, first + 1)
            self._spool.append(documents if last - first == count else documents[first:last])
            first = last

    def _flush(self) -> None:
        """Turn the spool into a segment and merge small segments behind it; the lock is held."""
        if not len(self._spool):
            return
        spool, segments = self._spool, list(self._segments)
        while segments and _worth_merging(segments[-1].segment, spool):
            merged = Spool()
            for chunk in streamed_documents(segments.pop().segment):
                merged.append(chunk)
            for first in range(0, len(spool), 1 << 16):
                merged.append(_rows_of(spool, first, min(first + (1 << 16), len(spool))))
            merged.terms = max(merged.terms, spool.terms)
            spool = merged
        first_row = sum(placed.segment.documents for placed in segments)
        placed = self._placed(spool, first_row, self.width)
        self._segments = (*segments, placed)
        self._spool = Spool()

    def _built(self, chunks: Iterable[Sparse]) -> tuple[Placed, ...]:
        """Return new segments of documents, as few as their limits allow."""
        width, spool, segments, first_row = self.width, Spool(), list[Placed](), 0
        for chunk in chunks:
            full = len(spool) + chunk.shape[0] > SEGMENT_DOCUMENTS
            if len(spool) and (full or spool.postings + chunk.nnz > SEGMENT_POSTINGS):
                segments.append(self._placed(spool, first_row, width))
                first_row, spool = first_row + len(spool), Spool()
            spool.append(chunk)
        if len(spool):
            segments.append(self._placed(spool, first_row, width))
        return tuple(segments)

    def _placed(self, spool: Spool, first_row: int, width: int) -> Placed:
        """Build one segment, in memory or in a temporary folder that goes with it."""
        exact, order, folder = self.fidelity == "exact", None, None
        with said_once():
            if self.top_terms is not None:
                kept = heaviest_terms(spool, self.top_terms)
                measured_overlap(spool, kept, f"top_terms={self.top_terms}")
                spool = kept
            if not exact:
                measured_overlap(spool, None, "u8")
            if self.order != "input":
                order = document_order(spool, width, self.order)
            if spool.postings > IN_MEMORY:
                folder = _scratch_folder()
            segment = build_segment(
                spool, width, exact=exact, block_size=self.block_size, order=order, folder=folder
            )
        if folder is None:
            return Placed(segment, first_row)
        # The files live as long as one of the arrays that map them.
        weakref.finalize(segment.codes, shutil.rmtree, folder, ignore_errors=True)
        return Placed(segment, first_row, (folder, ""))

    def _kept(self, allowed: Mask) -> Iterable[Sparse]:
        for placed in self._segments:
            row = placed.first_row
            for chunk in streamed_documents(placed.segment):
                count = int(chunk.shape[0])
                yield chunk[allowed[row : row + count]]
                row += count

    def _frequencies(self) -> NDArray[np.int64]:
        total = np.zeros(self.width, dtype=np.int64)
        for placed in self._segments:
            total[: placed.segment.terms] += placed.segment.frequencies
        return total

    def _stored_rows(self) -> int:
        return sum(placed.segment.documents for placed in self._segments)

    def _search_parameters(self) -> tuple[str, ...]:
        return ("engine", "alpha", "beta")

    def _settings(self, parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if not parameters:
            return USUAL
        given = dict(parameters)
        self._check_parameters(given)
        settings: dict[str, Any] = {
            "engine": _choice("engine", given.get("engine", "auto"), tuple(ENGINES))
        }
        for name in ("alpha", "beta"):
            value = given.get(name, 1.0)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value <= 1:
                raise ConfigError(f"params.{name}: {value!r}, expected a number above 0, at most 1")
            settings[name] = float(value)
        return settings

    def _search(
        self, queries: Sparse, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        given = self._settings(parameters)
        hits = self._run(queries, k, allowed, given)
        setting = (given["alpha"], given["beta"])
        if setting != (1.0, 1.0) and setting not in self._measured:
            self._measured.add(setting)
            sample = slice(0, 64)
            whole = self._run(
                queries[sample], k, allowed, {"engine": "auto", "alpha": 1, "beta": 1}
            )
            shared = [
                len(np.intersect1d(a[a >= 0], b[b >= 0])) / max(np.count_nonzero(b >= 0), 1)
                for a, b in zip(hits.rows[sample], whole.rows, strict=True)
            ]
            log.info(
                "alpha=%g beta=%g: overlap@%d with exact %.4f over %d queries",
                *setting, k, np.mean(shared), len(shared),
            )  # fmt: skip
        return hits

    def _run(
        self,
        queries: Sparse,
        k: int,
        allowed: Mask | None,
        given: Mapping[str, Any],
        work: NDArray[np.int64] | None = None,
    ) -> Hits:
        count = int(queries.shape[0])
        starts, terms, weights = pruned_queries(queries, given["beta"])
        hits = Hits(np.empty((count, k), np.int64), np.empty((count, k), np.float32))
        record = np.zeros((count, RECORD), dtype=np.int64) if work is None else work
        mask = EVERYTHING if allowed is None else allowed
        exact, engine, alpha = self.fidelity == "exact", ENGINES[given["engine"]], given["alpha"]

        def search(first: int, last: int) -> None:
            search_segments(
                self._tables, self._value, mask, exact, engine, alpha, LAZY_BLOCKS,
                starts, terms, weights, first, last, hits.rows, hits.scores, record,
            )  # fmt: skip

        with said_once():
            threads = int(config.NUMBA_NUM_THREADS)
            if threads == 1 or count == 1:
                search(0, count)
            else:
                step = -(-count // (threads * TASKS_PER_THREAD))
                with ThreadPoolExecutor(threads) as pool:
                    starts_of = range(0, count, step)
                    for task in [
                        pool.submit(search, at, min(at + step, count)) for at in starts_of
                    ]:
                        task.result()
        return hits

    def _keep_only(self, allowed: Mask) -> None:
        self._segments = self._built(self._kept(allowed))

    def _write(self, folder: Path) -> dict[str, Any]:
        reader = self._reader()
        described, written = [], []
        for number, placed in enumerate(reader._segments, 1):
            segment, prefix = placed.segment, f"s{number:06d}-"
            for name in LAYOUT:
                _place(placed, name, folder / f"{prefix}{name}.npy")
            counts = ("documents", "terms", "postings", "blocks")
            described.append({name: getattr(segment, name) for name in counts})
            written.append(placed._replace(files=(folder, prefix)))
        with self._changing:
            if self._segments is reader._segments:  # else they have changed again
                self._segments = tuple(written)
                self._present = None
        return {
            "n_terms": self.n_terms,
            "fidelity": self.fidelity,
            "block_size": self.block_size,
            "order": self.order,
            "top_terms": self.top_terms,
            "segments": described,
        }

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        if "segments" not in facts:
            raise IndexFormatError(
                f"{folder}: an inverted index of an earlier Sluice, expected segments; build it again"
            )
        names = ("n_terms", "block_size", "top_terms")
        optional = {
            name: None if facts.get(name) is None else fact(facts, name, int, folder)
            for name in names
        }
        fidelity = fact(facts, "fidelity", str, folder)
        index = cls(fidelity=fidelity, order=fact(facts, "order", str, folder), **optional)
        value = np.float32 if fidelity == "exact" else np.uint8
        segments, row = [], 0
        described: Sequence[Any] = fact(facts, "segments", list, folder)
        for number, counts in enumerate(described, 1):
            prefix = f"s{number:06d}-"
            segment = open_segment(folder, prefix, counts, value)
            segments.append(Placed(segment, row, (folder, prefix)))
            row += segment.documents
        index._segments = tuple(segments)
        return index


def _worth_merging(segment: Segment, spool: Spool) -> bool:
    """Say whether a segment is merged with what follows: that keeps their number logarithmic."""
    documents = segment.documents + len(spool)
    postings = segment.postings + spool.postings
    small = segment.documents < 2 * len(spool) or segment.postings < 2 * spool.postings
    return small and documents <= SEGMENT_DOCUMENTS and postings <= SEGMENT_POSTINGS


def _rows_of(spool: Spool, first: int, last: int) -> Sparse:
    starts, terms, impacts = spool.documents(first, last)
    shape = (last - first, spool.terms)
    return sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape)


def _place(placed: Placed, name: str, target: Path) -> None:
    """Put one array of a segment into a folder: a link where possible, else a copy."""
    if placed.files is not None:
        folder, prefix = placed.files
        try:
            os.link(folder / f"{prefix}{name}.npy", target)
        except OSError:  # gone, on another file system, or on one without links
            pass
        else:
            return
    array = getattr(placed.segment, name)
    write_array(target, [array], array.shape, array.dtype)


def _scratch_folder() -> Path:
    """Make a temporary folder for a segment's files; those of killed processes are removed."""
    for old in Path(tempfile.gettempdir()).glob("sluice-index-*-*"):
        process = old.name.split("-")[2]
        if process.isdigit() and not is_alive(int(process)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"sluice-index-{os.getpid()}-"))


def _choice(name: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise ConfigError(
            f"{name}: {value!r}, expected one of {', '.join(known)}{suggest(str(value), known)}"
        )
    return str(value)
