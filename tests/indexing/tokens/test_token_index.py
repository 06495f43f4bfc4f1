"""TokenIndex in every store against float64 brute force over what it stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import FlatIndex, Hits, TokenIndex, open_index
from sluice.indexing.tokens.search import search as searching
from sluice.indexing.tokens.storage import rows as storing
from sluice.indexing.tokens.storage.segment import STORES, Store
from tests.support.forging import forge
from tests.support.token_oracle import awkward, brute_hits, brute_scores

QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=14,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
every_store = pytest.mark.parametrize("store", STORES)


def same(found: Hits, expected: tuple[Any, Any]) -> None:
    np.testing.assert_array_equal(found.scores, expected[1])
    np.testing.assert_array_equal(found.rows, expected[0])


def stored(index: TokenIndex) -> TokenVectors:
    vectors = index.documents(np.arange(index.rows))
    assert isinstance(vectors, TokenVectors)
    return vectors


def within_halves(vectors: TokenVectors, store: str) -> TokenVectors:
    values = np.clip(vectors.values, -6e4, 6e4) if store == "float16" else vectors.values
    return TokenVectors(values, vectors.bounds)


def unit(rng: np.random.Generator, lengths: list[int], width: int) -> TokenVectors:
    values = rng.standard_normal((sum(lengths), width)).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return TokenVectors(values, np.cumsum([0, *lengths]))


@pytest.mark.thorough
@every_store
@QUICK
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 60),
    width=st.integers(1, 140),
    longest=st.integers(1, 40),
    queries=st.integers(1, 6),
    k=st.integers(1, 70),
)
def test_search_equals_brute_force(
    store: Any, seed: int, count: int, width: int, longest: int, queries: int, k: int
) -> None:
    documents = within_halves(awkward(seed, count, width, longest), store)
    asked = awkward(seed + 1, queries, width, longest)
    index = TokenIndex(store)
    for part in np.array_split(np.arange(count), 3):
        index.add(documents.rows(part))
    kept = stored(index)
    same(index.search(asked, k), brute_hits(asked, kept, k))
    for place in range(queries):  # alone as in a batch
        one = index.search(asked.rows([place]), k)
        same(one, brute_hits(asked.rows([place]), kept, k))
        scores = index.exact_scores(asked.text(place), np.arange(count))
        np.testing.assert_array_equal(scores, brute_scores(asked.text(place), kept))


@every_store
@QUICK
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from("adcso"), max_size=12))
def test_any_sequence_of_changes_equals_brute_force(
    store: Any, tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("index") / "index"
    index = TokenIndex(store)
    index.train(awkward(seed, 20, 9, 8))
    parts: list[TokenVectors] = []
    live = np.zeros(0, np.bool_)
    asked = awkward(seed + 1, 3, 9, 6)
    for place, step in enumerate(steps):
        if step == "a":
            part = within_halves(awkward(seed + place, int(rng.integers(0, 9)), 9, 8), store)
            index.add(part)
            parts.append(part)
            live = np.concatenate([live, np.ones(len(part), np.bool_)])
        elif step == "d":
            dying = np.flatnonzero(live & (rng.random(len(live)) < 0.3))
            index.delete(dying)
            live[dying] = False
        elif step == "c":
            index.compact()
            whole = TokenVectors.joined(parts, 9).rows(np.flatnonzero(live))
            parts, live = [whole], np.ones(len(whole), np.bool_)
        elif step == "s":
            index.save(folder)
        elif folder.exists():
            index.save(folder)
            opened = open_index(folder)
            assert isinstance(opened, TokenIndex)
            index = opened
        whole = TokenVectors.joined(parts, 9)
        assert (index.rows, len(index)) == (len(live), live.sum())
        kept = stored(index) if index.rows else whole
        if store == "float32":
            np.testing.assert_array_equal(kept.values, whole.values)
        np.testing.assert_array_equal(kept.bounds, whole.bounds)
        same(index.search(asked, 4), brute_hits(asked, kept, 4, live))
        keep = rng.random(len(live)) < 0.6
        same(index.search(asked, 4, keep=keep), brute_hits(asked, kept, 4, live & keep))


@pytest.mark.thorough
@every_store
@QUICK
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    edges=st.lists(st.integers(0, 40), max_size=4),
    k=st.integers(1, 45),
)
def test_shards_find_what_the_whole_finds(
    store: Any, seed: int, count: int, edges: list[int], k: int
) -> None:
    documents = within_halves(awkward(seed, count, 13, 9), store)
    asked = awkward(seed + 1, 3, 13, 6)
    sample = awkward(seed + 2, 20, 13, 9)
    whole = TokenIndex(store)
    whole.train(sample)
    whole.add(documents)
    rows, scores = [np.zeros((3, 0), np.int64)], [np.zeros((3, 0), np.float32)]
    for part in np.split(np.arange(count), sorted(min(edge, count) for edge in edges)):
        shard = TokenIndex(store)
        shard.train(sample)
        shard.add(documents.rows(part))
        found = shard.search(asked, k)
        numbers = np.append(part, -1)[found.rows]  # -1 stays
        rows.append(numbers)
        scores.append(found.scores)
    joined = Hits(np.concatenate(rows, axis=1), np.concatenate(scores, axis=1))
    filled = np.where(joined.rows < 0, count, joined.rows)  # empty places come last
    merged = Hits(filled, joined.scores).sorted(k)
    expected = whole.search(asked, k)
    np.testing.assert_array_equal(merged.scores, expected.scores)
    np.testing.assert_array_equal(np.where(merged.rows == count, -1, merged.rows), expected.rows)


@every_store
def test_one_vector_a_text_is_flat_search(store: Any) -> None:
    rng = np.random.default_rng(0)
    documents, asked = unit(rng, [1] * 50, 20), unit(rng, [1] * 4, 20)
    index = TokenIndex(store)
    index.add(documents)
    flat = FlatIndex()
    flat.add(stored(index).values)
    same(index.search(asked, 9), flat.search(asked.values, 9))


def test_scores_are_max_sim_of_sentence_transformers() -> None:
    torch = pytest.importorskip("torch")
    from sentence_transformers.util import maxsim

    rng = np.random.default_rng(1)
    documents, asked = unit(rng, [7, 3, 12], 32), unit(rng, [5, 5], 32)
    index = TokenIndex("float32")
    index.add(documents)
    theirs = maxsim(
        [torch.from_numpy(each) for each in asked], [torch.from_numpy(each) for each in documents]
    )
    for place in range(2):
        ours = index.exact_scores(asked.text(place), [0, 1, 2])
        np.testing.assert_allclose(ours, theirs[place].numpy(), atol=1e-5)


@pytest.mark.thorough
@every_store
def test_few_documents_are_scored_exactly(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds leave few candidates, whatever is found."""
    scored: list[int] = []
    plain = searching.TokenSearch.scores

    def counted(self: Any, query: int, rows: Any, parallel: bool = True) -> Any:
        scored.append(len(rows))
        return plain(self, query, rows, parallel)

    monkeypatch.setattr(searching.TokenSearch, "scores", counted)
    rng = np.random.default_rng(2)
    documents, asked = unit(rng, [20] * 2000, 64), unit(rng, [32], 64)
    index = TokenIndex(store)
    index.add(documents)
    same(index.search(asked, 5), brute_hits(asked, stored(index), 5))
    assert 5 <= sum(scored) < 400


