"""Adds dimensions to documents and queries, so that a dense index computes another score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number
from sluice.indexing.checks import Dense
from sluice.indexing.hits import Mask, Rows
from sluice.indexing.storage.exact_scores import Metric, norms_of
from sluice.indexing.storage.rows import fact, write_array

Parameters = Mapping[str, Any]
NO_PARAMETERS: Parameters = {}


class Augmentation(ABC):
    """What is appended to the vectors of one index, and what its scores then mean.

    Made for scores that are inner products of longer vectors: a bias of each document (one more
    dimension, 1 in the query), negative Kullback-Leibler divergence of Gaussians, and the like. An
    augmentation belongs to one index: it may learn from the documents and hold values by row.
    """

    type_name: ClassVar[str] = ""  # name in the table of types; empty for a user's own class
    metric: ClassVar[Metric] = "ip"  # of the augmented index: what its scores are
    inner_metrics: ClassVar[tuple[Metric, ...]] = ("ip",)  # what the index below may compute

    def train(self, documents: Dense) -> None:  # noqa: B027 - most need nothing
        """Learn from sample documents, or from the first that are added."""

    @abstractmethod
    def augment_documents(self, vectors: Dense, rows: Rows) -> Dense:
        """Return the documents ``[n, dim]`` of these rows with more dimensions.

        ``DataError`` where that cannot be; nothing changes here until ``added``.
        """

    def augment_sample(self, vectors: Dense) -> Dense:
        """Return sample documents, of no rows, with more dimensions to train the inner index."""
        return self.augment_documents(vectors, np.arange(len(vectors), dtype=np.int64))

    def added(self, rows: Rows) -> None:  # noqa: B027 - most hold nothing by row
        """Called once the inner index has these rows."""

    @abstractmethod
    def augment_queries(self, vectors: Dense, params: Parameters = NO_PARAMETERS) -> Dense:
        """Return the queries ``[n, dim]`` with as many dimensions as the documents."""

    def original_documents(self, vectors: Dense, width: int) -> Dense:
        """Return augmented documents ``[n, dim + added]`` as they were, of ``width`` dimensions."""
        return vectors[:, :width]

    def scores(self, scores: Dense, queries: Dense, inner: Metric) -> Dense:
        """Return the scores that the inner index's ``[n, k]`` stand for: by default the same.

        ``queries`` are the unaugmented ones. The order on a line must not change.
        """
        return scores

    def keep_only(self, allowed: Mask) -> None:  # noqa: B027 - most hold nothing by row
        """Drop the values of rows that ``allowed`` excludes; the others move up."""

    def search_parameters(self) -> tuple[str, ...]:
        """Names that ``params`` of a search may have for ``augment_queries``."""
        return ()

    def check_parameters(self, params: Parameters) -> None:  # noqa: B027 - most take none
        """Raise ``ConfigError`` for a value that a parameter cannot have."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays that ``write`` stores."""
        return 0

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write arrays into the folder, names starting with ``augmentation``; return the facts."""

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote."""


FILE = "augmentation_bias.npy"
WEIGHT = "bias_weight"


class DocumentBias(Augmentation):
    """Scores ``<query, document> + bias of the document``: the query's last dimension is 1.

    ``values`` are the biases of rows 0, 1, 2, ...; those of later documents are given to ``append``
    before they are added. A row without one has the bias ``missing``, and None refuses it. With a
    log-normaliser per document, ``values = -log Z / beta`` makes ``beta`` times the score the
    logarithm of the inverted softmax (Bogolin et al., Cross Modal Retrieval with Querybank
    Normalisation, 2022). The search parameter ``bias_weight`` multiplies the bias (default 1; 0 is
    the plain inner product), for normalising some queries only.
    """

    type_name = "document_bias"

    def __init__(
        self,
        values: Annotated[
            ArrayLike | None, "One number for each document, added to its score."
        ] = None,
        *,
        missing: float | None = None,
    ) -> None:
        self.missing = None if missing is None else finite_number(missing, "missing")
        self._values: Dense = np.zeros(0, np.float32)
        if values is not None:
            self.append(values)

    @property
    def values(self) -> Dense:
        """The biases by row, float32; read-only."""
        view = self._values.view()
        view.setflags(write=False)
        return view

    def append(self, values: ArrayLike) -> None:
        """Give the biases of the next rows, finite numbers ``[n]``."""
        try:
            with np.errstate(over="ignore"):  # what overflows float32 is reported below
                more = np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError):
            raise DataError(f"bias: {values!r}, expected an array of floats [n]") from None
        if more.ndim != 1:
            raise DataError(f"bias: shape {more.shape}, expected one number per document [n]")
        bad = np.flatnonzero(~np.isfinite(more))
        if len(bad):
            raise DataError(f"bias: document {bad[0]} has {more[bad[0]]}, expected finite numbers")
        self._values = np.concatenate([self._values, more])

    def augment_documents(self, vectors: Dense, rows: Rows) -> Dense:
        """Append the bias of each row."""
        known = rows < len(self._values)
        if self.missing is None and not known.all():
            raise DataError(
                f"documents: row {rows[~known][0]:,} has no bias, only {len(self._values):,} were "
                "given; append() the biases of new documents before add()"
            )
        biases = np.full(len(rows), self.missing or 0.0, np.float32)
        biases[known] = self._values[rows[known]]
        return np.column_stack([vectors, biases])

    def augment_sample(self, vectors: Dense) -> Dense:
        """Append biases spread as those of the documents are."""
        values = self._values if len(self._values) else np.full(1, self.missing or 0.0, np.float32)
        return np.column_stack([vectors, np.resize(values, len(vectors))])

    def added(self, rows: Rows) -> None:
        """Hold a bias for every row, so that those given later are of later rows."""
        filler = max(0, int(rows[-1]) + 1 - len(self._values))
        if filler:
            self.append(np.full(filler, self.missing, np.float32))

    def augment_queries(self, vectors: Dense, params: Parameters = NO_PARAMETERS) -> Dense:
        """Append 1, or the ``bias_weight`` of this search."""
        weight = np.full(len(vectors), params.get(WEIGHT, 1.0), np.float32)
        return np.column_stack([vectors, weight])

    def keep_only(self, allowed: Mask) -> None:
        """Drop the biases of dropped rows; those given ahead of their rows stay."""
        rows = len(allowed)
        self._values = np.concatenate([self._values[:rows][allowed], self._values[rows:]])

    def search_parameters(self) -> tuple[str, ...]:
        """Take ``bias_weight``."""
        return (WEIGHT,)

    def check_parameters(self, params: Parameters) -> None:
        """Refuse a weight that is not a finite number in float32."""
        if WEIGHT in params and abs(finite_number(params[WEIGHT], f"params: {WEIGHT}")) > 1e30:
            raise ConfigError(f"params: {WEIGHT} is {params[WEIGHT]!r}, expected at most 1e30")

    @property
    def size_bytes(self) -> int:
        """Bytes of the biases."""
        return self._values.nbytes

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the biases."""
        write_array(folder / FILE, [self._values], self._values.shape, np.float32)
        return {"values": len(self._values), "missing": self.missing}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open the biases."""
        opened = cls(missing=facts.get("missing"))
        shape = (fact(facts, "values", int, folder),)
        opened._values = open_array(folder / FILE, np.float32, shape)
        return opened


