"""Collections of sparse vectors for ``bench_sparse.py``: made up, or encoded from real texts.

The made-up one has the shape of SPLADE over passages: 30,522 terms, about 119 a document and 42 a
query, saturated weights, documents in the order of their topics as after a graph bisection.
"Easy" queries come from one topic; "hard" ones mix two documents with common terms, so that many
documents score alike and bounds prune less.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.disk.generations import replaced_folder

log = logging.getLogger("sluice")

VOCABULARY = 30_522
QUERIES = 500
DOCUMENTS_PER_TOPIC = 300
TOPICS_PER_THEME = 25
TOPIC_TERMS, THEME_TERMS = 220, 600
CHUNK = 50_000  # documents read at a time

Vectors = sparse.csr_array[np.float32]
Integers = NDArray[np.integer[Any]]


class Collection:
    """Sparse document vectors and query sets in a folder; read in parts, so that memory is small.

    Files: ``starts.npy``, ``terms.npy``, ``weights.npy`` (a CSR matrix with ascending terms),
    ``queries-<kind>.npz``, ``facts.json`` (counts; ``dataset`` where there are real texts) and
    ``texts.json`` (of the queries, likewise).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        self.documents: int = self.facts["documents"]
        self.width: int = self.facts["width"]

    def part(self, first: int, last: int) -> Vectors:
        """Return documents ``first`` to ``last``; the files are mapped for this call alone."""
        starts = np.load(self.folder / "starts.npy", mmap_mode="r")[first : last + 1]
        span = slice(int(starts[0]), int(starts[-1]))
        terms, weights = (
            np.array(np.load(self.folder / f"{name}.npy", mmap_mode="r")[span])
            for name in ("terms", "weights")
        )
        return sparse.csr_array(
            (weights, terms, np.asarray(starts - starts[0])), shape=(last - first, self.width)
        )

    def parts(self, most: int | None = None) -> Iterator[Vectors]:
        """Yield the documents (the first ``most``) in chunks."""
        count = self.documents if most is None else min(most, self.documents)
        for first in range(0, count, CHUNK):
            yield self.part(first, min(first + CHUNK, count))

    def queries(self, kind: str, most: int) -> Vectors:
        """Return the first ``most`` queries of the set ``kind``."""
        with np.load(self.folder / f"queries-{kind}.npz") as held:
            triple = (held["weights"], held["terms"], held["starts"])
        matrix: Vectors = sparse.csr_array(triple, shape=(len(triple[2]) - 1, self.width))
        return matrix[:most]

    def texts(self) -> list[str]:
        """Return the queries' texts."""
        texts: list[str] = json.loads((self.folder / "texts.json").read_text())
        return texts


