"""FaissIndex: factories, training, search parameters, masks, and life beside torch."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FaissIndex, FlatIndex, open_index


def clustered(count: int, seed: int = 0, width: int = 16) -> Any:
    """Normalised vectors around a few centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((20, width))
    vectors = centres[rng.integers(0, 20, count)] + 0.4 * rng.standard_normal((count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall(found: Any, truth: Any) -> float:
    pairs = zip(found.rows, truth.rows, strict=True)
    return float(np.mean([np.isin(t[t >= 0], f).mean() for f, t in pairs if (t >= 0).any()]))


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
@pytest.mark.parametrize("batch", [1, 5, 60])
def test_flat_equals_flat(metric: Any, batch: int) -> None:
    documents, queries = clustered(500), clustered(batch, seed=2)
    ours, theirs = FlatIndex(metric), FaissIndex("Flat", metric=metric)
    ours.add(documents)
    theirs.add(documents)
    truth, found = ours.search(queries, 20), theirs.search(queries, 20)
    np.testing.assert_array_equal(found.rows, truth.rows)
    np.testing.assert_allclose(found.scores, truth.scores, atol=1e-5)


FACTORIES = {  # factory: least recall@10 unmasked
    "HNSW16": 0.95,
    "HNSW16,SQ8": 0.9,
    "SQ8": 0.9,
    "IVF8,Flat": 0.95,
    "IVF8_HNSW8,Flat": 0.95,
    "IVF8,SQ8": 0.9,
    "IVF8,PQ8x4": 0.2,
    "PQ8x4": 0.2,  # no selectors
    "PQ8x4fs": 0.2,  # no selectors
    "NSG8,Flat": 0.8,  # no selectors
    "OPQ8,IVF8,PQ8x4": 0.2,
    "IVF8,PQ8x4,RFlat": 0.8,
    "PCA12,Flat": 0.6,
}


@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_every_kind_of_factory(factory: str, metric: Any, tmp_path: Path) -> None:
    documents, queries = clustered(700), clustered(30, seed=2)
    index, truth = FaissIndex(factory, metric=metric), FlatIndex(metric)
    index.train(documents)
    assert len(index) == 0
    index.add(documents)
    truth.add(documents)
    wide: dict[str, Any] = {"nprobe": 8, "efSearch": 100, "quantizer_efSearch": 16, "k_factor": 8}
    params = {name: wide[name] for name in index._parameters.names if name in wide}
    whole = index.search(queries, 10, params=params)
    assert recall(whole, truth.search(queries, 10)) >= FACTORIES[factory]
    assert (np.diff(whole.scores, axis=1) <= 0).all()

    keep = np.random.default_rng(3).random(700) < 0.2
    dead = np.flatnonzero(keep)[::4]
    index.delete(dead)
    truth.delete(dead)
    found = index.search(queries, 10, keep=keep, params=params)
    allowed = np.setdiff1d(np.flatnonzero(keep), dead)
    assert np.isin(found.rows, [-1, *allowed]).all()
    assert recall(found, truth.search(queries, 10, keep=keep)) >= FACTORIES[factory] - 0.1
    some = index.search(queries, 10, keep=allowed[:3], params=params)
    assert np.isin(some.rows, [-1, *allowed[:3]]).all()
    assert (some.scores[some.rows < 0] == -np.inf).all()

    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    np.testing.assert_array_equal(opened.search(queries, 10, params=params).rows,
                                  index.search(queries, 10, params=params).rows)  # fmt: skip
    moved = opened.compact()
    assert (len(opened), opened.rows) == (700 - len(dead),) * 2
    truth.compact()
    after = opened.search(queries, 10, params=params)
    assert recall(after, truth.search(queries, 10)) >= FACTORIES[factory] - 0.1
    assert moved.max() == opened.rows - 1


def test_search_parameters_do_not_stay() -> None:
    documents, queries = clustered(800), clustered(20, seed=2)
    index = FaissIndex("IVF16,Flat", metric="ip")
    index.add(documents)
    before = index.search(queries, 10)
    wide = index.search(queries, 10, params={"nprobe": 16})
    after = index.search(queries, 10)
    np.testing.assert_array_equal(before.rows, after.rows)
    assert (wide.rows != before.rows).any()
    # A mask does not fall back to FAISS's own default of one probe.
    assert index._engine is not None
    index._engine.index.nprobe = 16
    everything = index.search(queries, 10, keep=np.ones(800, dtype=bool))
    np.testing.assert_array_equal(everything.rows, wide.rows)
    with pytest.raises(ConfigError, match=r"unknown search parameter 'efSearch'.*takes nprobe"):
        index.search(queries, 10, params={"efSearch": 4})


def test_bad_search_parameters_are_refused() -> None:
    index = FaissIndex("IVF2_HNSW4,Flat,RFlat")
    index.add(clustered(100))
    for name in ("nprobe", "k_factor", "quantizer_efSearch", "max_codes"):
        assert index.search(clustered(1), 1, params={name: np.int64(2)}).rows.shape == (1, 1)
        for wrong in (0, -1, "x", 2.5, None, True, 2**40):
            with pytest.raises(ConfigError, match=f"params: {name} is {wrong}|'x', expected a wh"):
                index.search(clustered(1), 1, params={name: wrong})


@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize(
    "factory", ["HNSW8", "NSG8", "RR16,HNSW8", "HNSW8,RFlat", "IVF64,Flat", "IVF8_HNSW4,SQ8"]
)
def test_lines_are_full_while_rows_are_allowed(
    factory: str, metric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.indexing.faiss.engines.STORED_BLOCK", 7)
    # Copies of a document crowd its neighbours out of a graph, and parts of it are out of reach.
    documents, queries = np.repeat(clustered(150), 5, axis=0), clustered(20, seed=2)
    index, truth = FaissIndex(factory, metric=metric), FlatIndex(metric)
    index.add(documents)
    truth.add(documents)
    kept = np.arange(0, 750, 25)
    found = index.search(queries, 40, keep=kept)
    expected = truth.search(queries, 40, keep=kept)
    assert ((found.rows >= 0).sum(axis=1) == 30).all()
    np.testing.assert_array_equal(np.sort(found.rows), np.sort(expected.rows))
    np.testing.assert_allclose(found.scores, expected.scores, atol=0.05)
    index.delete(np.setdiff1d(np.arange(750), kept))
    np.testing.assert_array_equal(index.search(queries, 40).rows, found.rows)


def test_inverted_lists_out_of_reach_are_scored_too() -> None:
    documents, queries = clustered(300), clustered(3, seed=2)
    index, truth = FaissIndex("L2norm,IVF8,Flat"), FlatIndex("cosine")
    index.add(documents)
    truth.add(documents)
    allowed = np.arange(300) % 10 == 3
    assert index._engine is not None
    scores, rows = index._engine.stored_best(queries * 2, 5, allowed)
    expected = truth.search(queries, 5, keep=allowed)
    np.testing.assert_array_equal(rows, expected.rows)
    np.testing.assert_allclose(scores, expected.scores, atol=1e-5)


def test_training_sizes(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError, match=r"10 training vectors for 32 centroids; .* 1,248"):
        FaissIndex("IVF32,Flat", metric="ip").train(clustered(10))
    with pytest.raises(DataError, match="100 training vectors for 256 centroids"):
        FaissIndex("PQ8", metric="ip").add(clustered(100))
    with caplog.at_level(logging.INFO, "sluice"):
        index = FaissIndex("IVF16,Flat", metric="ip", train_size=100)
        index.add(clustered(300))
    assert "100 training vectors for 16 centroids; at least 624 are recommended" in caplog.text
    assert "trained on its 300 vectors" in caplog.text
    with pytest.raises(DataError, match="already holds documents"):
        index.train(clustered(300))
    with pytest.raises(ConfigError, match="train_size is 0"):
        FaissIndex("Flat", train_size=0)


def test_a_failed_training_leaves_the_former() -> None:
    index = FaissIndex("IVF16,Flat")
    index.train(clustered(700))
    with pytest.raises(DataError, match="3 training vectors for 16 centroids"):
        index.train(clustered(3))
    assert index.width == 16
    index.add(clustered(5))
    assert len(index) == 5


def test_wrong_settings_are_refused() -> None:
    settings: dict[str, Any] = {"train_size": "5", "seed": -1, "factory": None}
    for name, wrong in settings.items():
        with pytest.raises(ConfigError, match=f"{name} is {wrong!r}, expected a"):
            FaissIndex(**{"factory": "Flat", name: wrong})
    assert FaissIndex("Flat", train_size=np.int64(5)).train_size == 5  # type: ignore[arg-type]


def test_factory_strings_are_checked() -> None:
    with pytest.raises(ConfigError, match="cannot parse 'Flatt'"):
        FaissIndex("Flatt")
    index = FaissIndex("PQ5")
    with pytest.raises(ConfigError, match=r"cannot make 'PQ5' for 16 dimensions.*multiple"):
        index.add(clustered(300))
    assert len(index) == 0
    with pytest.raises(ConfigError, match="expected ip, cosine or l2"):
        FaissIndex("Flat", metric="dot")  # type: ignore[arg-type]


def test_cosine_expects_normalised_vectors() -> None:
    vectors = clustered(10)
    index = FaissIndex("Flat", metric="cosine")
    index.add(vectors * np.float32(1.0005))
    vectors[3] *= 2
    for call in (index.add, lambda v: index.search(v, 3)):
        with pytest.raises(DataError, match=r"row 3 has norm 2, .*expects normalised"):
            call(vectors)
    vectors[3] = 0  # an empty text
    index.add(vectors)
    assert len(index) == 20


def test_a_foreign_faiss_file_is_refused(tmp_path: Path) -> None:
    from sluice.indexing.faiss.engines import FloatEngine

    small = FaissIndex("Flat")
    small.add(clustered(4))
    folder = tmp_path / "index"
    small.save(folder)
    file = next(folder.glob("g*/index.faiss"))
    with pytest.raises(IndexFormatError, match="4 vectors of 16 dimensions, the manifest says 5"):
        FloatEngine.open("Flat", "ip", file, 16, 5)
    file.write_bytes(b"nonsense")
    with pytest.raises(IndexFormatError, match="faiss cannot read it"):
        FloatEngine.open("Flat", "ip", file, 16, 4)


@pytest.mark.thorough
def test_beside_torch() -> None:
    """Both bring an OpenMP runtime; training and searching after torch must not hang or crash."""
    program = """
import torch
torch.ones(64, 64) @ torch.ones(64, 64)
import numpy as np
from indexing import FaissIndex
vectors = np.random.default_rng(0).standard_normal((2000, 32)).astype("float32")
index = FaissIndex("IVF16,Flat", metric="ip")
index.add(vectors)
torch.ones(64, 64) @ torch.ones(64, 64)
print(index.search(vectors[:200], 5, params={"nprobe": 16}).rows.shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "(200, 5)"), done.stderr