@every_store
def test_texts_without_tokens_and_k_beyond_the_size(store: Any) -> None:
    rng = np.random.default_rng(3)
    documents, asked = unit(rng, [3, 0, 2], 6), unit(rng, [0, 4, 0], 6)
    index = TokenIndex(store)
    assert index.search(asked, 3).rows.tolist() == [[-1] * 3] * 3
    index.add(documents)
    hits = index.search(asked, 5)
    assert hits.rows.shape == (3, 5)
    assert sorted(hits.rows[1].tolist()) == [-1, -1, -1, 0, 2]
    assert (hits.rows[[0, 2]] == -1).all()
    assert index.exact_scores(asked.text(0), [0, 1]).tolist() == [-np.inf] * 2
    assert index.exact_scores(asked.text(1), [1]).tolist() == [-np.inf]
    assert index.documents([1, 1]).lengths.tolist() == [0, 0]
    index.add(TokenVectors(np.zeros((2, 6), np.float32), np.array([0, 2])))
    assert index.exact_scores(asked.text(1), [3]).tolist() == [0.0]  # zeros are tokens


@every_store
def test_equal_documents_have_equal_scores_and_go_by_row(store: Any) -> None:
    rng = np.random.default_rng(4)
    one, others = unit(rng, [9], 33), unit(rng, [9] * 5, 33)
    index = TokenIndex(store)
    index.train(others)
    for part in (others, one, others, one, one):
        index.add(part)
    hits = index.search(one, 3)
    assert hits.rows.tolist() == [[5, 11, 12]]
    assert len(set(hits.scores[0].tolist())) == 1


