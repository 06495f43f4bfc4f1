"""A bias of each document, added to its inner product with the query by one more dimension."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number
from sluice.indexing.checks import Dense
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.arrays import fact, open_array, write_array
from sluice.indexing.wrappers.augmentation import NO_PARAMETERS, Augmentation, Parameters

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

    def __init__(self, values: ArrayLike | None = None, *, missing: float | None = None) -> None:
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
            raise DataError(f"bias: {values!r} are no numbers, expected floats [n]") from None
        if more.ndim != 1:
            raise DataError(f"bias: shape {more.shape}, expected one number a document [n]")
        bad = np.flatnonzero(~np.isfinite(more))
        if len(bad):
            raise DataError(
                f"bias: of document {bad[0]} is {more[bad[0]]}, expected finite numbers"
            )
        self._values = np.concatenate([self._values, more])

    def augment_documents(self, vectors: Dense, rows: Rows) -> Dense:
        """Append the bias of each row."""
        known = rows < len(self._values)
        if self.missing is None and not known.all():
            raise DataError(
                f"documents: row {rows[~known][0]:,} has no bias, of {len(self._values):,} given; "
                "append() the biases of new documents before add()"
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

    def check_parameters(self, given: Parameters) -> None:
        """Refuse a weight that is no finite number in float32."""
        if WEIGHT in given and abs(finite_number(given[WEIGHT], f"params: {WEIGHT}")) > 1e30:
            raise ConfigError(f"params: {WEIGHT} is {given[WEIGHT]!r}, expected at most 1e30")

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