def write(
    folder: Path, documents: Vectors, queries: dict[str, Vectors], texts: Sequence[str] = (),
    **facts: Any,
) -> None:  # fmt: skip
    """Write a collection in one step: after a kill the folder is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    documents.sort_indices()
    with replaced_folder(folder) as made:
        np.save(made / "starts.npy", documents.indptr.astype(np.int64))
        np.save(made / "terms.npy", documents.indices.astype(np.int32))
        np.save(made / "weights.npy", documents.data.astype(np.float32))
        for kind, matrix in queries.items():
            matrix.sort_indices()
            np.savez(
                made / f"queries-{kind}.npz", starts=matrix.indptr,
                terms=matrix.indices.astype(np.int32), weights=matrix.data.astype(np.float32),
            )  # fmt: skip
        shape = {"documents": documents.shape[0], "width": documents.shape[1]}
        per_document = documents.nnz / max(documents.shape[0], 1)
        carrying = np.bincount(documents.indices, minlength=documents.shape[1])
        measured = {
            "terms_per_document": round(per_document, 1),
            "terms_per_query": {
                k: round(m.nnz / max(m.shape[0], 1), 1) for k, m in queries.items()
            },
            # Shared terms of a random query and document: SPLADE's FLOPS measure.
            "overlap": {
                kind: round(float(carrying[m.indices].sum()) / m.shape[0] / documents.shape[0], 2)
                for kind, m in queries.items()
                if m.shape[0]
            },
            "weights_p50_p99": np.percentile(documents.data, [50, 99]).round(2).tolist(),
        }
        (made / "texts.json").write_text(json.dumps(list(texts)) + "\n")
        text = json.dumps({**shape, **measured, **facts}, indent=1)
        (made / "facts.json").write_text(text + "\n")


class _Topics(NamedTuple):
    """What the documents are about: each topic belongs to a theme; both have lists of terms."""

    home: Integers  # [documents] topic of each document, ascending
    theme: Integers  # [topics]
    terms: Integers  # [topics, TOPIC_TERMS]
    weights: NDArray[np.float64]
    theme_terms: Integers  # [themes, THEME_TERMS]
    theme_weights: NDArray[np.float64]
    common: Integers  # [VOCABULARY] all terms, the most frequent first
    common_weights: NDArray[np.float64]


def _topics(documents: int, rng: np.random.Generator) -> _Topics:
    topics = max(200, documents // DOCUMENTS_PER_TOPIC)
    themes = max(20, topics // TOPICS_PER_THEME)
    frequency = np.empty(VOCABULARY)
    zipf = 1.0 / np.arange(1, VOCABULARY + 1) ** 0.75
    frequency[rng.permutation(VOCABULARY)] = zipf / zipf.sum()  # a term's id says nothing of it
    flat = 0.7 * np.log(frequency)

    def lists(count: int, size: int) -> Integers:
        """Draw lists of distinct terms, frequent ones likelier (the Gumbel trick), then shuffle."""
        drawn = np.empty((count, size), dtype=np.int32)
        for row in drawn:
            keys = flat + rng.gumbel(size=VOCABULARY)
            row[:] = rng.permutation(np.argpartition(-keys, size)[:size])
        return drawn

    def decaying(shape: tuple[int, int], top: float, scale: float, floor: float) -> Any:
        line = top * np.exp(-np.arange(shape[1]) / scale) + floor
        return line * np.exp(0.3 * rng.standard_normal(shape))

    popularity = rng.lognormal(0.0, 0.7, topics)
    return _Topics(
        home=np.sort(rng.choice(topics, size=documents, p=popularity / popularity.sum())),
        theme=np.sort(rng.integers(0, themes, topics)),
        terms=lists(topics, TOPIC_TERMS),
        weights=decaying((topics, TOPIC_TERMS), 2.2, 45.0, 0.12),
        theme_terms=lists(themes, THEME_TERMS),
        theme_weights=decaying((themes, THEME_TERMS), 0.9, 150.0, 0.08),
        common=np.argsort(-frequency).astype(np.int32),
        common_weights=0.10 + 0.55 * rng.random(VOCABULARY) ** 2,
    )


def _easy(topics: _Topics, rng: np.random.Generator) -> Vectors:
    """Queries about one topic, with its theme's words, common words, and two to four of weight."""
    drawn: list[dict[int, float]] = []
    for topic in topics.home[rng.integers(0, len(topics.home), QUERIES)]:
        size = int(np.clip(rng.normal(43, 12), 12, 90))
        query: dict[int, float] = {}
        for place in (TOPIC_TERMS * rng.random(int(0.55 * size)) ** 2.4).astype(int):
            term = int(topics.terms[topic, place])
            value = topics.weights[topic, place] * np.exp(0.5 * rng.standard_normal())
            query[term] = max(query.get(term, 0.0), float(value))
        theme = topics.theme[topic]
        for place in (THEME_TERMS * rng.random(int(0.25 * size)) ** 2.2).astype(int):
            value = topics.theme_weights[theme, place] * np.exp(0.5 * rng.standard_normal())
            query.setdefault(int(topics.theme_terms[theme, place]), float(value))
        while len(query) < size:
            term = int(topics.common[int(VOCABULARY * rng.random() ** 7.5)])
            query.setdefault(term, float(0.15 * np.exp(0.8 * rng.standard_normal())))
        query = {term: float(np.log1p(value)) for term, value in query.items()}
        for term in sorted(query, key=query.__getitem__)[-int(rng.integers(2, 5)) :]:
            query[term] = min(1.6 * query[term], 3.2)
        drawn.append(query)
    return _rows(drawn)