@every_store
def test_candidates(store: Any) -> None:
    rng = np.random.default_rng(5)
    documents, asked = unit(rng, [4] * 30, 16), unit(rng, [6] * 3, 16)
    index = TokenIndex(store)
    index.add(documents)
    candidates = np.array([[4, 9, -1, 4, 17], [1, 2, 3, 4, 5], [-1] * 5])
    hits = index.best_of(asked, candidates, 3)
    for place, line in enumerate(candidates):
        live = np.isin(np.arange(30), line[line >= 0])
        expected = brute_hits(asked.rows([place]), stored(index), 3, live)
        np.testing.assert_array_equal(hits.rows[place], expected[0][0])
        np.testing.assert_array_equal(hits.scores[place], expected[1][0])
    with pytest.raises(DataError, match="a line of rows for each of the 3 queries"):
        index.best_of(asked, candidates[:2], 3)
    with pytest.raises(DataError, match="no row 30"):
        index.best_of(asked, candidates * 0 + 30, 3)


@every_store
def test_matches_add_up_to_the_score(store: Any) -> None:
    rng = np.random.default_rng(6)
    documents, asked = unit(rng, [5, 8], 24), unit(rng, [4], 24)
    index = TokenIndex(store)
    index.add(documents)
    found = index.matches(asked.text(0), 1)
    table = asked.text(0).astype(np.float64) @ stored(index).text(1).astype(np.float64).T
    np.testing.assert_array_equal(found.positions, table.argmax(axis=1))
    np.testing.assert_allclose(found.products, table.max(axis=1), rtol=1e-6)
    score = index.exact_scores(asked.text(0), [1])[0]
    assert found.products.sum(dtype=np.float64) == pytest.approx(score, rel=1e-6)


@pytest.mark.parametrize(
    ("store", "largest", "each"),
    [
        ("float32", 0, 5 * 128 + 4),
        ("float16", 3e-4, 388),
        ("int8", 0.012, 132),
        ("residual4", 0.2, 68),
        ("residual2", 0.5, 36),
    ],
)
def test_what_a_store_keeps(store: Any, largest: float, each: int) -> None:
    rng = np.random.default_rng(7)
    centres = unit(rng, [40], 128).values
    values = centres[rng.integers(0, 40, 6000)] + 0.05 * rng.standard_normal((6000, 128))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    documents = TokenVectors(values.astype(np.float32), np.arange(0, 6001, 60))
    index = TokenIndex(store)
    index.add(documents)
    errors = np.linalg.norm(stored(index).values - documents.values, axis=1)
    assert errors.max() <= largest
    codebook = 128 * 128 if store.startswith("residual") else 0
    assert index.size_bytes <= each * 6000 + 16 * 100 + codebook + 100


def test_codebooks_depend_on_the_seed_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    documents = unit(rng, [30] * 60, 16)
    kept = []
    for seed in (1, 1, 2):
        index = TokenIndex("residual4", seed=seed)
        assert index.training_rows(60) == 60
        index.train(documents)
        assert index.training_rows(60) == 0
        index.add(documents)
        kept.append(stored(index).values)
    np.testing.assert_array_equal(kept[0], kept[1])
    assert (kept[0] != kept[2]).any()
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    np.testing.assert_array_equal(opened.documents(np.arange(60)).values, kept[2])
    opened.add(documents)  # by the saved codebook
    np.testing.assert_array_equal(opened.documents(np.arange(60, 120)).values, kept[2])


