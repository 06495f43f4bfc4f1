"""The engines of ``bench_sparse.py``: how each builds its index, opens it and answers a query."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_sparse_data import CHUNK, Collection, Vectors
from numpy.typing import NDArray
from scipy import sparse

Search = Callable[[int, int], Any]  # number of the query, k -> what the engine returns
Rows = NDArray[np.int64]

BMP_BLOCK = 32
BMP_BYTES_PER_POSTING = 72  # resident: 8.2 GB for a million documents of 119 terms
SEISMIC_SETTINGS = ((3, 0.9), (5, 0.9), (8, 0.9), (10, 0.8), (20, 0.7), (100, 1.0))


class Engine(NamedTuple):
    """One contestant: ``files`` is the index it reads, which several contestants may share."""

    name: str
    files: str
    package: str  # that must be installed
    build: Callable[[Collection, Path], None]
    open: Callable[[Collection, Path, Vectors], Search]
    rows: Callable[[Any], Rows]
    every: int = 1  # of so many queries one is timed: the slow ones need fewer
    offset: int = 0  # which one; engines that read the same arrays get different queries

    @property
    def installed(self) -> bool:
        """Whether its package can be imported."""
        return importlib.util.find_spec(self.package) is not None


def one_by_one(queries: Vectors) -> list[Vectors]:
    """Return each query as a matrix of one row."""
    return [queries[[place]] for place in range(queries.shape[0])]


# Ours


def new_index(fidelity: str) -> Any:
    """Return an empty index of ours."""
    from sluice.indexing import InvertedIndex

    return InvertedIndex(fidelity=fidelity)


def _ours(name: str, fidelity: str, params: dict[str, str] | None = None) -> Engine:
    def build(collection: Collection, path: Path) -> None:
        index = new_index(fidelity)
        for part in collection.parts():
            index.add(part)
        index.save(path)

    def opened(_: Collection, path: Path, queries: Vectors) -> Search:
        from sluice.indexing import open_index

        index, rows = open_index(path), one_by_one(queries)
        return lambda place, k: index.search(rows[place], k, params=params)

    return Engine(name, fidelity, "indexing", build, opened, lambda hits: hits.rows[0])


# BMP: impacts of 8 bits, so it is given what a linear scale makes of the weights


def eight_bits(collection: Collection) -> NDArray[np.uint8]:
    """Return the collection's weights on a linear scale from 1 to 255, rounded up."""
    weights = np.load(collection.folder / "weights.npy", mmap_mode="r")
    top = weights.max(initial=np.float32(1e-9))
    scaled = np.empty(len(weights), np.uint8)
    for first in range(0, len(weights), 1 << 24):
        part = np.ceil(weights[first : first + (1 << 24)] / top * 255)
        scaled[first : first + (1 << 24)] = np.clip(part, 1, 255)
    return scaled


def _pairs(keys: Any, values: Any) -> list[tuple[int, int]]:
    return list(zip(keys.tolist(), values.tolist(), strict=True))


def _build_bmp(collection: Collection, path: Path) -> None:
    import bmp

    impacts = eight_bits(collection)
    starts = np.load(collection.folder / "starts.npy")
    terms = np.load(collection.folder / "terms.npy", mmap_mode="r")
    indexer = bmp.InvertedIndexer(str(path), BMP_BLOCK, False)
    for first in range(0, collection.documents, CHUNK):
        last = min(first + CHUNK, collection.documents)
        chunk = np.array(terms[starts[first] : starts[last]])
        offset = starts[first]
        for document in range(first, last):
            begin, end = starts[document], starts[document + 1]
            vector = _pairs(chunk[begin - offset : end - offset], impacts[begin:end])
            indexer.add_document(str(document), vector)
    shape = (collection.documents, collection.width)
    by_term = sparse.csr_array((impacts, terms, starts), shape=shape).tocsc()
    for term in range(collection.width):
        begin, end = by_term.indptr[term], by_term.indptr[term + 1]
        postings = _pairs(by_term.indices[begin:end], by_term.data[begin:end])
        indexer.add_term(f"t{term}", postings)
    indexer.finish()


def _open_bmp(_: Collection, path: Path, queries: Vectors) -> Search:
    import bmp

    searcher = bmp.Searcher(str(path))
    asked = [
        {f"t{term}": float(w) for term, w in zip(row.indices, row.data, strict=True)}
        for row in one_by_one(queries)
    ]
    return lambda place, k: searcher.search(asked[place], k, 1.0, 1.0)


# Exhaustive: scipy's sparse product, and one compiled loop over the postings as naver/splade has it


def _build_transposed(collection: Collection, path: Path) -> None:
    by_term = collection.part(0, collection.documents).tocsc()
    path.mkdir()
    for name in ("indptr", "indices", "data"):
        np.save(path / f"{name}.npy", getattr(by_term, name))


_TRANSPOSED: dict[Path, Vectors] = {}  # both engines read the same arrays


def _transposed(collection: Collection, path: Path) -> Vectors:
    if path not in _TRANSPOSED:
        arrays = tuple(np.load(path / f"{name}.npy") for name in ("data", "indices", "indptr"))
        shape = (collection.width, collection.documents)
        _TRANSPOSED[path] = sparse.csr_array(arrays, shape=shape)
    return _TRANSPOSED[path]


