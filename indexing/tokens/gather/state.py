"""What a `TokenIndex` that gathers has beside its vectors: candidates, their depth, the recall."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.kernels.calls import in_pieces
from sluice.indexing.recall import DEPTHS
from sluice.indexing.storage.rows import fact
from sluice.indexing.tokens.gather.centroid_gather import PROBES, CentroidGather, Gather
from sluice.indexing.tokens.gather.recall import (
    MeasuredRecall,
    Sample,
    choose_depth,
    choose_mode,
    query_count,
    sampled_documents,
)
from sluice.indexing.tokens.gather.settings import (
    CANDIDATES,
    EXACT_BELOW,
    GatherSettings,
    Mode,
    checked_mode,
)
from sluice.indexing.tokens.storage.rows import TokenRows

log = logging.getLogger("sluice")

SAMPLE = 4_096  # documents that centroids are learnt from, and more in large indexes
SAMPLE_ROOTS = 12  # so many times the root of the number of documents
LISTED = 2_048  # stored documents put into lists at a time
PIECES = 8
MOST_CANDIDATES = 1 << 25  # of all queries together


class Exact(Protocol):
    """Exact search over what is stored, as the index does it."""

    def hits(self, k: int, allowed: Mask | None) -> Hits:
        """Return the best allowed documents of each query."""
        ...

    def best_of(self, candidates: Rows, k: int) -> Hits:
        """Return the best of each query's candidates ``[n, c]``; -1 is skipped."""
        ...


class Measurable(Protocol):
    """The index that is measured."""

    @property
    def tokens(self) -> int:
        """Number of stored token vectors."""
        ...

    def search_tokens(self, queries: TokenVectors, k: int, parameters: Mapping[str, Any]) -> Hits:
        """Return hits with these parameters."""
        ...

    def live_rows(self) -> Rows:
        """Return the rows of live documents that have tokens."""
        ...

    def documents(self, rows: Any) -> TokenVectors:
        """Return stored vectors."""
        ...