@every_store
def test_spooled_is_saved_as_the_same_index(store: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    parts = [unit(rng, rng.integers(0, 6, 20).tolist(), 10) for _ in range(4)]
    spooled, plain = TokenIndex(store), TokenIndex(store)
    spooled.spool(tmp_path / "work")
    for index in (spooled, plain):
        index.train(parts[0])
        for part in parts:
            index.add(part)
        index.delete([3, 50])
    asked = unit(rng, [5, 20], 10)
    before = plain.search(asked, 7)
    same(spooled.search(asked, 7), before)
    spooled.save(tmp_path / "spooled")
    plain.save(tmp_path / "plain")
    for name in ("bounds", "codes", "losses", "reaches", "scales"):
        ours = np.load(tmp_path / "spooled" / _generation(tmp_path / "spooled") / f"{name}.npy")
        theirs = np.load(tmp_path / "plain" / _generation(tmp_path / "plain") / f"{name}.npy")
        np.testing.assert_array_equal(ours, theirs)
    opened = open_index(tmp_path / "spooled")
    same(opened.search(asked, 7), before)
    assert opened.size_bytes == plain.size_bytes


def _generation(folder: Path) -> str:
    return next(path.parent.name for path in folder.glob("*/codes.npy"))


def test_small_additions_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "JOINED", 64)
    rng = np.random.default_rng(10)
    documents = unit(rng, [5] * 40, 8)
    index = TokenIndex("int8")
    for place in range(40):
        index.add(documents.rows([place]))
    assert 200 / 64 <= len(index._vectors.segments()) <= 12
    whole = TokenIndex("int8")
    whole.add(documents)
    np.testing.assert_array_equal(stored(index).values, stored(whole).values)
    asked = unit(rng, [6], 8)
    same(index.search(asked, 40), whole.search(asked, 40))


def test_groups_of_queries_and_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    documents, asked = unit(rng, [9] * 100, 12), unit(rng, rng.integers(0, 40, 30).tolist(), 12)
    index = TokenIndex("int8")
    index.add(documents)
    expected = brute_hits(asked, stored(index), 5)
    same(index.search(asked, 5), expected)
    monkeypatch.setattr(searching, "MOST_BOUNDS", 700)
    same(index.search(asked, 5), expected)
    with ThreadPoolExecutor(4) as pool:
        for hits in pool.map(lambda _: index.search(asked, 5), range(8)):
            same(hits, expected)


def test_other_vectors_and_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="store: unknown 'int9', expected float32"):
        TokenIndex("int9")  # type: ignore[arg-type]
    index = TokenIndex("float16")
    with pytest.raises(DataError, match="documents: ndarray, expected TokenVectors"):
        index.add(np.eye(3, dtype=np.float32))
    with pytest.raises(DataError, match="beyond 65,504"):
        index.add(TokenVectors(np.full((1, 3), 1e5, np.float32), np.array([0, 1])))
    assert index.rows == 0
    index.add(TokenVectors(np.eye(3, dtype=np.float32), np.array([0, 2, 3])))
    with pytest.raises(DataError, match="4 dimensions, this index holds 3"):
        index.search(TokenVectors(np.eye(4, dtype=np.float32), np.array([0, 4])), 2)
    with pytest.raises(DataError, match="already holds documents"):
        index.train(TokenVectors(np.eye(3, dtype=np.float32), np.array([0, 3])))
    index.save(tmp_path / "index")
    (bounds,) = (tmp_path / "index").glob("*/bounds.npy")
    np.save(bounds, np.array([0, 9, 3]))
    forge(tmp_path / "index", bounds)
    with pytest.raises(IndexFormatError, match=r"bounds\.npy"):
        open_index(tmp_path / "index")


