"""Dense vectors for ``bench_dense.py``: made up in clusters, or a model's of a real collection.

Made-up vectors have the spectrum of real embeddings, falling with the dimension, around 2,000
centres. Real ones are encoded once and kept as ``.npy`` files.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.generations import replaced_folder

log = logging.getLogger("sluice")

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("SLUICE_BENCH", Path.home() / ".cache" / "sluice" / "bench"))
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CENTRES, SPREAD = 2_000, 0.9
QUERIES = 1_000
LONGEST = 128  # tokens of a passage: enough for the benchmark's purpose

Dense = NDArray[np.float32]


class Collection(NamedTuple):
    """Unit vectors of documents and queries."""

    name: str
    documents: Dense
    queries: Dense


def clustered(documents: int, dimensions: int, seed: int = 1) -> Collection:
    """Return made-up vectors around centres; queries come from the same clusters."""
    rng = np.random.default_rng(seed)
    spectrum = (1 / np.sqrt(1 + np.arange(dimensions) / 20)).astype(np.float32)
    centres = spectrum * rng.standard_normal((CENTRES, dimensions), dtype=np.float32)
    count = documents + QUERIES
    table = np.empty((count, dimensions), dtype=np.float32)
    for start in range(0, count, 65_536):
        part = table[start : start + 65_536]
        noise = rng.standard_normal(part.shape, dtype=np.float32)
        part[:] = centres[rng.integers(0, CENTRES, len(part))] + SPREAD * spectrum * noise
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    name = f"clustered, {documents:,} x {dimensions}"
    return Collection(name, table[:documents], table[documents:].copy())


def real(dataset: str) -> Collection | None:
    """Return a real collection's vectors by the MiniLM model; None where either is missing."""
    folder = CACHE / f"minilm-{dataset}"
    if not folder.exists() and not _encode(dataset, folder):
        return None
    documents, queries = (np.load(folder / f"{part}.npy") for part in ("documents", "queries"))
    return Collection(f"{dataset}, {len(documents):,} x {documents.shape[1]}", documents, queries)


def _encode(dataset: str, folder: Path) -> bool:
    from sluice import DenseEncoder, SluiceError, load_dataset

    source = Path(os.environ.get("SLUICE_DATA", ROOT.parent / "shared" / "data")) / dataset
    try:
        loaded = load_dataset(str(source))
        encoder = DenseEncoder.from_pretrained(MODEL, dtype="auto", document_length=LONGEST)
    except (SluiceError, OSError) as error:
        log.warning("%s: %s", dataset, error)
        return False
    passages = [document.full_text for document in loaded.corpus]
    log.info("%s: encoding %s passages; they are kept in %s", dataset, len(passages), folder)
    with replaced_folder(folder) as made:
        np.save(made / "documents.npy", encoder.encode_documents(passages))
        np.save(made / "queries.npy", encoder.encode_queries(list(loaded.queries.values())))
    return True
