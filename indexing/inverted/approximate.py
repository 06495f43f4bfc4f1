"""What an inverted index may leave out: the parameters of a search, and a loss that they stay in.

The setting is chosen by sample queries: the cheapest by the planner's costs whose recall, at each
of ``DEPTHS`` and in each half of the queries, is at least 1 less the loss.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.hits import Hits, Mask
from sluice.indexing.index import SearchParameters
from sluice.indexing.inverted.search.record import RECORD, SPENT
from sluice.indexing.inverted.settings import (
    EXACT,
    SEARCH_PARAMETERS,
    USUAL,
    SearchSettings,
    SegmentSettings,
    search_settings,
)
from sluice.indexing.inverted.statistics import Plan, plan_of
from sluice.indexing.recall import NOTE, MeasuredIndex, RecallNote

Sparse: TypeAlias = "sparse.csr_array[Any]"  # a text: scipy below 1.15 has no [Any]
Work: TypeAlias = "NDArray[np.int64]"
log = logging.getLogger("sluice")

DEPTHS: Final = (10, 100, 1000)  # at each of which the loss is kept
ANSWERS: Final = 4  # that all queries together may miss at the least depth: else one decides
COUNTED: Final = DEPTHS[:2]  # whose work is to become less: what most searches ask for
FEWEST, MOST = 100, 400  # queries to measure with
ALPHAS: Final = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
BETAS: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
WORTH = 0.95  # of the work of exact search: what saves less is not worth a loss
SEED = 13


@dataclass(frozen=True, slots=True)
class MeasuredLoss(RecallNote):
    """The setting that was chosen, and what share of the exact best it found, by depth.

    ``work`` is its share of the exact search's work for 10 and 100 hits, by the planner's costs.
    ``source`` says what the queries were: given ones, or terms drawn from documents, each of which
    is left out of what its own terms find. ``added`` and ``deleted`` documents changed the index
    since.
    """

    alpha: float
    beta: float
    loss: float
    at_10: float
    at_100: float
    at_1000: float
    work: float
    queries: int
    source: Literal["queries", "documents"]
    documents: int
    added: int = 0
    deleted: int = 0

    @property
    def setting(self) -> dict[str, float]:
        """The search parameters that were chosen."""
        return {"alpha": self.alpha, "beta": self.beta}

    @property
    def exact(self) -> bool:
        """Whether nothing is left out, because no setting was worth it."""
        return self.alpha == self.beta == 1

    @property
    def stale(self) -> bool:
        """Whether more documents came and went since than there were."""
        return self.added + self.deleted > self.documents

    def __str__(self) -> str:
        """Return a line for reports."""
        asked = "queries" if self.source == "queries" else "draws of documents' terms"
        against = f"on {self.queries} {asked} against {self.documents:,} documents"
        if self.exact:
            return self._with_changes(
                f"exact: no setting within the loss {self.loss:g} saves a twentieth ({against})"
            )
        return self._with_changes(
            f"alpha {self.alpha:g}, beta {self.beta:g}: recall@10 {self.at_10:.4f}, @100 "
            f"{self.at_100:.4f}, @1000 {self.at_1000:.4f} of exact, {against} (loss "
            f"{self.loss:g}, {100 * self.work:.0f} % of the work)"
        )


def joined_notes(notes: Sequence[MeasuredLoss]) -> MeasuredLoss:
    """Return the note of several indexes searched as one: what leaves out least, measured alike."""
    alpha, beta = (max(getattr(each, name) for each in notes) for name in EXACT)
    return replace(max(notes, key=lambda each: each.work), alpha=alpha, beta=beta)


class ApproximateIndex(MeasuredIndex):
    """The part of ``InvertedIndex`` that knows what a search may leave out."""

    settings: SegmentSettings
    _logged: set[SearchSettings]  # settings whose overlap was logged

    @abstractmethod
    def _run(
        self,
        queries: Sparse,
        k: int,
        allowed: Mask | None,
        settings: SearchSettings,
        work: Work | None = None,
    ) -> Hits:
        """Search; ``work`` becomes what each query took, see ``RECORD``."""

    @property
    @abstractmethod
    def _blocks(self) -> int:
        """The number of blocks of all segments."""

    @property
    def recall_note(self) -> MeasuredLoss | None:
        """The setting that stays within ``loss`` and what it finds; None where none was chosen."""
        return MeasuredLoss.from_note(self.notes.get(NOTE))

    @property
    def searches(self) -> str:
        """How it searches unless parameters say otherwise: ``exact`` or ``approximate``."""
        return "approximate" if self._settings({}).approximate else "exact"

    def leaves_out(self, params: Mapping[str, Any]) -> str:
        """Return the setting of a search with ``params`` in words; empty if it is exact."""
        settings = self._settings(params)
        return f"alpha={settings.alpha:g}, beta={settings.beta:g}" if settings.approximate else ""

    def measure_recall(self, queries: Any | None = None) -> MeasuredLoss | None:
        """Choose the setting that stays within ``loss``, and note it; None if none can be.

        ``queries`` should be real ones; without them, or with too few for so small a loss, terms
        drawn from documents serve. Search is exact until then, and where even those are too
        few. Saving an index that was never measured, or has changed by half since, does this.
        """
        limit = self.settings.loss
        if not limit:
            return None
        asked = None if queries is None else self._checked(queries, "queries")
        reader = self._reader()
        fewest = int(np.ceil(2 / (limit * DEPTHS[0])))  # one answer in each half may be missed
        most = max(fewest, min(MOST, max(FEWEST, int(np.ceil(ANSWERS / (limit * DEPTHS[0]))))))
        sample = _given(reader, asked, most)
        if sample is None or len(sample) < fewest:
            if asked is not None:
                log.info(
                    "inverted: loss %g needs %d queries, there are %d; documents serve instead",
                    limit, fewest, 0 if sample is None else len(sample),
                )  # fmt: skip
            sample = _drawn(reader, most)
        if len(sample) < fewest:
            self.notes.pop(NOTE, None)
            log.warning(
                "inverted: loss %g needs %d queries or documents to be measured, there are %d; "
                "search stays exact", limit, fewest, len(sample),
            )  # fmt: skip
            return None
        note = sample.chosen(limit, len(reader))
        self.notes[NOTE] = note.as_dict()
        log.info("inverted: %s", note)
        return note

    def _measure_before_saving(self) -> None:
        note = self.recall_note
        if self.settings.loss and len(self) and (note is None or note.stale):
            self.measure_recall()

    def plan(self, queries: Any, k: int, *, params: Mapping[str, Any] | None = None) -> list[Plan]:
        """Search, and return what the planner chose for each query, why, and what it did."""
        self._parameters.check(params or {})
        settings = self._settings(params or {})
        reader = self._reader()
        matrix = self._checked(queries, "queries")
        places = min(whole_number(k, "k", 1), max(len(reader), 1))
        work = np.zeros((matrix.shape[0], RECORD), dtype=np.int64)
        reader._run(matrix, places, reader._live.allowed(), settings, work)
        return [plan_of(line, settings.engine, reader._blocks) for line in work]

    @property
    def _parameters(self) -> SearchParameters:
        return SearchParameters(SEARCH_PARAMETERS, search_settings)

    def _settings(self, params: Mapping[str, Any]) -> SearchSettings:
        """Return the settings of a search: its own parameters, then what was chosen."""
        if self.settings.loss and (note := self.recall_note) is not None:
            return search_settings({**note.setting, **params})
        return search_settings(params)

    def _search(
        self, queries: Sparse, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        settings = self._settings(parameters)
        hits = self._run(queries, k, allowed, settings)
        own = EXACT.keys() & parameters.keys()  # what was chosen is measured already
        if settings.approximate and own and settings not in self._logged:
            from sluice.indexing.inverted.spooling.approximation import SAMPLED, log_overlap

            self._logged.add(settings)
            exact = self._run(queries[:SAMPLED], k, allowed, USUAL)
            log_overlap(f"alpha={settings.alpha:g}, beta={settings.beta:g}", hits.rows, exact.rows)
        return hits


@dataclass(frozen=True, slots=True)
class _Sample:
    """Queries over an index, the row of each one's own document (-1: none), and what they find."""

    index: ApproximateIndex
    queries: Sparse
    own: NDArray[np.int64]
    source: Literal["queries", "documents"]

    def __len__(self) -> int:
        return len(self.own)

    def chosen(self, limit: float, documents: int) -> MeasuredLoss:
        """Return the cheapest setting whose loss is at most ``limit`` in both halves."""
        deepest, _ = self._found(max(DEPTHS), USUAL)
        exact = [
            _good(rows[rows != own], scores[rows != own])
            for rows, scores, own in zip(*deepest, self.own, strict=True)
        ]
        usual = [self._found(depth, USUAL)[1] for depth in DEPTHS]
        half = np.random.default_rng(SEED).permutation(len(self)) % 2 == 0

        def measured(alpha: float, beta: float) -> tuple[bool, tuple[float, ...], float]:
            settings = SearchSettings(alpha=alpha, beta=beta)
            recalls, work = [], 0.0
            for place, depth in enumerate(DEPTHS):
                hits, spent = self._found(depth, settings)
                shares = self._shares(hits.rows, [each[place] for each in exact], depth)
                recalls.append(shares)
                if depth in COUNTED:
                    work += spent / max(usual[place], 1.0) / len(COUNTED)
            losses = [1 - part.mean() for all_ in recalls for part in (all_[half], all_[~half])]
            means = tuple(float(all_.mean()) for all_ in recalls)
            return max(losses) <= limit + 1e-12, means, work

        best = (WORTH, 1.0, 1.0, (1.0,) * len(DEPTHS))
        for beta in BETAS:
            fits = measured(1.0, beta)
            if not fits[0]:
                break
            low, high = 0, len(ALPHAS)  # the least alpha that fits lies from low on, before high
            while high - low > 1:
                middle = (low + high) // 2
                tried = measured(ALPHAS[middle], beta)
                if tried[0]:
                    low, fits = middle, tried
                else:
                    high = middle
            best = min(best, (fits[2], ALPHAS[low], beta, fits[1]), key=lambda each: each[0])
        work, alpha, beta, recall = best
        at_10, at_100, at_1000 = recall
        return MeasuredLoss(
            alpha, beta, limit, at_10, at_100, at_1000, 1.0 if alpha == beta == 1 else work,
            len(self), self.source, documents,
        )  # fmt: skip

    def _found(self, depth: int, settings: SearchSettings) -> tuple[Hits, float]:
        """Return the hits of all queries, one more than ``depth``, and the work they took."""
        reader = self.index
        places = min(depth + int((self.own >= 0).any()), len(reader))
        work = np.zeros((len(self), RECORD), dtype=np.int64)
        hits = reader._run(self.queries, places, reader._live.allowed(), settings, work)
        return hits, float(work[:, SPENT].sum())

    def _shares(
        self, rows: NDArray[np.int64], good: list[NDArray[np.int64]], depth: int
    ) -> NDArray[np.float64]:
        """Return what share of the exact best ``depth`` each line of ``rows`` has."""
        shares = np.ones(len(rows))
        for place, (line, best) in enumerate(zip(rows, good, strict=True)):
            others = line[line != self.own[place]][:depth]
            if count := min(depth, len(best)):
                shares[place] = min(int(np.isin(others, best).sum()), count) / count
        return shares


