"""Looks into FAISS indexes: their parts, search parameters and centroids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import faiss
import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.hits import Mask, Rows
from sluice.indexing.storage.rows import DenseRows

QUANTIZER = "quantizer_"  # prefix of parameters for the coarse quantizer of an inverted file
ALL_PARAMETERS = ("nprobe", "max_codes", "efSearch", "k_factor", QUANTIZER + "efSearch")
UNPARAMETRISED = faiss.IndexIVFAdditiveQuantizerFastScan  # lists, but nothing per call
ROTATION_CENTROIDS = 256  # of the product quantiser that OPQ fits its rotation to
POINTS_PER_CENTROID = 39  # fewer, and FAISS's own k-means warns


def parts(index: Any) -> Iterator[Any]:
    """Yield an index and what it wraps, outermost first.

    The parts are views: they live as long as ``index`` does.
    """
    part = faiss.downcast_index(index)
    yield part
    if isinstance(part, faiss.IndexPreTransform):
        yield from parts(part.index)
    elif isinstance(part, faiss.IndexRefine):
        yield from parts(part.base_index)


def parameter_names(index: Any) -> tuple[str, ...]:
    """Return the search parameters that ``search_parameters`` can set for this index."""
    names: list[str] = []
    for part in parts(index):
        if isinstance(part, faiss.IndexRefine):
            names.append("k_factor")
        elif isinstance(part, faiss.IndexHNSW):
            names.append("efSearch")
        elif isinstance(part, faiss.IndexIVF) and not isinstance(part, UNPARAMETRISED):
            names += ["nprobe", "max_codes"]
            names += [QUANTIZER + name for name in parameter_names(part.quantizer)]
    return tuple(names)


def search_parameters(index: Any, params: Mapping[str, Any], selector: Any) -> Any:
    """Return FAISS's parameter object for one search, or None when nothing is set.

    What ``params`` does not name is taken from the index: FAISS's own defaults in these objects
    differ (``nprobe`` is 1 whatever the index has). ``selector`` restricts the ids, or is None.
    """
    if not params and selector is None:
        return None
    part = faiss.downcast_index(index)
    chosen = {} if selector is None else {"sel": selector}
    if isinstance(part, faiss.IndexPreTransform):
        inner = search_parameters(part.index, params, selector)
        return faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(part, faiss.IndexRefine):
        base = {name: value for name, value in params.items() if name != "k_factor"}
        return faiss.IndexRefineSearchParameters(
            k_factor=float(params.get("k_factor", part.k_factor)),
            base_index_params=search_parameters(part.base_index, base, selector),
        )
    if isinstance(part, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(
            efSearch=int(params.get("efSearch", part.hnsw.efSearch)), **chosen
        )
    if isinstance(part, faiss.IndexIVF) and not isinstance(part, UNPARAMETRISED):
        coarse = {
            name.removeprefix(QUANTIZER): value
            for name, value in params.items()
            if name.startswith(QUANTIZER)
        }
        return faiss.SearchParametersIVF(
            nprobe=int(params.get("nprobe", part.nprobe)),
            max_codes=int(params.get("max_codes", part.max_codes)),
            quantizer_params=search_parameters(part.quantizer, coarse, None),
            **chosen,
        )
    return faiss.SearchParameters(**chosen)


def centroids(index: Any) -> int:
    """Return the largest number of centroids that training places in one space; 0 for none."""
    most = 0
    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            most = max(most, int(part.nlist))
        if rotation_width(part):
            most = max(most, ROTATION_CENTROIDS)
        for quantizer in ("pq", "rq"):
            codebook = getattr(_stored(part), quantizer, None)
            if isinstance(codebook, faiss.ProductQuantizer):
                most = max(most, int(codebook.ksub))
    return most


def rotation_width(index: Any) -> int:
    """Return the most dimensions that an OPQ of this index rotates; 0 without one."""
    widest = 0
    for part in parts(index):
        if isinstance(part, faiss.IndexPreTransform):
            for place in range(part.chain.size()):
                step = faiss.downcast_VectorTransform(part.chain.at(place))
                if isinstance(step, faiss.OPQMatrix):
                    widest = max(widest, int(step.d_in))
    return widest


def spare_polysemous(index: Any) -> None:
    """Switch off the training of polysemous codes, 12 s at 8 bits, whose filter no search uses.

    Douze, Jegou and Perronnin (2016), Polysemous Codes.
    """
    for part in parts(index):
        stored = _stored(part)
        if isinstance(stored, faiss.IndexPQ | faiss.IndexIVFPQ):
            stored.do_polysemous_training = False


def hush_clustering(index: Any) -> None:
    """Keep FAISS's own k-means from warning on the terminal; ``FaissIndex`` logs that instead."""
    for part in parts(index):
        stored = _stored(part)
        for holder in (stored, getattr(stored, "pq", None)):
            settings = getattr(holder, "cp", None)
            if isinstance(settings, faiss.ClusteringParameters):
                settings.min_points_per_centroid = 1