def test_edited_centroids_stay_inside_the_codebook(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    index = TokenIndex("residual4")
    index.add(unit(rng, [5] * 20, 12))
    index.save(tmp_path / "index")
    (path,) = (tmp_path / "index").glob("*/centroids.npy")
    np.save(path, np.full(100, 65535, np.uint16))
    forge(tmp_path / "index", path)
    opened = open_index(tmp_path / "index")
    assert np.isfinite(opened.search(unit(rng, [4], 12), 5).scores).all()


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the manifest says of the index."""
    file = folder / "manifest.json"
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))


@pytest.mark.parametrize("unit_step", [0.0, -1.0, float("nan")])
def test_a_codebook_without_steps_or_centroids_is_refused(tmp_path: Path, unit_step: float) -> None:
    rng = np.random.default_rng(12)
    index = TokenIndex("residual4")
    index.add(unit(rng, [5] * 20, 12))
    index.save(tmp_path / "index")
    edited(tmp_path / "index", lambda facts: facts["index"].update(unit=unit_step))
    with pytest.raises(IndexFormatError, match="a codebook of 1 centroids in steps of"):
        open_index(tmp_path / "index")
    edited(tmp_path / "index", lambda facts: facts["index"].update(unit=0.01, centroids=0))
    (table,) = (tmp_path / "index").glob("*/table.npy")
    np.save(table, np.zeros((0, 12), np.uint8))
    forge(tmp_path / "index", table)
    with pytest.raises(IndexFormatError, match="a codebook of 0 centroids"):
        open_index(tmp_path / "index")


def test_documents_without_tokens_teach_no_codebook(tmp_path: Path) -> None:
    rng = np.random.default_rng(13)
    documents = unit(rng, [6] * 200, 16)
    index, late = TokenIndex("residual4"), TokenIndex("residual4")
    index.add(documents)
    late.add(TokenVectors.of([np.zeros((0, 16), np.float32)] * 3, 16))
    late.save(tmp_path / "index")
    late = open_index(tmp_path / "index")
    late.add(documents)
    found = late.documents(np.arange(3, 203)).values
    np.testing.assert_array_equal(found, index.documents(np.arange(200)).values)


def test_wide_vectors_of_almost_only_zeros_are_learnt() -> None:
    wide = np.zeros((40, 11_000), np.float32)
    wide[np.arange(40), np.arange(40)] = 2
    index = TokenIndex("residual4")
    index.add(TokenVectors(wide, np.arange(41)))
    np.testing.assert_allclose(index.documents(np.arange(40)).values, wide, atol=0.02)


@every_store
def test_training_sets_the_width(store: Store) -> None:
    rng = np.random.default_rng(14)
    index = TokenIndex(store, mode="gather")
    index.train(unit(rng, [4] * 50, 8))
    assert index.width == 8
    with pytest.raises(DataError, match="16 dimensions, this index holds 8"):
        index.add(unit(rng, [4] * 5, 16))


thorough = pytest.mark.skipif(
    not os.environ.get("SLUICE_THOROUGH"),
    reason="compiles kernels for ten seconds: run with SLUICE_THOROUGH=1",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("features", "stores"),
    [
        pytest.param("+avx2,+fma,+avxvnni", ["int8", "residual4"], marks=thorough),
        ("+avx2,+fma", ["residual2"]),
        pytest.param("", ["int8"], marks=thorough),
    ],
)
def test_other_processors_find_the_same(features: str, stores: list[str]) -> None:
    """With 256-bit products of bytes, with float32 products, and with the least of x86."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if ("avxvnni" in features and "avx_vnni" not in flags) or "avx2" not in flags:
        pytest.skip("this processor has no such instructions")
    code = """if True:
        import sys
        import numpy as np
        from sluice.indexing import TokenIndex
        from sluice.indexing.tokens.search.tile import BYTES
        from tests.support.token_oracle import awkward, brute_hits
        for store in sys.argv[1:]:
            for seed in range(1, 4):
                documents, asked = awkward(seed, 30, 37, 20), awkward(seed + 4, 3, 37, 40)
                index = TokenIndex(store)
                index.add(documents)
                hits = index.search(asked, 6)
                rows, scores = brute_hits(asked, index.documents(np.arange(30)), 6)
                assert (hits.rows == rows).all() and (hits.scores == scores).all()
        print(BYTES)
        """
    done = subprocess.run(
        [sys.executable, "-c", code, *stores],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "NUMBA_CPU_NAME": "x86-64",
            "NUMBA_CPU_FEATURES": features,
            "NUMBA_DISABLE_INTEL_SVML": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str("avxvnni" in features)
