"""An index whose vectors get more dimensions on their way into another dense index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from sluice.encoders.foundation.build import build, factory
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.hits import LARGEST_SCORE, Hits
from sluice.indexing.index import Index
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.arrays import fact
from sluice.indexing.storage.exact_scores import Metric
from sluice.indexing.table import AUGMENTATIONS
from sluice.indexing.wrappers.augmentations import Augmentation
from sluice.indexing.wrappers.inner import (
    drop_rows,
    inner_index,
    metric_of,
    open_inner,
    qualified_name,
    write_inner,
)

INNER = "inner"


class AugmentedIndex(Index):
    """Vectors with the dimensions that ``augmentation`` adds, searched by the index ``inner``.

    Both are given, or described as in YAML: ``{type: faiss, factory: HNSW32, metric: l2}`` and
    ``{type: mips_to_l2}``. Hits are those of the inner index, scores what the augmentation says
    they mean. ``params`` are the inner index's and the augmentation's.
    """

    type_name = "augmented"

    def __init__(
        self, inner: Index | dict[str, Any], augmentation: Augmentation | dict[str, Any]
    ) -> None:
        super().__init__()
        self.inner = inner_index(inner, INNER)
        self.augmentation = _made(augmentation)
        self._width: int | None = None
        found = metric_of(self.inner, INNER)
        if found not in self.augmentation.inner_metrics:
            raise ConfigError(
                f"inner: metric {found!r}, {type(self.augmentation).__name__} needs "
                f"{' or '.join(map(repr, self.augmentation.inner_metrics))}"
            )

    @property
    def metric(self) -> Metric:  # type: ignore[override]  # nobody sets it
        """What the scores are: the augmentation's metric."""
        return self.augmentation.metric

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors as they are given; None before the first ``add``."""
        return self._width

    @property
    def size_bytes(self) -> int:
        """Bytes of the inner index and of what the augmentation holds."""
        return self.inner.size_bytes + self.augmentation.size_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the inner index that should fit into memory."""
        return self.inner.resident_bytes

    def training_rows(self, documents: int) -> int:
        """Return how many sample vectors the inner index would like."""
        return self.inner.training_rows(documents)

    def train(self, sample: Any) -> None:
        """Train the augmentation, then the inner index, on vectors ``[n, dim]``."""
        vectors = self._checked(sample, "training sample")
        self.augmentation.train(vectors)
        self.inner.train(self.augmentation.augment_sample(vectors))

    def spool(self, folder: Path) -> None:
        """Keep what is added from now on in files of ``folder``, where the inner index can."""
        self.inner.spool(folder)

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
        hits = self.inner.search(longer, k, keep=allowed, params=others)
        found = hits.rows >= 0
        inner = metric_of(self.inner, INNER)
        with np.errstate(over="ignore"):
            meant = self.augmentation.scores(np.where(found, hits.scores, 0), queries, inner)
        meant = np.where(found, np.clip(meant, -LARGEST_SCORE, LARGEST_SCORE), hits.scores)
        order = np.lexsort((hits.rows, -meant), axis=-1)  # rounding may have made ties
        return Hits(
            np.take_along_axis(hits.rows, order, axis=-1), np.take_along_axis(meant, order, axis=-1)
        )

    def _search_parameters(self) -> tuple[str, ...]:
        return (*self.augmentation.search_parameters(), *self.inner._search_parameters())

    def _check_parameters(self, given: Mapping[str, Any]) -> None:
        super()._check_parameters(given)
        self.augmentation.check_parameters(given)

    def _documents(self, rows: Rows) -> Dense:
        longer = self.inner.documents(rows)
        return self.augmentation.original_documents(longer, self._width or 0)

    def _keep_only(self, allowed: Mask) -> None:
        drop_rows(self.inner, allowed)
        self.augmentation.keep_only(allowed)

    def _stored_rows(self) -> int:
        return self.inner.rows

    def _write(self, folder: Path) -> dict[str, Any]:
        return {
            "dim": self._width or 0,
            INNER: write_inner(self.inner, folder / INNER),
            "augmentation": {
                "type": qualified_name(self.augmentation),
                **self.augmentation.write(folder),
            },
        }

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        return cls._open(folder, facts, ())

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Self:
        described = fact(facts, "augmentation", dict, folder)
        name = fact(described, "type", str, folder)
        inner = open_inner(folder / INNER, fact(facts, INNER, dict, folder), allow)
        index = cls.__new__(cls)
        Index.__init__(index)
        index.inner = inner
        try:
            kind = factory(name, AUGMENTATIONS, where=str(folder), allow=allow)
            if not (isinstance(kind, type) and issubclass(kind, Augmentation)):
                raise IndexFormatError(f"{folder}: type {name!r} is no subclass of Augmentation")
            index.augmentation = kind.read(folder, described)
        except (ConfigError, DataError) as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index._width = fact(facts, "dim", int, folder) or None
        return index


def _made(given: Augmentation | dict[str, Any]) -> Augmentation:
    where = "augmentation"
    made = build(given, AUGMENTATIONS, where=where) if isinstance(given, Mapping) else given
    if not isinstance(made, Augmentation):
        raise ConfigError(
            f"{where}: {type(made).__name__}, expected an Augmentation, or its spec such as "
            f"{{type: {next(iter(AUGMENTATIONS))}}}"
        )
    return made
