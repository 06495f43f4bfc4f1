"""An index that adds dimensions to its vectors and stores them in another dense index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from sluice.encoders.foundation.build import build, factory
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.hits import LARGEST_SCORE, Hits, Mask, Rows
from sluice.indexing.index import Index, SearchParameters, saved_type
from sluice.indexing.own.augmentations import Augmentation
from sluice.indexing.storage.rows import fact
from sluice.indexing.table import AUGMENTATIONS
from sluice.indexing.wrappers.funnel import (
    WrappingIndex,
    inner_index,
    metric_of,
    open_inner,
    write_inner,
)

INNER = "inner"


class AugmentedIndex(WrappingIndex):
    """Vectors with the dimensions that ``augmentation`` adds, searched by the index ``inner``.

    Both are given, or described as in YAML: ``{type: faiss, factory: HNSW32, metric: l2}`` and
    ``{type: mips_to_l2}``. Hits are those of the inner index; the augmentation converts their
    scores. ``params`` are the inner index's and the augmentation's.
    """

    type_name = "augmented"

    def __init__(
        self,
        inner: Annotated[Index | dict[str, Any], "The index that does the searching, {type: ...}."],
        augmentation: Annotated[
            Augmentation | dict[str, Any], "document_bias or mips_to_l2, as {type: ...}."
        ],
    ) -> None:
        self.augmentation = _built(augmentation)
        super().__init__(inner_index(inner, INNER), self.augmentation.metric)
        self._width: int | None = None
        metric = metric_of(self.inner, INNER)
        if metric not in self.augmentation.inner_metrics:
            raise ConfigError(
                f"inner: metric {metric!r}, {type(self.augmentation).__name__} needs "
                f"{' or '.join(map(repr, self.augmentation.inner_metrics))}"
            )

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors as they are given; None before the first ``add``."""
        return self._width

    @property
    def size_bytes(self) -> int:
        """Bytes of the inner index and of what the augmentation holds."""
        return self.inner.size_bytes + self.augmentation.size_bytes

    def train(self, sample: Any) -> None:
        """Train the augmentation, then the inner index, on vectors ``[n, dim]``."""
        vectors = self._checked(sample, "training sample")
        self.augmentation.train(vectors)
        self.inner.train(self.augmentation.augment_sample(vectors))

    def _checked(self, vectors: Any, what: str) -> Dense:
        return checked_dense(vectors, self.width, what)

    def _append(self, documents: Dense) -> None:
        self.augmentation.train(documents)
        rows: Rows = np.arange(self.rows, self.rows + len(documents), dtype=np.int64)
        self.inner.add(self.augmentation.augment_documents(documents, rows))
        self.augmentation.added(rows)
        self._width = documents.shape[1]

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        own = self.augmentation.search_parameters()
        ours = {name: value for name, value in parameters.items() if name in own}
        others = {name: value for name, value in parameters.items() if name not in own}
        longer = self.augmentation.augment_queries(queries, ours)
        rows, inner_scores = self.inner.search(longer, k, keep=allowed, params=others)
        filled = rows >= 0
        metric = metric_of(self.inner, INNER)
        with np.errstate(over="ignore"):
            scores = self.augmentation.scores(np.where(filled, inner_scores, 0), queries, metric)
        scores = np.where(filled, np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE), inner_scores)
        return Hits(rows, scores).sorted()  # rounding may have made ties

    @property
    def _parameters(self) -> SearchParameters:
        names = (*self.augmentation.search_parameters(), *self.inner._parameters.names)
        return SearchParameters(names, self.augmentation.check_parameters)

    def _documents(self, rows: Rows) -> Dense:
        longer = self.inner.documents(rows)
        return self.augmentation.original_documents(longer, self._width or 0)

    def _keep_only(self, allowed: Mask) -> None:
        self._drop_inner_rows(allowed)
        self.augmentation.keep_only(allowed)

    def _stored_rows(self) -> int:
        return self.inner.rows

    def _write(self, folder: Path) -> dict[str, Any]:
        return {
            "dim": self._width or 0,
            INNER: write_inner(self.inner, folder / INNER),
            "augmentation": {
                "type": saved_type(self.augmentation),
                **self.augmentation.write(folder),
            },
        }

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Self:
        described = fact(facts, "augmentation", dict, folder)
        name = fact(described, "type", str, folder)
        inner = open_inner(folder / INNER, fact(facts, INNER, dict, folder), allow)
        index = cls.__new__(cls)
        try:
            kind = factory(name, AUGMENTATIONS, where=str(folder), allow=allow)
            if not (isinstance(kind, type) and issubclass(kind, Augmentation)):
                raise IndexFormatError(f"{folder}: type {name!r} is not a subclass of Augmentation")
            index.augmentation = kind.read(folder, described)
        except (ConfigError, DataError) as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        WrappingIndex.__init__(index, inner, index.augmentation.metric)
        index._width = fact(facts, "dim", int, folder) or None
        return index


def _built(spec: Augmentation | dict[str, Any]) -> Augmentation:
    where = "augmentation"
    augmentation = build(spec, AUGMENTATIONS, where=where) if isinstance(spec, Mapping) else spec
    if not isinstance(augmentation, Augmentation):
        raise ConfigError(
            f"{where}: {type(augmentation).__name__}, expected an Augmentation, or its spec such "
            f"as {{type: {next(iter(AUGMENTATIONS))}}}"
        )
    return augmentation
