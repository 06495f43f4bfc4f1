"""FAISS indexes as files and copies, with FAISS's own errors turned into ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.indexing.faiss.structure import parts

PROBE_WIDTH = 64  # dimensions for trying whether a factory string can be parsed


def reason(error: RuntimeError) -> str:
    """Return the last part of FAISS's message: what failed, without its source lines."""
    return str(error).rpartition("Error: ")[2].strip().splitlines()[0]


def refuse_unknown(factory: str, metric: str, faiss_metric: int) -> None:
    """Raise ``ConfigError`` for a string FAISS cannot use, before any vector is encoded.

    What depends on the width (sub-quantisers that must divide it) shows when the width is known.
    """
    if "IDMap" in factory:
        raise ConfigError(
            f"factory: {factory!r} maps ids, and this index numbers its rows itself; drop IDMap"
        )
    try:
        faiss.index_factory(PROBE_WIDTH, factory, faiss_metric)
    except RuntimeError as error:
        if "could not parse" in str(error):
            raise ConfigError(
                f"factory: faiss cannot parse {factory!r}; examples: Flat, HNSW32, IVF1024,SQ8, "
                "'OPQ48,IVF256,PQ48,RFlat', BFlat"
            ) from None
        if "METRIC_L2" in str(error):
            raise ConfigError(
                f"factory: faiss makes {factory!r} for metric 'l2' only, not for {metric!r}"
            ) from None


def open_file(path: Path, width: int, rows: int) -> Any:
    """Open a FAISS file, mapped into memory where this FAISS can; nothing may be added to it."""
    flags = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
    try:
        index = faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise IndexFormatError(
            f"{path}: faiss cannot read it ({reason(error)}); rebuild the index"
        ) from None
    if (index.d, index.ntotal) != (width, rows):
        raise IndexFormatError(
            f"{path}: {index.ntotal:,} vectors of {index.d} dimensions, the manifest says {rows:,} "
            f"of {width}; rebuild the index"
        )
    return _mended(index)


def copied(index: Any) -> Any:
    """Return an index that owns all its memory and can grow.

    By way of its bytes: ``clone_index`` refuses some transforms, and FAISS aborts the process when
    a mapped index grows.
    """
    return _mended(faiss.deserialize_index(faiss.serialize_index(index)))


def _mended(index: Any) -> Any:
    """Return a read index that can give its vectors back.

    FAISS 1.15 reads inverted files of the fast scan without the pointer to their quantiser, and
    crashes when it decodes.
    """
    for part in parts(index):
        if isinstance(part, faiss.IndexIVFFastScan) and part.fine_quantizer is None:
            part.fine_quantizer = getattr(part, "pq", None) or part.aq
    return index


def written_bytes(index: Any) -> int:
    """Return how many bytes the index has as a file, without making them all at once."""
    total = 0

    def count(data: bytes) -> int:
        nonlocal total
        total += len(data)
        return len(data)

    faiss.write_index(index, faiss.PyCallbackIOWriter(count, 1 << 20))
    return total
