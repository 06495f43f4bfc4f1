"""Every kind of FAISS index through its whole life, and what each of them refuses."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FaissIndex, FlatIndex, Hits, open_index

WIDTH, COUNT = 32, 900


def clustered(count: int, seed: int = 0) -> Any:
    """Normalised vectors around a few centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((20, WIDTH))
    vectors = centres[rng.integers(0, 20, count)] + 0.5 * rng.standard_normal((count, WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall(found: Hits, truth: Hits) -> float:
    pairs = zip(found.rows, truth.rows, strict=True)
    return float(np.mean([np.isin(t[t >= 0], f).mean() for f, t in pairs if (t >= 0).any()]))


class Type(NamedTuple):
    """Least recall@10 as it is and rescored from 10 k candidates, and its parameters."""

    plain: float
    rescored: float
    parameters: tuple[str, ...] = ()
    metric: Any = "ip"
    grows: bool = True


LISTS = ("nprobe", "max_codes")
TYPES = {
    "Flat": Type(1.0, 1.0),
    "HNSW32": Type(0.95, 0.95, ("efSearch",)),
    "HNSW16,SQ8": Type(0.9, 0.95, ("efSearch",)),
    "IVF16,Flat": Type(1.0, 1.0, LISTS),
    "IVF16,SQ8": Type(0.9, 0.99, LISTS),
    "IVF16,PQ8x4": Type(0.25, 0.8, LISTS),
    "OPQ8,IVF16,PQ8x4": Type(0.25, 0.8, LISTS),
    "SQ8": Type(0.9, 1.0),
    "SQfp16": Type(0.98, 1.0),
    "SQbf16": Type(0.9, 1.0),
    "PQ8": Type(0.35, 0.9),
    "PQ8x4": Type(0.25, 0.8),
    "PQ8x4fs": Type(0.2, 0.75),
    "IVF16,PQ8x4fs": Type(0.2, 0.75, LISTS),
    "PCA16,Flat": Type(0.3, 0.85),
    "L2norm,Flat": Type(0.99, 1.0),
    "RR32,Flat": Type(0.99, 1.0),
    "PCAR16,IVF16,SQ8": Type(0.3, 0.85, LISTS),
    "IVF16,PQ8x4,RFlat": Type(0.25, 0.8, ("k_factor", *LISTS)),
    "PQ8x4fs,RFlat": Type(0.25, 0.75, ("k_factor",)),
    "NSG32": Type(0.8, 0.8, grows=False),
    "LSH": Type(0.2, 0.6, metric="l2"),
    "ITQ32,LSH": Type(0.15, 0.6, metric="l2"),
    "IVF4,RQ4x4fs_Nrq2x4": Type(0.1, 0.3, metric="l2"),
    "IVF16,RaBitQ": Type(0.15, 0.6, LISTS),
    "BFlat": Type(0.2, 0.6),
    "BHNSW32": Type(0.2, 0.6, ("efSearch",)),
    "BIVF8": Type(0.15, 0.6, LISTS),
}
WIDE = {"nprobe": 16, "efSearch": 128, "k_factor": 4}
UNREADABLE = ("ITQ32,LSH",)


@pytest.mark.thorough
@pytest.mark.parametrize("rescore", [None, 10])
@pytest.mark.parametrize("factory", TYPES)
def test_a_whole_life(factory: str, rescore: int | None, tmp_path: Path) -> None:
    kind = TYPES[factory]
    documents, queries = clustered(COUNT), clustered(40, seed=2)
    params = {name: value for name, value in WIDE.items() if name in kind.parameters}
    index = FaissIndex(factory, metric=kind.metric, rescore=rescore, params=params)
    truth = FlatIndex(kind.metric)
    index.train(documents)
    for part in np.split(documents, [600]) if kind.grows else [documents]:
        index.add(part)
    truth.add(documents)
    least = kind.plain if rescore is None else kind.rescored
    whole = index.search(queries, 10)
    assert recall(whole, truth.search(queries, 10)) >= least
    assert (np.diff(whole.scores, axis=1) <= 0).all()

    dead = np.random.default_rng(4).choice(COUNT, 200, replace=False)
    keep = np.random.default_rng(5).random(COUNT) < 0.3
    for each in (index, truth):
        each.delete(dead)
    assert recall(index.search(queries, 10), truth.search(queries, 10)) >= least - 0.05
    found, exact = (each.search(queries, 10, keep=keep) for each in (index, truth))
    assert np.isin(found.rows, np.setdiff1d(np.flatnonzero(keep), dead)).all()
    assert recall(found, exact) >= least - 0.05

    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, FaissIndex)
    assert (opened.params, opened.rescore, opened.rows) == (params, rescore, COUNT)
    assert opened.size_bytes == index.size_bytes
    for keeping in (None, keep):
        same, here = (each.search(queries, 10, keep=keeping) for each in (opened, index))
        np.testing.assert_array_equal(same.rows, here.rows)
        np.testing.assert_array_equal(same.scores, here.scores)

    if factory in UNREADABLE and rescore is None:
        with pytest.raises(ConfigError, match=f"compact: faiss '{factory}' cannot give"):
            opened.compact()
        return
    opened.compact()
    truth.compact()
    assert len(opened) == opened.rows == COUNT - 200
    assert recall(opened.search(queries, 10), truth.search(queries, 10)) >= least - 0.05
    if kind.grows:
        np.testing.assert_array_equal(opened.add(documents[:1]), [COUNT - 200])
    else:
        with pytest.raises(ConfigError, match="IndexNSGFlat cannot grow"):
            opened.add(documents[:1])
        assert opened.rows == COUNT - 200


@pytest.mark.parametrize("factory", TYPES)
def test_each_type_says_which_parameters_it_takes(factory: str) -> None:
    kind = TYPES[factory]
    taken = ", ".join(kind.parameters) or r"none \(faiss has no search parameters for Index\w+\)"
    with pytest.raises(ConfigError, match=f"unknown search parameter 'depth'; .* takes {taken}"):
        FaissIndex(factory, metric=kind.metric, params={"depth": 3})
    index = FaissIndex(factory, metric=kind.metric)
    index.train(clustered(300))
    index.add(clustered(300))
    with pytest.raises(ConfigError, match=f"this index takes {taken}"):
        index.search(clustered(2), 3, params={"depth": 3})
    for name in kind.parameters:
        assert index.search(clustered(2), 3, params={name: 5}).rows.shape == (2, 3)


def test_types_without_selectors_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    index = FaissIndex("PQ8x4fs")
    index.add(clustered(400))
    index.delete([3])
    for _ in range(3):
        index.search(clustered(2), 5)
    said = [record for record in caplog.records if "takes no selector" in record.getMessage()]
    assert len(said) == 1
    assert "IndexPQFastScan takes no selector; longer lists are fetched" in caplog.text


def test_rescoring_beats_the_codes() -> None:
    documents, queries = clustered(2000), clustered(50, seed=2)
    truth = FlatIndex("ip")
    truth.add(documents)
    exact = truth.search(queries, 10)
    for factory in ("PQ8x4fs", "IVF4,PQ8x4", "BFlat"):
        index = FaissIndex(factory, rescore=8, params={"nprobe": 4} if "IVF" in factory else None)
        index.add(documents)
        plain, rescored = (recall(index.search(queries, 10, params={"rescore": r}), exact)
                           for r in (0, 8))  # fmt: skip
        assert rescored > plain + 0.2


def test_what_faiss_cannot_is_refused_at_once() -> None:
    wrong: dict[str, str] = {
        "LSH": "makes 'LSH' for metric 'l2' only, not for 'ip'",
        "IDMap,Flat": "numbers its rows itself; drop IDMap",
        "NNDescent16,Flat": "cannot parse",
        "HNSW16_2x8": "cannot parse",
        "BNothing": "cannot parse 'BNothing' as a binary index; examples: BFlat, BHNSW32",
    }
    for factory, message in wrong.items():
        with pytest.raises(ConfigError, match=message):
            FaissIndex(factory)
    with pytest.raises(ConfigError, match="metric is 'l2' with the binary index 'BFlat'"):
        FaissIndex("BFlat", metric="l2")
    for settings, message in (
        ({"rescore": 0}, "rescore is 0, expected a whole number, 1 to"),
        ({"rescore": "2"}, "rescore is '2'"),
        ({"params": {"nprobe": 0}}, "params: nprobe is 0"),
        ({"params": 3}, "params is 3, expected search parameters by name, such as"),
        ({"params": {"nprobes": 1}}, "'nprobes'.* did you mean 'nprobe'"),
        ({"params": {"rescore": 4}}, r"make the index with rescore=\.\.\. itself"),
    ):
        with pytest.raises(ConfigError, match=message):
            FaissIndex("IVF4,Flat", **settings)
    index = FaissIndex("Flat")
    index.add(clustered(3))
    with pytest.raises(ConfigError, match=r"takes none .*make the index with rescore="):
        index.search(clustered(1), 1, params={"rescore": 2})


def test_a_graph_too_small_to_build_leaves_the_index_empty() -> None:
    index = FaissIndex("NSG16", rescore=2)
    with pytest.raises(DataError, match="cannot build a graph smaller than 100"):
        index.add(clustered(20))
    assert len(index) == 0
    index.add(clustered(300))
    assert recall(index.search(clustered(5), 1), index.search(clustered(5), 1)) == 1


def test_training_rows() -> None:
    assert FlatIndex().training_rows(1000) == 0
    for factory, wanted in (
        ("Flat", 0),
        ("HNSW32", 0),
        ("BFlat", 0),
        ("IVF1000,Flat", 256_000),
        ("BIVF100", 25_600),
        ("OPQ16,PQ16x4fs", 65_536),
        ("IVF16,PQ16", 65_536),
        ("SQ8", 16_384),
        ("PQ11", 65_536),
    ):
        assert FaissIndex(factory).training_rows(10**7) == wanted
        assert FaissIndex(factory).training_rows(100) == min(wanted, 100)
    index = FaissIndex("IVF16,Flat", train_size=700)
    assert index.training_rows(10**6) == 700
    index.train(clustered(700))
    assert index.training_rows(10**6) == 0


def test_values_that_overflow_in_kmeans_are_refused_without_an_abort() -> None:
    program = """
import numpy as np
from sluice.encoders.foundation.errors import DataError
from indexing import FaissIndex
normal = np.random.default_rng(0).standard_normal((100, 32)).astype("float32")
for factory in ("IVF4,Flat", "PQ8x4", "IVF4,PQ8x4fs"):
    for wrong in (normal * np.float32(1e19), normal * np.float32(3e37)):
        index = FaissIndex(factory)
        for step in (index.train, index.add):
            try:
                step(wrong)
            except DataError as error:
                assert "scale the vectors down" in str(error), error
            else:
                raise SystemExit(f"{factory} took them")
        index.train(normal * np.float32(1e16))
        index.add(normal * np.float32(1e16))
        index.search(wrong, 5)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_blas_is_used_for_training_adding_and_searching() -> None:
    import faiss

    index, documents = FaissIndex("IVF4,Flat"), clustered(200)
    steps: list[Any] = [index.train, index.add, lambda vectors: index.search(vectors, 3)]
    for step in steps:
        faiss.cvar.distance_compute_blas_threshold = 128_000
        step(documents)
        assert faiss.cvar.distance_compute_blas_threshold == 16 * WIDTH


def test_warnings_of_training_name_the_factory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sluice"):
        FaissIndex("BIVF8").add(clustered(100))
    assert "'BIVF8': 100 training vectors for 8 centroids" in caplog.text


def test_an_opq_needs_as_many_vectors_as_dimensions() -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 384)).astype(np.float32)
    with pytest.raises(DataError, match="300 training vectors for an OPQ of 384 dimensions"):
        FaissIndex("OPQ48,PQ48x4").train(vectors)
