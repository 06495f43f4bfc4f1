"""Exact search over sparse impacts, such as those of BM25 and SPLADE."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.checks import checked_sparse
from sluice.indexing.hits import LARGEST_SCORE, Hits, Mask, Rows
from sluice.indexing.inverted.approximate import ApproximateIndex, joined_notes
from sluice.indexing.inverted.search.numpy_engine import expected_work, search_query
from sluice.indexing.inverted.search.record import BLOCKS, RECORD
from sluice.indexing.inverted.segment_list import (
    Segments,
    frequencies,
    joined,
    open_segments,
    write_segments,
)
from sluice.indexing.inverted.segments.segment import LAST_ROW
from sluice.indexing.inverted.settings import SearchSettings, SegmentSettings
from sluice.indexing.inverted.spooling.spool import Spool
from sluice.indexing.inverted.statistics import Contribution, InvertedStatistics
from sluice.indexing.kernels.calls import in_pieces, kernels_loaded, notice_once, numpy_suffices
from sluice.indexing.recall import NOTE
from sluice.indexing.storage.rows import fact

Sparse: TypeAlias = "sparse.csr_array[Any]"  # a text: scipy below 1.15 has no [Any]
EVERYTHING = np.zeros(0, dtype=np.bool_)  # a mask that excludes nothing
EVERYTHING.setflags(write=False)  # as other masks: numba would compile for both kinds
MAX_ROWS = LAST_ROW + 1
MOST_TERMS = 2**28  # some arrays are as long as the vocabulary
NUMPY_SECONDS = 6e-9  # for each posting and document of a search without kernels
TASKS_PER_THREAD = 4  # parts of a batch: few enough to be cheap, enough to even out the threads


class InvertedIndex(ApproximateIndex):
    """Documents by the terms they carry, with their impacts; vectors are scipy CSR arrays.

    With ``fidelity="exact"`` a score is the float32 sum over the shared terms in ascending term
    order, each product rounded to float32 and a sum beyond it to the largest, and ties go to the
    lower row: equal to brute force, rows included, whatever engine, block size or number of
    threads. ``"u8"`` keeps impacts as 8 bits with a scale for each term, is about three quarters of
    the size, and is exact in the same sense for the impacts it keeps; a merge of segments may round
    them again. Documents that share no term with the query are never hits. Negative, NaN and
    infinite weights are refused, explicit zeros dropped.

    ``n_terms`` fixes the vocabulary's width; without it the width is that of the widest matrix
    added, because a vocabulary may grow. Query terms beyond it have no postings. ``block_size`` is
    a power of two up to 256, chosen by size unless given. ``order`` rearranges documents inside:
    ``"input"``, ``"cluster"`` or ``"bisection"``; rows stay those of adding. ``top_terms`` keeps
    only a document's heaviest terms, which is not exact.

    ``search`` takes the parameters ``engine`` (``"auto"``, ``"blocks"``, ``"terms"``), ``alpha``
    (0 to 1: below 1 blocks are left out whose bound, times alpha, is below the k-th score) and
    ``beta`` (0 to 1: the share of the query's terms that is searched, heaviest first). With
    ``loss`` both are chosen by ``measure_recall``, at the latest when the index is saved.

    The index is a list of immutable segments. Added documents become a segment before the next
    search, ``save`` or ``compact``, or once they are many, and small segments are merged. Changes
    take a lock; searches may run while another thread changes or saves the index: each sees the
    state it began with. ``save`` links segments that are files already, where that is possible.
    Batches run on ``NUMBA_NUM_THREADS`` threads (default: all cores).
    """

    type_name = "inverted"

    def __init__(
        self,
        n_terms: int | None = None,
        *,
        fidelity: Annotated[
            str, "How exactly weights are stored: exact, or a form that takes less memory."
        ] = "exact",
        block_size: int | None = None,
        order: Annotated[
            str, "How documents are arranged inside: input, or by what they share."
        ] = "input",
        top_terms: int | None = None,
        loss: Annotated[
            float | None,
            "The share of the best hits that searches may miss, by sample queries; left out, none.",
        ] = None,
    ) -> None:
        super().__init__()
        self.n_terms = None if n_terms is None else whole_number(n_terms, "n_terms", 1)
        self.settings = SegmentSettings(fidelity, block_size, order, top_terms, loss)
        self._segments: Segments = ()
        self._spool = Spool()  # added, not yet in a segment
        self._changing = OwnLock()
        self._logged: set[SearchSettings] = set()  # settings whose overlap was logged
        self._tables: NDArray[np.int64] | None = None  # of a reader's segments, once a kernel asks
        self._width = 0  # of the widest matrix added
        self._frozen = False  # a reader: no change reaches it
        self._present: Self | None = None  # what readers share until the next change

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has its arrays at addresses of its own."""
        return {**self.__dict__, "_tables": None, "_present": None}

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        return type(self)(self.n_terms, **self.settings.facts())

    @property
    def width(self) -> int:
        """Terms of the vocabulary so far."""
        widths = (placed.segment.terms for placed in self._segments)
        return max(self.n_terms or 0, self._width, self._spool.terms, *widths)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(placed.segment.size_bytes for placed in self._reader()._segments)

    def stats(self) -> InvertedStatistics:
        """Return the numbers of documents, terms and postings."""
        reader = self._reader()
        counts = frequencies(reader._segments, reader.width)
        postings = int(counts.sum())
        return InvertedStatistics(
            documents=reader.rows,
            terms=reader.width,
            used_terms=int(np.count_nonzero(counts)),
            postings=postings,
            mean_terms=postings / reader.rows if reader.rows else 0.0,
            longest=int(counts.max(initial=0)),
            segments=len(reader._segments),
        )

    def explain(self, query: Sparse, row: int) -> list[Contribution]:
        """Return each shared term's part of the score of ``row``, in ascending term order.

        ``query`` is one sparse row ``[1, terms]``; the float32 sum of the parts is the score.
        """
        matrix = self._checked(query, "query")
        if matrix.shape[0] != 1:
            raise DataError(f"explain: got {matrix.shape[0]} queries, expected one row")
        if not 0 <= row < self.rows:
            raise DataError(f"explain: no row {row}; this index has {self.rows:,} rows")
        document = self.documents([row])
        impacts = dict(zip(document.indices.tolist(), document.data, strict=True))
        with np.errstate(over="ignore"):  # a product beyond float32 counts as the largest
            return [
                Contribution(
                    term,
                    float(weight),
                    float(impacts[term]),
                    float(min(weight * impacts[term], LARGEST_SCORE)),
                )
                for term, weight in zip(matrix.indices.tolist(), matrix.data, strict=True)
                if term in impacts
            ]

    def compact(self) -> Rows:
        """Drop deleted rows and close the gaps; return old row -> new row (-1 where deleted).

        Searches run meanwhile, over the state before.
        """
        with self._changing:
            reader = self._reader()
            allowed = reader._live.allowed()
            if allowed is not None or len(self._segments) > 1:
                self._keep_only(allowed)
            moved = self._live.compact()
            self._width, self._present = reader.width, None
            return moved

    def _changed(self) -> None:
        self._present = None

    def _reader(self) -> Self:
        """Return this index as it is now, which no change reaches; added documents are in it."""
        if self._frozen:
            return self
        reader = self._present
        if reader is None:
            with self._changing:
                self._flush()
                reader = object.__new__(type(self))
                reader.__dict__.update(self.__dict__)
                reader._live = copy.copy(self._live)
                reader._tables = None
                reader._frozen, reader._spool, reader._present = True, Spool(), None
                self._present = reader
        return reader

    @classmethod
    def _together(cls, parts: Sequence[Self], rows: Sequence[Rows]) -> Self | None:
        if any(part.settings != parts[0].settings for part in parts):
            return None
        made = parts[0].empty()
        made._segments = joined([part._reader()._segments for part in parts], rows)
        made._frozen = True
        chosen = [note for part in parts if (note := part.recall_note) is not None]
        if len(chosen) == len(parts):  # else exact: one of them may not leave anything out
            made.notes[NOTE] = joined_notes(chosen).as_dict()
        return made

    @property
    def _blocks(self) -> int:
        return sum(placed.segment.blocks for placed in self._segments)

    def _checked(self, vectors: Any, what: str) -> Sparse:
        matrix = checked_sparse(vectors, what)
        if self.n_terms is not None and what == "documents" and matrix.shape[1] > self.n_terms:
            raise DataError(
                f"{what}: {matrix.shape[1]} terms, this index was made for {self.n_terms}; "
                "encode with the encoder the index was built with"
            )
        if matrix.shape[1] > MOST_TERMS and what == "documents":
            raise DataError(
                f"{what}: {matrix.shape[1]:,} terms, an index has at most {MOST_TERMS:,}; renumber "
                "the terms in use from 0"
            )
        return matrix

    def _documents(self, rows: Rows) -> Sparse:
        from sluice.indexing.inverted.segments.build import stored_documents

        width = self.width
        parts: list[Any] = [sparse.csr_array((0, width), dtype=np.float32)]
        order = np.empty(len(rows), dtype=np.int64)
        done = 0
        for placed in self._segments:
            local = rows - placed.first_row
            here = np.flatnonzero((local >= 0) & (local < placed.segment.documents))
            if len(here):
                part: Any = stored_documents(placed.segment, local[here])
                part.resize((len(here), width))
                parts.append(part)
                order[here] = np.arange(done, done + len(here))
                done += len(here)
        stacked: Sparse = sparse.vstack(parts, format="csr")
        return stacked[order]

    def _append(self, documents: Sparse) -> None:
        if self.rows + documents.shape[0] > MAX_ROWS:
            raise DataError(
                f"documents: an index holds at most {MAX_ROWS:,} rows; use several indexes"
            )
        from sluice.indexing.inverted.segment_list import room_for

        ends, first = documents.indptr[1:].astype(np.int64), 0
        segments, spool, before = self._segments, self._spool, len(self._spool)
        try:
            while first < len(ends):
                last = room_for(self._spool, ends, first)
                if last > first:
                    whole = last - first == len(ends)
                    self._spool.append(documents if whole else documents[first:last])
                    first = last
                else:
                    self._flush()
        except BaseException:  # a full disk: nothing is added
            self._segments, self._spool = segments, spool
            spool.rewind(before)
            raise
        self._width = max(self._width, int(documents.shape[1]))

    def _flush(self) -> None:
        """Turn added documents into a segment; the caller holds the lock."""
        if len(self._spool):
            from sluice.indexing.inverted.segment_list import extended

            with notice_once():
                self._segments = extended(self._segments, self._spool, self.width, self.settings)
            self._spool = Spool()

    def _stored_rows(self) -> int:
        return sum(placed.segment.documents for placed in self._segments)

    def _run(
        self,
        queries: Sparse,
        k: int,
        allowed: Mask | None,
        settings: SearchSettings,
        work: NDArray[np.int64] | None = None,
    ) -> Hits:
        count = int(queries.shape[0])
        hits = Hits(np.empty((count, k), np.int64), np.empty((count, k), np.float32))
        if work is None and self._searched_in_numpy(queries, allowed, settings, hits):
            return hits
        from sluice.indexing.inverted.search.planner import search_segments
        from sluice.indexing.inverted.segments.table import segment_tables
        from sluice.indexing.inverted.spooling.approximation import pruned_queries

        if self._tables is None:
            self._tables = segment_tables([placed[:2] for placed in self._segments])
        tables = self._tables
        starts, terms, weights = pruned_queries(queries, settings.beta)
        record = np.zeros((count, RECORD), dtype=np.int64) if work is None else work
        mask = EVERYTHING if allowed is None else allowed
        exact, engine, alpha = self.settings.exact, settings.engine, settings.alpha

        def search(first: int, last: int) -> None:
            search_segments(
                tables, mask, exact, engine, alpha,
                starts, terms, weights, first, last, hits.rows, hits.scores, record,
            )  # fmt: skip

        with notice_once():
            in_pieces(search, count, TASKS_PER_THREAD)
        return hits

    def _searched_in_numpy(
        self, queries: Sparse, allowed: Mask | None, settings: SearchSettings, hits: Hits
    ) -> bool:
        """Fill ``hits`` if that is quicker than to load the compiled kernels; return whether."""
        if kernels_loaded() or settings.approximate or settings.engine == BLOCKS:
            return False
        segments = [placed[:2] for placed in self._segments]
        work = expected_work(segments, queries.indices.astype(np.int64), queries.shape[0])
        if not numpy_suffices(work * NUMPY_SECONDS):
            return False
        starts, terms = queries.indptr.tolist(), queries.indices.astype(np.int64)
        for query, (first, last) in enumerate(pairwise(starts)):
            search_query(
                segments, allowed, terms[first:last], queries.data[first:last],
                hits.rows[query], hits.scores[query],
            )  # fmt: skip
        return True

    def _keep_only(self, allowed: Mask | None) -> None:
        from sluice.indexing.inverted.segment_list import rebuilt

        with notice_once():
            self._segments = rebuilt(self._segments, allowed, self.width, self.settings)

    def _write(self, folder: Path) -> dict[str, Any]:
        self._measure_before_saving()
        reader = self._reader()
        described, written = write_segments(reader._segments, folder)
        with self._changing:
            if self._segments is reader._segments:  # else they changed meanwhile
                self._segments = written
                self._present = None
                self._reader()  # now: searches do not wait for the end of a save
        facts = {"n_terms": self.n_terms, "width": self.width, **self.settings.facts()}
        return {**facts, "segments": described}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        if "segments" not in facts:
            raise IndexFormatError(
                f"{folder}: an inverted index of an earlier Sluice, expected segments; rebuild it"
            )
        options: dict[str, Any] = {
            name: None if facts.get(name) is None else fact(facts, name, int, folder)
            for name in ("n_terms", "block_size", "top_terms")
        }
        options |= {name: fact(facts, name, str, folder) for name in ("fidelity", "order")}
        options["loss"] = facts.get("loss")
        try:
            index = cls(**options)
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}; rebuild the index") from None
        described = fact(facts, "segments", list, folder)
        index._width = fact(facts, "width", int, folder)
        index._segments = open_segments(folder, described, index.settings)
        if index.n_terms is not None and index.width > index.n_terms:
            raise IndexFormatError(
                f"{folder}: segments of {index.width:,} terms in an index made for "
                f"{index.n_terms:,}; the manifest was edited: rebuild the index"
            )
        return index