def _largest(rows: Any, scores: Any, k: int) -> Any:
    if len(rows) > k:
        best = np.argpartition(-scores, k)[:k]
        rows, scores = rows[best], scores[best]
    return rows[np.argsort(-scores)]


def _open_scipy(collection: Collection, path: Path, queries: Vectors) -> Search:
    by_term, rows = _transposed(collection, path), one_by_one(queries)

    def search(place: int, k: int) -> Any:
        product = rows[place] @ by_term
        return _largest(product.indices, product.data, k)

    return search


def _open_loop(collection: Collection, path: Path, queries: Vectors) -> Search:
    from bench_sparse_kernels import positive_scores

    by_term, rows = _transposed(collection, path), one_by_one(queries)
    postings = (by_term.indptr, by_term.indices, by_term.data)

    def search(place: int, k: int) -> Any:
        row = rows[place]
        found: Any = positive_scores(*postings, row.indices, row.data, collection.documents)
        return _largest(found[0], found[1], k)

    return search


# Seismic: approximate, with two settings at search time


def _build_seismic(collection: Collection, path: Path) -> None:
    from seismic import SeismicDataset, SeismicIndex, get_seismic_string

    names = np.array([f"t{term}" for term in range(collection.width)], dtype=get_seismic_string())
    dataset, row = SeismicDataset(), 0
    for part in collection.parts():
        for place in range(part.shape[0]):
            span = slice(part.indptr[place], part.indptr[place + 1])
            dataset.add_document(str(row), names[part.indices[span]], part.data[span])
            row += 1
    index = SeismicIndex.build_from_dataset(dataset, num_threads=1)
    path.mkdir()
    index.save(str(path / "index"))


_SEISMIC: dict[Path, Any] = {}


def _seismic(cut: int, factor: float) -> Engine:
    def opened(collection: Collection, path: Path, queries: Vectors) -> Search:
        from seismic import SeismicIndex, get_seismic_string

        if path not in _SEISMIC:
            (file,) = path.glob("index*")
            _SEISMIC[path] = SeismicIndex.load(str(file))
        index, kind = _SEISMIC[path], get_seismic_string()
        asked = [
            (np.array([f"t{term}" for term in row.indices], dtype=kind), row.data)
            for row in one_by_one(queries)
        ]
        return lambda place, k: index.search("0", *asked[place], k, cut, factor)

    name = f"seismic cut={cut} factor={factor}"
    return Engine(name, "seismic", "seismic", _build_seismic, opened, _third)


def _third(hits: Any) -> Rows:
    return np.array([int(hit[2]) for hit in hits], dtype=np.int64)


# bm25s: needs the texts


def _tokens(texts: list[str]) -> Any:
    import bm25s
    import Stemmer

    return bm25s.tokenize(
        texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False
    )


def index_with_bm25s(texts: list[str]) -> Any:
    """Tokenise, stem and index texts with bm25s, as its README does, for Lucene's BM25."""
    import bm25s

    index = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numba")
    index.index(_tokens(texts), show_progress=False)
    return index


def _build_bm25s(collection: Collection, path: Path) -> None:
    from sluice.retrieval import load_dataset

    corpus = load_dataset(collection.facts["dataset"]).corpus
    index_with_bm25s([document.full_text for document in corpus]).save(path)


def _open_bm25s(collection: Collection, path: Path, queries: Vectors) -> Search:
    import bm25s

    index = bm25s.BM25.load(path, show_progress=False)
    index.activate_numba_scorer()
    vocabulary = index.vocab_dict
    asked = []
    for text in collection.texts()[: queries.shape[0]]:
        tokens = _tokens([text])
        words = {number: word for word, number in tokens.vocab.items()}
        known = [words[number] for number in tokens.ids[0]]
        asked.append([vocabulary[word] for word in known if word in vocabulary])

    def search(place: int, k: int) -> Any:
        return index.retrieve(
            [asked[place]], k=k, n_threads=1, show_progress=False, return_as="documents"
        )

    return search


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        _ours("exact", "exact"),
        _ours("u8", "u8"),
        _ours("exact, blocks", "exact", {"engine": "blocks"}),
        _ours("exact, terms", "exact", {"engine": "terms"}),
        Engine(
            "bmp", "bmp", "bmp", _build_bmp, _open_bmp,
            lambda hits: np.array(hits[0], dtype=np.int64),
        ),
        Engine("scipy", "transposed", "scipy", _build_transposed, _open_scipy, np.asarray, 4),
        Engine("loop", "transposed", "numba", _build_transposed, _open_loop, np.asarray, 4, 2),
        Engine("bm25s", "bm25s", "bm25s", _build_bm25s, _open_bm25s, lambda rows: rows[0]),
        *(_seismic(cut, factor) for cut, factor in SEISMIC_SETTINGS),
    )
}  # fmt: skip
OURS = ("exact", "u8", "exact, blocks", "exact, terms")
SEISMICS = tuple(name for name in ENGINES if name.startswith("seismic"))