def _good(rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Return, by depth, the rows of a query that are among the best, or tie with the last."""
    rows, scores = rows[rows >= 0], scores[rows >= 0]
    return [rows if len(rows) <= k else rows[scores >= scores[k - 1]] for k in DEPTHS]


def _given(reader: ApproximateIndex, queries: Sparse | None, most: int) -> _Sample | None:
    """Return real queries, at most so many; those without a term measure nothing."""
    if queries is None:
        return None
    filled = np.flatnonzero(np.diff(queries.indptr))
    if len(filled) > most:
        filled = np.sort(np.random.default_rng(SEED).choice(filled, most, replace=False))
    return _Sample(reader, queries[filled], np.full(len(filled), -1, np.int64), "queries")


def _drawn(reader: ApproximateIndex, most: int) -> _Sample:
    """Return terms of documents drawn at random as queries: each draws its heavy terms likelier.

    Queries of a document's heaviest terms alone are too easy: at a loss of .01 such a setting lost
    .023 to .086 of other queries, where these lost .006 to .008 (docs/experiments.md).
    """
    from sluice.indexing.inverted.spooling.approximation import QUERY_TERMS, heaviest_places

    allowed = reader._live.allowed()
    live = np.arange(reader.rows) if allowed is None else np.flatnonzero(allowed)
    rng = np.random.default_rng(SEED)
    rows = np.sort(rng.choice(live, min(2 * most, len(live)), replace=False)).astype(np.int64)
    documents = reader._documents(rows)
    filled = np.flatnonzero(np.diff(documents.indptr))
    if len(filled) > most:
        filled = np.sort(rng.choice(filled, most, replace=False))
    documents, rows = documents[filled], rows[filled]
    # The largest of log weight plus Gumbel noise are drawn by weight, none twice.
    keys = np.log(documents.data) + rng.gumbel(size=len(documents.data))
    counts = np.minimum(np.diff(documents.indptr), QUERY_TERMS).astype(np.int64)
    kept = heaviest_places(documents.indptr.astype(np.int64), keys.astype(np.float32), counts)
    triple = (documents.data[kept], documents.indices[kept], np.concatenate([[0], counts.cumsum()]))
    queries: Sparse = sparse.csr_array(triple, shape=documents.shape)
    return _Sample(reader, queries, rows, "documents")
