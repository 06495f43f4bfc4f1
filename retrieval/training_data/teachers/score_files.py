"""Files of a teacher's scores, parquet with the columns ``query_id``, ``doc_id`` and ``score``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.runs.run import Run
from sluice.training.negatives.judge import JudgedPair

COLUMNS = ("query_id", "doc_id", "score")


def read_scores(path: Path) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
    """Stream query ids, document ids and scores (float64) of a file of scores, by blocks.

    Raises ``DataError`` for a file that is not parquet, lacks a column, or holds a null or a score
    that is not finite.
    """
    import pyarrow as pa

    file = open_scores(path)
    row = 0
    try:
        for batch in file.iter_batches(65_536, columns=list(COLUMNS)):
            for column in COLUMNS:
                if batch[column].null_count:
                    raise DataError(f"{path}: a null in column {column!r}, after row {row:,}")
            scores = batch["score"].cast(pa.float64()).to_numpy(zero_copy_only=False)
            bad = np.flatnonzero(~np.isfinite(scores))
            if len(bad):
                raise DataError(
                    f"{path}: row {row + int(bad[0]):,}: the score is {scores[bad[0]]}, expected a "
                    "finite number; leave out pairs without one"
                )
            queries, documents = (batch[name].cast(pa.string()).to_pylist() for name in COLUMNS[:2])
            yield queries, documents, scores
            row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: row {row:,}: not readable ({error}); score again") from None


def open_scores(path: Path) -> Any:
    """Open a parquet file of scores; ``DataError`` if it is another file or lacks a column."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    for column in COLUMNS:
        if column not in names:
            raise DataError(
                f"{path}: no column {column!r} among {', '.join(names)}; a file of teacher's "
                f"scores has {', '.join(COLUMNS)}, as `sluice teach distil` writes it"
            )
    return file


def open_parquet(path: Path) -> Any:
    """Open a parquet file; ``DataError`` for another one."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from None


def run_of_scores(path: Path) -> Run:
    """Return the scores of a file of `sluice teach distil` as a run."""
    lists: dict[str, dict[str, float]] = {}
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            lists.setdefault(query, {})[document] = score
    return Run(lists, name=path.name)


def table_of(pairs: Sequence[JudgedPair], scores: np.ndarray) -> Any:
    """Return pairs and their scores as an Arrow table."""
    import pyarrow as pa

    columns = [
        pa.array([pair.query_id for pair in pairs], pa.string()),
        pa.array([pair.document_id for pair in pairs], pa.string()),
        pa.array(np.asarray(scores, np.float64), pa.float64()),
    ]
    return pa.table(columns, names=list(COLUMNS))