def _hard(documents: Vectors, rng: np.random.Generator) -> Vectors:
    """Queries half from a document and one not far from it, half from common terms."""
    common = np.argsort(-np.bincount(documents.indices, minlength=VOCABULARY))[:3000]
    drawn: list[dict[int, float]] = []
    for _ in range(QUERIES):
        first = int(rng.integers(0, documents.shape[0]))
        second = int(np.clip(first + rng.integers(-4000, 4000), 0, documents.shape[0] - 1))
        query: dict[int, float] = {}
        for document, share in ((first, 1.0), (second, 0.6)):
            span = slice(documents.indptr[document], documents.indptr[document + 1])
            terms, weights = documents.indices[span], documents.data[span].astype(np.float64)
            chances, size = weights / weights.sum(), min(12, len(terms))
            for place in rng.choice(len(terms), size, replace=False, p=chances):
                value = float(share * weights[place] * np.exp(0.5 * rng.standard_normal()))
                query[int(terms[place])] = max(query.get(int(terms[place]), 0.0), min(value, 3.2))
        while len(query) < 42:
            term = int(common[int(len(common) * rng.random() ** 2.2)])
            query.setdefault(term, float(0.25 * np.exp(0.8 * rng.standard_normal())))
        drawn.append(query)
    return _rows(drawn)


def _rows(drawn: list[dict[int, float]]) -> Vectors:
    starts = np.cumsum([0, *map(len, drawn)])
    terms = np.array([term for query in drawn for term in query], dtype=np.int32)
    weights = np.array([value for query in drawn for value in query.values()], dtype=np.float32)
    matrix: Vectors = sparse.csr_array((weights, terms, starts), shape=(len(drawn), VOCABULARY))
    matrix.sort_indices()
    return matrix


def synthetic(root: Path, documents: int, seed: int = 7) -> Path:
    """Return the folder of the made-up collection of that size, made on first use."""
    folder = root / f"splade-like-{documents}"
    if not (folder / "facts.json").exists():
        from bench_sparse_kernels import draw_documents

        rng = np.random.default_rng(seed)
        topics = _topics(documents, rng)
        lengths = np.clip(rng.lognormal(np.log(112), 0.35, documents), 20, 400).astype(np.int64)
        starts, terms, weights = draw_documents(lengths, *topics, seed)
        matrix: Vectors = sparse.csr_array((weights, terms, starts), shape=(documents, VOCABULARY))
        matrix.has_sorted_indices = True
        write(folder, matrix, {"easy": _easy(topics, rng), "hard": _hard(matrix, rng)})
        log.info("made %s: %s", folder.name, Collection(folder).facts)
    return folder


def texts_folder() -> Path | None:
    """Return where the real collections are, in BEIR layout, if anywhere."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SLUICE_DATA", beside))
    return folder if folder.is_dir() else None


def real(root: Path, dataset: str, splade: str | None = None) -> Path:
    """Return the folder of a real collection's vectors: BM25's, or those of a SPLADE model.

    Queries without a term are left out (peers fail on them); ``texts.json`` has those that stay.
    """
    from sluice import BM25Encoder, SpladeEncoder, load_dataset

    encoder = None if splade is None else SpladeEncoder.from_pretrained(splade, dtype="auto")
    kind = "bm25" if encoder is None else f"splade-{encoder.fingerprint[:12]}"
    folder = root / f"{Path(dataset).name}-{kind}"
    if not (folder / "facts.json").exists():
        data = load_dataset(dataset)
        texts = [document.full_text for document in data.corpus]
        asked = list(data.queries.values())
        if encoder is None:
            counted = BM25Encoder()
            documents = counted.fit_documents(texts)
            queries = counted.encode_queries(asked)
        else:
            documents = encoder.encode_documents(texts)
            queries = encoder.encode_queries(asked)
        some = np.flatnonzero(np.diff(queries.indptr))
        write(
            folder, documents, {"test": queries[some]}, [asked[place] for place in some],
            dataset=dataset,
        )  # fmt: skip
        log.info("made %s: %s", folder.name, Collection(folder).facts)
    return folder