def _stored(part: Any) -> Any:
    """Return what holds the codes: the storage of a graph, else the part itself."""
    return faiss.downcast_index(part.storage) if isinstance(part, faiss.IndexHNSW) else part


READ_BLOCK = 65_536  # vectors read back at a time


def compacted(engine: Engine, allowed: Mask, full: DenseRows | None) -> Engine:
    """Return an index of the allowed rows, of the full vectors or else of the decoded ones.

    ``ConfigError`` for a type that keeps no full vectors and cannot give them back.
    """
    smaller = engine.emptied()
    blocks = _decoded(engine, allowed) if full is None else full.blocks(READ_BLOCK, allowed)
    if not engine.traits.grows:
        blocks = _joined(blocks)
    for vectors in blocks:
        smaller.add(vectors)
    return smaller


def _decoded(engine: Engine, allowed: Mask) -> Iterator[Dense]:
    for start in range(0, len(allowed), READ_BLOCK):
        mask = allowed[start : start + READ_BLOCK]
        if mask.any():
            try:
                vectors = engine.decoded(start, len(mask))
            except RuntimeError:
                raise ConfigError(_lost("compact", engine)) from None
            yield vectors[mask]


def _joined(blocks: Iterator[Dense]) -> Iterator[Dense]:
    if parts := list(blocks):
        yield np.concatenate(parts)


def decoded_documents(engine: Engine, rows: Rows) -> Dense:
    """Return the vectors of rows in their order, for quantised types the decoded ones.

    Ranges are read, of at most 65,536 rows: an inverted file finds one row no faster than many.
    ``ConfigError`` for a type that cannot give its vectors back.
    """
    documents = np.empty((len(rows), engine.width), np.float32)
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    try:
        _refuse_scanned_lists(engine)
        place = 0
        while place < len(rows):
            first = int(ascending[place])
            stop = int(np.searchsorted(ascending, first + READ_BLOCK))
            part = ascending[place:stop]
            vectors = engine.decoded(first, int(part[-1]) - first + 1)
            documents[order[place:stop]] = vectors[part - first]
            place = stop
    except RuntimeError:
        raise ConfigError(_lost("documents", engine)) from None
    return documents


def _refuse_scanned_lists(engine: Engine) -> None:
    """Raise ``RuntimeError`` where FAISS 1.15 crashes if the index was read from a file."""
    if isinstance(engine.index, faiss.Index):
        *_, inner = parts(engine.index)
        if isinstance(inner, faiss.IndexIVFFastScan):
            raise RuntimeError("codes in lists for fast scan")


def _lost(what: str, engine: Engine) -> str:
    return (
        f"{what}: faiss {engine.factory!r} cannot give its vectors back ({engine.traits.kind}); "
        "rebuild the index from the corpus, with rescore=1 to keep the full vectors"
    )
