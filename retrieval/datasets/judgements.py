"""Judgements by what a user names: a file of them, or a dataset."""

from __future__ import annotations

from pathlib import Path

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.source import Qrels


def judgements(name: str) -> Qrels:
    """Return the judgements of a qrels file, or of the test split of the dataset of that name.

    Raises ``DataError`` for what is neither.
    """
    from sluice.retrieval.runs.trec_files import read_qrels

    if Path(name).is_file() or name.endswith((".tsv", ".txt", ".qrels", ".trec", ".gz")):
        return read_qrels(Path(name))
    from sluice.retrieval.datasets.dataset import load_dataset

    try:
        return load_dataset(name).qrels
    except DataError as error:
        raise DataError(f"{name}: no such file of judgements, and as a dataset: {error}") from None