HEADROOM = 1.25  # of the learned length over the longest document seen


class MipsToL2(Augmentation):
    """Order by inner product, found by an index of distances or cosines.

    A document d becomes ``[d, sqrt(M^2 - |d|^2)] / M`` and a query q ``[q, 0] / |q|``, both of unit
    length, so that the squared distance is ``2 - 2 <q, d> / (M |q|)`` (Bachrach et al., Speeding up
    the Xbox recommender system, 2014): indexes of distances or cosines then take vectors of
    differing lengths. Where an index has inner products of its own, compare: FAISS's HNSW found
    more with them than with these distances whenever it was tried, as Morozov and Babenko
    (Non-metric similarity graphs for maximum inner product search, 2018) report of graphs, and
    inverted files now more, now less.

    The scores are inner products again, up to rounding: documents whose inner products differ in
    the last bits may change places, and a query of zeros finds any. For exact scores and ties put
    the index into a ``FunnelIndex`` as its ``first``.

    ``max_norm`` is M. Left out, it is learned by ``train`` or the first ``add``: 1.25 times the
    longest document. A longer one than M is refused.
    """

    type_name = "mips_to_l2"
    inner_metrics: ClassVar[tuple[Metric, ...]] = ("l2", "cosine", "ip")

    def __init__(
        self,
        max_norm: Annotated[
            float | None, "The length that no vector exceeds; left out, the longest one's."
        ] = None,
    ) -> None:
        self.max_norm = None if max_norm is None else finite_number(max_norm, "max_norm")
        if self.max_norm is not None and self.max_norm <= 0:
            raise ConfigError(f"max_norm is {max_norm!r}, expected a number above 0")

    def train(self, documents: Dense) -> None:
        """Learn ``max_norm`` unless it is known."""
        if self.max_norm is None and len(documents):
            self.max_norm = HEADROOM * float(norms_of(documents).max()) or 1.0

    def augment_documents(self, vectors: Dense, rows: Rows) -> Dense:
        """Append what makes each document of length M, and divide by M."""
        norms = norms_of(vectors)
        longest = self.max_norm or 1.0
        if len(norms) and norms.max() > longest:
            row = int(norms.argmax())
            raise DataError(
                f"documents: row {rows[row]:,} has norm {norms[row]:.6g}, above max_norm "
                f"{longest:.6g}; give MipsToL2 a larger max_norm, or train() with documents as "
                "long as the longest"
            )
        shares = norms / longest
        rest = np.sqrt((1.0 - shares) * (1.0 + shares))
        return np.column_stack([vectors / longest, rest]).astype(np.float32)

    def augment_queries(self, vectors: Dense, params: Parameters = NO_PARAMETERS) -> Dense:
        """Append 0 and divide by the length."""
        norms = norms_of(vectors)
        unit = vectors / np.where(norms > 0, norms, 1.0)[:, None]
        return np.column_stack([unit, np.zeros(len(vectors))]).astype(np.float32)

    def original_documents(self, vectors: Dense, width: int) -> Dense:
        """Multiply by M again; the last bits differ."""
        return vectors[:, :width] * np.float32(self.max_norm or 1.0)

    def scores(self, scores: Dense, queries: Dense, inner: Metric) -> Dense:
        """Return the inner products that distances or cosines stand for."""
        cosines = scores.astype(np.float64)
        if inner == "l2":
            cosines = cosines / 2 + 1
        lengths = norms_of(queries)
        if inner == "l2":  # of a zero query, all distances are 1
            cosines[lengths == 0] = 0.0
        products = cosines * (lengths * (self.max_norm or 1.0))[:, None]
        return products.astype(np.float32)

    def write(self, folder: Path) -> dict[str, Any]:
        """Return M; no arrays are needed."""
        return {"max_norm": self.max_norm}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open one with the same M."""
        if facts.get("max_norm") is None:
            return cls()
        return cls(fact(facts, "max_norm", float, folder))