class Gathering:
    """Gathers candidates for exact scoring; the mode is ``gather``, or ``auto`` until measured."""

    def __init__(self, mode: Mode, settings: GatherSettings, seed: int) -> None:
        self.mode: Mode = mode
        self.settings = settings
        self.seed = seed
        self.gather: Gather = CentroidGather(seed)
        self.candidates = settings.candidates or CANDIDATES
        self.probes = settings.probes or PROBES
        self.searches: str = "gather"  # or exact, once ``auto`` has measured
        self.reason = ""  # for the depth and what it searches by, where they were chosen
        self._expected = 0
        self._unlisted = False  # documents with tokens were added before centroids were learnt

    def training_rows(self, documents: int) -> int:
        """Return how many documents to learn from; 0 where all will be searched exactly."""
        self._expected = max(self._expected, documents)
        if self.gather.trained or (self.mode == "auto" and self._expected < EXACT_BELOW):
            return 0
        return min(documents, SAMPLE + round(SAMPLE_ROOTS * math.sqrt(documents)))

    def train(self, sample: TokenVectors) -> None:
        """Learn centroids from sample documents, unless all will be searched exactly."""
        if not self.training_rows(len(sample)):
            return
        self.gather.train(sample, max(self._expected, len(sample)))

    def waiting(self, documents: int) -> str:
        """Return why so many documents are searched exactly by ``auto``; empty if they are not."""
        if self.mode != "auto" or self.gather.trained or documents < EXACT_BELOW:
            return ""
        return (
            f"mode: auto searches all {documents:,} documents exactly: when the index was built it "
            f"had fewer than {EXACT_BELOW:,}, for which it prepares no gather; compact or rebuild "
            "it to prepare one"
        )

    def prepare(self, stored: TokenRows) -> None:
        """Learn centroids from stored documents and list them all, where ``auto`` now has enough.

        Documents that were added before there were enough of them are in no list.
        """
        if not self.waiting(len(stored)):
            return
        size = self.training_rows(len(stored))
        rng = np.random.default_rng(self.seed)
        gather = CentroidGather(self.seed)
        sample = stored.gather(np.sort(rng.choice(len(stored), size, replace=False)))
        gather.train(sample, len(stored))
        if not gather.trained:  # documents without tokens
            return
        for start in range(0, len(stored), LISTED):
            rows = np.arange(start, min(start + LISTED, len(stored)))
            gather.append(gather.assigned(stored.gather(rows)))
        self.gather, self._unlisted = gather, False

    def learn_from_first(self, documents: TokenVectors) -> None:
        """Learn from the documents of the first add that has tokens, if nothing was learnt."""
        size = 0 if self._unlisted else self.training_rows(len(documents))
        if not size:
            self._unlisted |= not self.gather.trained and len(documents.values) > 0
            return
        if size < len(documents):
            rng = np.random.default_rng(self.seed)
            documents = documents.rows(np.sort(rng.choice(len(documents), size, replace=False)))
        self.train(documents)

    def search(
        self,
        exact_search: Callable[[TokenVectors], Exact],
        queries: TokenVectors,
        k: int,
        allowed: Mask | None,
        parameters: Mapping[str, Any],
    ) -> Hits:
        """Return the exact best of each query's candidates.

        All allowed documents are searched if they are not more than the candidates, or if a query's
        lists hold fewer documents than ``k``.
        """
        count = max(k, int(parameters.get("candidates", self.candidates)))
        step = max(1, MOST_CANDIDATES // max(1, min(count, len(self.gather))))
        if len(queries) > step:
            parts = [
                self.search(exact_search, queries[start : start + step], k, allowed, parameters)
                for start in range(0, len(queries), step)
            ]
            rows, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
            return Hits(rows, scores)
        exact = exact_search(queries)
        mode = parameters.get("mode", self.searches)
        few = len(self.gather) if allowed is None else int(np.count_nonzero(allowed))
        if mode == "exact" or few <= count or not self.gather.trained:
            return exact.hits(k, allowed)
        given = {"probes": self.probes, **parameters}
        found = np.full((len(queries), count), -1, np.int64)

        def task(first: int, last: int) -> None:
            for line in range(first, last):
                rows = self.gather.candidates(queries.text(line), count, allowed, given)
                found[line, : len(rows)] = rows

        in_pieces(task, len(queries), PIECES)
        if len(queries) == 1:  # on all threads
            mask = np.zeros(len(self.gather), np.bool_)
            mask[found[found >= 0]] = True
            hits = exact.hits(k, mask)
        else:
            hits = exact.best_of(found, k)
        short = np.flatnonzero(((found >= 0).sum(axis=1) < k) & (queries.lengths > 0))
        if len(short):
            everything = exact_search(queries.rows(short)).hits(k, allowed)
            hits.rows[short], hits.scores[short] = everything
        return hits

    def measured(self, index: Measurable, queries: TokenVectors | None) -> MeasuredRecall | None:
        """Choose the depth where it is to be chosen, and return the recall; None if all is exact.

        The queries are ``queries``, up to 200 of them drawn by the seed, else windows of documents.
        """
        rows = index.live_rows()
        if not len(rows) or not self.gather.trained:
            return None
        sample = self._sample(index, rows, queries)
        if not len(sample):
            return None
        if self.settings.candidates is None:
            self._choose(index, sample, len(rows))
        chosen = {"mode": "gather", "candidates": self.candidates, "probes": self.probes}
        at_10, at_100 = (
            float(sample.recalls(lambda texts, k: index.search_tokens(texts, k, chosen), k).mean())
            for k in DEPTHS
        )
        return MeasuredRecall(
            at_10=at_10,
            at_100=at_100,
            queries=len(sample),
            source=sample.source,
            documents=len(rows),
            candidates=self.candidates,
            probes=self.probes,
            seed=self.seed,
        )

    def _sample(self, index: Measurable, rows: Rows, queries: TokenVectors | None) -> Sample:
        dim = index.documents(rows[:1]).dim
        count = query_count(index.tokens, dim)

        def exact(texts: TokenVectors, k: int) -> Hits:
            return index.search_tokens(texts, k, {"mode": "exact"})

        if queries is not None:
            filled = np.flatnonzero(queries.lengths > 0)
            if len(filled) > count:
                rng = np.random.default_rng(self.seed)
                filled = np.sort(rng.choice(filled, count, replace=False))
            own = np.full(len(filled), -1, np.int64)
            return Sample.searched_exactly(queries.rows(filled), own, "queries", exact)
        windows, own = sampled_documents(rows, index.documents, count, self.seed)
        return Sample.searched_exactly(windows, own, "documents", exact)

    def _choose(self, index: Measurable, sample: Sample, documents: int) -> None:
        chosen = choose_depth(index, sample, documents, self.settings, self.seed)
        if self.mode == "auto":
            chosen = choose_mode(index, sample, chosen, self.settings)
        self.candidates, self.probes = chosen.candidates, chosen.probes
        self.searches, self.reason = chosen.mode, chosen.reason
        level = logging.INFO if chosen.meets else logging.WARNING
        log.log(
            level,
            "tokens: %s%s",
            chosen.reason,
            "" if chosen.meets else "; not reached, set mode: exact or lower the target",
        )

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the gather into the index's folder; return the facts ``read`` needs."""
        return {
            "mode": self.mode,
            "searches": self.searches,
            "depth": [self.candidates, self.probes],
            "settings": self.settings.as_dict(),
            "gather": {"type": self.gather.type_name, **self.gather.write(folder)},
        }

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any], stored: TokenRows, seed: int) -> Self:
        """Open what ``write`` wrote, for an index of these rows."""
        rows = len(stored)
        saved = fact(facts, "settings", dict, folder)
        depth = fact(facts, "depth", list, folder)
        try:
            mode = checked_mode(fact(facts, "mode", str, folder))
            names = ("candidates", "probes", "recall", "latency_ms")
            settings = GatherSettings.checked(mode, *(saved.get(name) for name in names))
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        opened = cls(mode, settings, seed)
        opened.searches = fact(facts, "searches", str, folder)
        good = len(depth) == 2 and all(type(part) is int and part > 0 for part in depth)
        if not good or opened.searches not in ("exact", "gather"):
            raise IndexFormatError(f"{folder}: the depth of its gather is {depth!r}; rebuild")
        opened.candidates, opened.probes = depth
        own = fact(facts, "gather", dict, folder)
        if own.get("type") != CentroidGather.type_name:
            raise IndexFormatError(
                f"{folder}: unknown gather {own.get('type')!r}, expected "
                f"{CentroidGather.type_name}; rebuild the index, or open it with a newer version"
            )
        opened.gather = CentroidGather.read(seed, folder, own)
        if opened.gather.dim not in (None, stored.dim):
            raise IndexFormatError(
                f"{folder}: the gather has {opened.gather.dim} dimensions, the index {stored.dim}; "
                "rebuild the index"
            )
        opened._unlisted = not opened.gather.trained and stored.tokens > 0
        if len(opened.gather) != rows:
            raise IndexFormatError(
                f"{folder}: the gather has {len(opened.gather):,} documents, the index {rows:,}; "
                "rebuild the index"
            )
        return opened
