"""Quality scores of a corpus on disk, and the corpus without its worst share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.input.bounded import expanded
from sluice.encoders.foundation.numbers import is_number
from sluice.retrieval.documents.document import Document

FORMAT = b"sluice.quality"
COLUMNS = ("id", "quality")


class QualityScores:
    """A number for each document, in the order of its corpus: the higher, the worthier to keep.

    ``by`` names what scored, ``facts`` tell more of it. Ids are held as a pyarrow array. Raises
    ``DataError`` for a score that is not finite.
    """

    def __init__(
        self,
        ids: Any,
        scores: ArrayLike,
        *,
        by: str = "quality",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        import pyarrow as pa

        self.ids = ids if isinstance(ids, pa.Array) else pa.array(list(ids), pa.string())
        self.scores: NDArray[np.float32] = np.asarray(scores, np.float32)
        self.by = by
        self.facts = dict(facts or {})
        if self.scores.shape != (len(self.ids),):
            raise DataError(
                f"quality: {len(self.ids):,} ids and scores of shape {self.scores.shape}; expected "
                "one score per document"
            )
        if self.ids.null_count:
            raise DataError("quality: a document has no id; expected one for each score")
        bad = np.flatnonzero(~np.isfinite(self.scores))
        if len(bad):
            raise DataError(
                f"quality: document {self.ids[int(bad[0])].as_py()!r} has {self.scores[bad[0]]}; "
                "expected finite numbers"
            )

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        return f"QualityScores({self.by!r}, {len(self):,} documents)"

    def kept(self, share: float) -> NDArray[np.bool_]:
        """Return for each document whether it stays when the worst ``share`` goes.

        Of n documents floor(share n) go, whatever the ties: of equal ones that with the smaller id
        goes first, as in a ranking.
        """
        if not is_number(share) or not 0 <= share < 1:
            raise ConfigError(f"share: {share!r}; expected the share to drop, 0 up to below 1")
        import pyarrow as pa

        count = int(share * len(self) + 1e-9)  # 0.3 of 10 is 3, though 0.3 * 10 may fall short
        if count == 0:
            return np.ones(len(self), dtype=np.bool_)
        edge = np.partition(self.scores, count - 1)[count - 1]
        kept: NDArray[np.bool_] = self.scores > edge
        tied = np.flatnonzero(self.scores == edge)
        names = self.ids.take(pa.array(tied)).to_pylist()
        order = sorted(range(len(tied)), key=names.__getitem__, reverse=True)
        kept[tied[order[: len(self) - count - int(kept.sum())]]] = True
        return kept

    def save(self, path: str | Path) -> None:
        """Write a parquet file with the columns ``id`` and ``quality``, in one step."""
        import pyarrow as pa
        from pyarrow import parquet

        file = Path(path)
        facts = json.dumps({"by": self.by, "facts": self.facts}, default=str)
        schema = pa.schema(
            [(COLUMNS[0], pa.string()), (COLUMNS[1], pa.float32())], {FORMAT: facts.encode()}
        )
        table = pa.table([self.ids.cast(pa.string()), pa.array(self.scores)], schema=schema)
        with replaced_file(file) as stream:
            parquet.write_table(table, stream, compression="zstd")

    @classmethod
    def load(cls, path: str | Path) -> QualityScores:
        """Read a parquet file with columns ``id`` and ``quality``, ours or another tool's."""
        import pyarrow as pa
        from pyarrow import parquet

        file = expanded(path)
        if not file.is_file():
            raise DataError(f"{file}: no such file; sluice fit quality makes one")
        try:
            names = parquet.read_schema(file).names
            if not set(COLUMNS) <= set(names):
                raise DataError(
                    f"{file}: columns {', '.join(names)}; expected {' and '.join(COLUMNS)}"
                )
            table = parquet.read_table(file, columns=list(COLUMNS)).combine_chunks()
            ids = table.column(COLUMNS[0]).cast(pa.string()).combine_chunks()
            values = table.column(COLUMNS[1]).cast(pa.float32()).to_numpy()
            noted = dict(json.loads((table.schema.metadata or {}).get(FORMAT, b"{}")))
            by, facts = str(noted.get("by", file.stem)), dict(noted.get("facts") or {})
        except (pa.ArrowException, OSError, TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{file}: not a file of quality scores ({error}); sluice fit quality writes one"
            ) from None
        try:
            return cls(ids, values, by=by, facts=facts)
        except DataError as error:
            raise DataError(f"{file}: {error}") from None


class PrunedCorpus:
    """A corpus without the ``share`` of its documents whose quality is lowest.

    Iterates as often as the corpus does. ``share=0`` is the corpus. The scores must be of these
    documents in this order: ``DataError`` where they part.
    """

    def __init__(self, corpus: Iterable[Document], scores: QualityScores, share: float) -> None:
        self.corpus, self.scores = corpus, scores
        self._kept = scores.kept(share)

    def __len__(self) -> int:
        return int(self._kept.sum())

    def __iter__(self) -> Iterator[Document]:
        entries = self._entries()
        for number, document in enumerate(self.corpus, 1):
            entry = next(entries, None)
            if entry is None:
                raise self._parted(f"the corpus has more documents than the {number - 1:,} scored")
            name, keep = entry
            if document.id != name:
                raise self._parted(
                    f"document {number:,} of the corpus is {document.id!r}, and that of the scores "
                    f"is {name!r}"
                )
            if keep:
                yield document
        if (entry := next(entries, None)) is not None:
            raise self._parted(f"document {entry[0]!r} of the scores is not in the corpus")

    def _parted(self, found: str) -> DataError:
        return DataError(
            f"quality scores ({self.scores.by}): {found}; they belong to another corpus: score "
            "this one (sluice fit quality)"
        )

    def _entries(self) -> Iterator[tuple[str, bool]]:
        for start in range(0, len(self.scores), 8192):
            names: Sequence[str] = self.scores.ids.slice(start, 8192).to_pylist()
            yield from zip(names, self._kept[start : start + 8192].tolist(), strict=True)
