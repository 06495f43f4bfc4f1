"""Exact dense search, the reference for every other dense index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.processes import free_memory_bytes
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.flat.compressed_rows import CompressedRows, FirstPass, checked_first_pass
from sluice.indexing.hits import Hits, Mask, Rows, best_first
from sluice.indexing.index import Index, SearchParameters
from sluice.indexing.kernels.calls import notice, notice_once, numpy_suffices
from sluice.indexing.storage.exact_scores import (
    NUMPY_SECONDS,
    Metric,
    checked_metric,
    norms_of,
    numpy_scores,
)
from sluice.indexing.storage.rows import DenseRows, fact

if TYPE_CHECKING:
    from sluice.indexing.flat.half_bytes import HalfBytes


def search_in_numpy(
    held: DenseRows,
    metric: Metric,
    queries: Dense,
    k: int,
    allowed: Mask | None,
    places: Rows | None = None,
) -> Hits:
    """Return the best allowed documents of each query, bit for bit as ``FlatSearch`` does.

    ``places`` are the documents' rows, if they are not consecutive.
    """
    hits = Hits.missing(len(queries), k)
    rows = np.arange(len(held)) if allowed is None else np.flatnonzero(allowed)
    for place, (query, norm) in enumerate(zip(queries, norms_of(queries), strict=True)):
        parts = [numpy_scores(query, chunk[0], metric, norm, chunk[1]) for chunk in held.chunks()]
        scores = np.concatenate(parts)[rows] + np.float32(0)  # no -0.0
        best, scores = best_first(rows if places is None else places[rows], scores, k)
        hits.rows[place, : len(best)], hits.scores[place, : len(best)] = best, scores
    return hits


# Candidates of a binary first pass: at least, and for each of k. With the MiniLM vectors of 30,000
# MS MARCO passages they hold all of the true 10 and the true 100 for its 97 queries, and .998 and
# .993 of them for passages as queries.
DEPTH, DEPTH_PER_HIT = 400, 10
FEW_QUERIES = 16  # at a time, up to which each scans the codes by itself
UNCODED = 16  # such queries that are answered without codes: making these takes about as long
SMALL, UNCODED_SMALL = 1 << 23, 256  # bytes of vectors, and such queries: kernels load too
LEAST_CODED = 1 << 19  # bytes of vectors; fewer are never coded
COPIED = 1 << 24  # bytes of several parts that are searched as one copy: each chunk costs time


class FlatIndex(Index):
    """Every query against every document, exactly; ``metric`` is ``ip``, ``cosine`` or ``l2``.

    The result equals brute force row by row, rows included: a score is the float64 sum over one
    query and one document (for ``l2`` the negative squared distance) rounded to float32, the same
    for equal vectors whatever the batch and the blocks, and ties go to the lower row, also at the
    boundary of ``k``. A fast product finds the candidates with a proven margin for its rounding
    (bfloat16, rounded block by block, where the processor multiplies it, else float32; a scan for
    few queries); the candidates are scored exactly. ``cosine`` normalises by itself; a zero vector
    has cosine 0. Memory of a search: in each thread about a megabyte, and ``k`` keys a query;
    mapped files may be larger than memory. Searches run on ``NUMBA_NUM_THREADS`` threads. Once some
    queries have come alone, vectors that would fit into free memory are also kept there in 8 bits,
    a quarter of their size, which up to 16 queries at a time scan first: with a proven margin too.

    ``first_pass`` keeps a smaller copy that is searched before the vectors. ``bf16`` (half their
    size) and ``int8`` (a quarter) change the speed and nothing else: the loss of each rounded
    vector is stored, so that the margin is proven. ``binary`` (1 bit a dimension, its sign) is
    approximate: the ``depth`` documents with most signs in common are scored exactly (by default
    400, or 10 ``k``; larger corpora need more); ``params`` of a search may give another ``depth``,
    and that of the corpus size makes it exact.
    """

    type_name = "flat"

    def __init__(
        self,
        metric: Metric = "ip",
        *,
        first_pass: FirstPass | None = None,
        depth: Annotated[
            int | None, "Candidates of the first pass that are scored exactly."
        ] = None,
    ) -> None:
        super().__init__()
        self.metric: Metric = checked_metric(metric)
        self.first_pass = checked_first_pass(first_pass)
        if depth is not None and self.first_pass != "binary":
            raise ConfigError(
                f"depth is {depth!r} with first_pass={first_pass!r}; leave it out: only 'binary' "
                "takes a fixed number of candidates, the others as many as exactness needs"
            )
        self.depth = None if depth is None else whole_number(depth, "depth", 1)
        self._vectors = DenseRows()
        self._places: tuple[Rows, ...] = ()  # of each chunk's documents, if not consecutive
        self._codes = None if first_pass is None else CompressedRows(first_pass, self.metric)
        self._half_bytes: HalfBytes | None = None  # of the vectors, while they stay as they are
        self._alone = 0  # queries that came by few since then

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``add``."""
        return self._vectors.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the vectors and their norms, and of the compressed copy."""
        return self._vectors.nbytes + (0 if self._codes is None else self._codes.nbytes)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the compressed copy, where there is one: of the vectors candidates are read."""
        return self._vectors.nbytes if self._codes is None else self._codes.nbytes

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        return type(self)(self.metric, first_pass=self.first_pass, depth=self.depth)

    def spool(self, folder: Path) -> None:
        """Keep the vectors added from now on in a file; a compressed copy stays in memory."""
        self._vectors.spool(folder)

    def _checked(self, vectors: Any, what: str) -> Dense:
        return checked_dense(vectors, self.width, what)

    def _append(self, documents: Dense) -> None:
        norms = self._vectors.append(documents)
        if self._codes is not None:
            self._codes.append(documents, norms, join=not self._vectors.spooled)

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        held = self._vectors, self._codes, self.metric, queries, k
        with notice_once():
            if self.first_pass != "binary":
                if self._places and allowed is not None:
                    allowed = np.concatenate([allowed[rows] for rows in self._places])
                if numpy_suffices(queries.size * len(self._vectors) * NUMPY_SECONDS):
                    places = np.concatenate(self._places) if self._places else None
                    return search_in_numpy(self._vectors, self.metric, queries, k, allowed, places)
                if (hits := self._by_half_bytes(queries, k, allowed)) is not None:
                    return hits
                from sluice.indexing.flat.search import (
                    FlatSearch,  # numba: loaded by the first search
                )

                return FlatSearch(*held, self._places).hits(allowed)
            from sluice.indexing.flat.search import search_bits

            depth = parameters.get("depth", self.depth) or max(DEPTH, DEPTH_PER_HIT * k)
            return search_bits(*held, max(k, depth), allowed)

    def _by_half_bytes(self, queries: Dense, k: int, allowed: Mask | None) -> Hits | None:
        """Return the hits of few queries by a scan of codes; None where that is not the way.

        Codes are made once some queries have come alone: one from the shell does not pay for them.
        """
        if self._codes is not None or len(queries) > FEW_QUERIES:
            return None
        if self._half_bytes is None:
            self._alone += len(queries)
            size = self._vectors.nbytes
            uncoded = UNCODED if size >= SMALL else UNCODED_SMALL
            if self._alone <= uncoded or size < LEAST_CODED:
                return None
            self._alone = -(1 << 40)  # other threads need not make them too
            from sluice.indexing.flat.half_bytes import HalfBytes, pays

            with notice():
                free = free_memory_bytes()
                if not pays(self.width or 0) or (free is not None and size > free):
                    return None
                self._half_bytes = HalfBytes(self._vectors, self.metric, self._places)
        return self._half_bytes.search(queries, k, allowed)

    def _changed(self) -> None:
        self._half_bytes, self._alone = None, 0

    @classmethod
    def _together(cls, parts: Sequence[Self], rows: Sequence[Rows]) -> Self | None:
        kinds = {(part.metric, part.first_pass) for part in parts}
        if len(kinds) > 1 or parts[0].first_pass == "binary":  # its depth is that of each part
            return None
        made = parts[0].empty()
        made._vectors.share([part._vectors for part in parts])
        if made._codes is not None:
            made._codes.share([part._codes for part in parts if part._codes is not None])
        places = []
        for part, own in zip(parts, rows, strict=True):
            first = 0
            for chunk in part._vectors.chunks():
                last = first + len(chunk[0])
                if last > first:
                    places.append(own[first:last])
                first = last
        made._places = tuple(places)
        if places and made.size_bytes <= COPIED:
            made._places = (made._in_order(np.concatenate(places)),)
        return made

    def _in_order(self, places: Rows) -> Rows:
        """Copy the vectors into one chunk, in the order of their rows, which are returned."""
        order = np.argsort(places)
        self._vectors.gathered(order)
        if self._codes is not None:
            self._codes.gathered(order)
        return places[order]

    def _documents(self, rows: Rows) -> Dense:
        return self._vectors.gather(rows)[0]

    def _keep_only(self, allowed: Mask) -> None:
        self._vectors.keep_only(allowed)
        if self._codes is not None:
            self._codes.keep_only(allowed)

    @property
    def _parameters(self) -> SearchParameters:
        names = ("depth",) if self.first_pass == "binary" else ()
        return SearchParameters(
            names, lambda params: whole_number(params.get("depth", 1), "params: depth", 1)
        )

    def _write(self, folder: Path) -> dict[str, Any]:
        facts = {"metric": self.metric, **self._vectors.write(folder)}
        if self._codes is not None:
            self._codes.write(folder, self.width or 0)
            facts["first_pass"] = self.first_pass
            facts["depth"] = self.depth
        return facts

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            index = cls(
                fact(facts, "metric", str, folder),
                first_pass=facts.get("first_pass"),
                depth=facts.get("depth"),
            )
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index._vectors = DenseRows.read(folder, facts)
        if index._codes is not None:
            index._codes.read(folder, len(index._vectors), index.width or 0)
        return index
