"""Parts searched in one pass: to the bit the whole, and each part by itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.indexing import FlatIndex, Index, InvertedIndex
from sluice.indexing.flat import index as flat_index
from sluice.indexing.inverted import index as inverted_index
from sluice.indexing.wrappers import fan_out
from sluice.indexing.wrappers.fan_out import ShardRows
from sluice.indexing.wrappers.sharded import ShardedIndex

DOCUMENTS, WIDTH, SHARDS = 400, 12, 3
SEARCH = FlatIndex._search
Make = Callable[[], Index]

KINDS: dict[str, Make] = {
    "ip": FlatIndex,
    "cosine": lambda: FlatIndex("cosine", first_pass="int8"),
    "l2": lambda: FlatIndex("l2", first_pass="bf16"),
    "inverted": InvertedIndex,
    "small blocks": lambda: InvertedIndex(block_size=4),
    "ordered": lambda: InvertedIndex(order="cluster", block_size=8),
}


def drawn(count: int, seed: int, kind: str) -> Any:
    """Vectors of small whole numbers: many are equal, and many scores tie."""
    numbers = np.random.default_rng(seed).integers(0, 3, (count, WIDTH)).astype(np.float32)
    if kind in ("ip", "cosine", "l2"):
        return numbers - 1
    numbers[:, 5] = 0
    return sparse.csr_array(numbers * (np.random.default_rng(seed).random((count, WIDTH)) < 0.5))


def owners(count: int = DOCUMENTS) -> NDArray[np.int64]:
    return np.random.default_rng(7).integers(0, SHARDS, count)


def pair(kind: str) -> tuple[Index, ShardedIndex]:
    """Return an index and its documents in shards, both with room for as many again."""
    whole = KINDS[kind]()
    sharded = ShardedIndex.split(KINDS[kind](), ShardRows.split(owners(2 * DOCUMENTS), SHARDS))
    for index in (whole, sharded):
        index.add(drawn(DOCUMENTS, 1, kind))
    return whole, sharded


def check(whole: Index, sharded: ShardedIndex, kind: str, **options: Any) -> None:
    for count in (1, 9):
        queries = drawn(count, 2, kind)
        for k in (1, 10, 2 * DOCUMENTS):
            one, other = (index.search(queries, k, **options) for index in (whole, sharded))
            assert np.array_equal(one.rows, other.rows)
            assert np.array_equal(one.scores, other.scores)


def in_one_pass(sharded: ShardedIndex) -> bool:
    return sharded._joined_parts._made[-1] is not None


@pytest.fixture(params=["numpy", "kernels"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let numpy search, as it does before kernels are loaded, or the kernels."""
    if request.param == "numpy":
        monkeypatch.setattr(flat_index, "numpy_suffices", lambda _: True)
        monkeypatch.setattr(inverted_index, "numpy_suffices", lambda _: True)
        monkeypatch.setattr(inverted_index, "kernels_loaded", lambda: False)
    else:
        monkeypatch.setattr(flat_index, "numpy_suffices", lambda _: False)
        monkeypatch.setattr(inverted_index, "kernels_loaded", lambda: True)
    return str(request.param)


@pytest.mark.parametrize(
    ("kind", "copied"),
    [*((kind, 0) for kind in KINDS), *((kind, 1 << 24) for kind in ("ip", "cosine", "l2"))],
)
def test_one_pass_equals_the_whole_over_changes(
    kind: str, engine: str, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat_index, "COPIED", copied)
    whole, sharded = pair(kind)
    mask = np.random.default_rng(3).random(DOCUMENTS) < 0.3
    check(whole, sharded, kind)
    check(whole, sharded, kind, keep=mask)
    for index in (whole, sharded):
        index.delete(np.flatnonzero(mask)[::2])
    check(whole, sharded, kind)
    check(whole, sharded, kind, keep=mask)
    for index in (whole, sharded):
        index.add(drawn(60, 4, kind))
    check(whole, sharded, kind)
    assert in_one_pass(sharded)


@pytest.mark.parametrize("name", ["blocks", "terms"])
@pytest.mark.parametrize("kind", ["inverted", "small blocks", "ordered"])
def test_one_pass_of_each_engine(kind: str, name: str) -> None:
    whole, sharded = pair(kind)
    check(whole, sharded, kind, params={"engine": name})
    mask = np.random.default_rng(3).random(DOCUMENTS) < 0.3
    check(whole, sharded, kind, params={"engine": name}, keep=mask)


class Counted:
    """Counts the searches of a part; it may fail."""

    def __init__(self, part: Index, error: Exception | None = None) -> None:
        self.part, self.error, self.searches = part, error, 0
        self.search, part.search = part.search, self.counted  # type: ignore[method-assign]

    def counted(self, *args: Any, **options: Any) -> Any:
        self.searches += 1
        if self.error is not None:
            raise self.error
        return self.search(*args, **options)


@pytest.mark.parametrize("kind", ["ip", "inverted"])
def test_parts_are_asked_singly_where_patience_or_threads_call_for_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, sharded = pair(kind)
    parts = [Counted(part) for part in sharded.parts]
    check(whole, sharded, kind)
    assert [part.searches for part in parts] == [0, 0, 0]
    queries = drawn(1, 2, kind)
    hits = sharded.search(queries, 5, params={"deadline_ms": 60_000})
    assert [part.searches for part in parts] == [1, 1, 1]
    assert np.array_equal(hits.rows, whole.search(queries, 5).rows)
    monkeypatch.setattr(fan_out, "LARGE", 1)
    monkeypatch.setattr(fan_out, "thread_count", lambda: 2)
    hits = sharded.search(queries, 5)
    assert [part.searches for part in parts] == [2 if kind == "inverted" else 1] * 3
    assert np.array_equal(hits.rows, whole.search(queries, 5).rows)


def test_parts_of_different_defaults_are_asked_singly() -> None:
    _, sharded = pair("inverted")
    sharded.parts[1].default_params = {"engine": "terms"}
    parts = [Counted(part) for part in sharded.parts]
    sharded.search(drawn(1, 2, "inverted"), 5)
    assert [part.searches for part in parts] == [1, 1, 1]


def test_defaults_of_all_parts_apply() -> None:
    _, sharded = pair("inverted")
    for part in sharded.parts:
        part.default_params = {"alpha": 2}  # not possible
    with pytest.raises(ConfigError, match=r"params\.alpha: 2"):
        sharded.search(drawn(1, 2, "inverted"), 5)


def test_a_part_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sharded = pair("ip")
    Counted(sharded.parts[1], OSError("the disk is gone"))
    monkeypatch.setattr(FlatIndex, "_search", failing)
    with pytest.raises(SluiceError, match="shard-1: the disk is gone"):
        sharded.search(drawn(1, 2, "ip"), 5)


def failing(self: FlatIndex, *args: Any) -> Any:
    """Fail in the pass over all parts only."""
    if self._places:
        raise OSError("the disk is gone")
    return SEARCH(self, *args)


def test_binary_codes_have_a_depth_for_each_part() -> None:
    sharded = ShardedIndex.split(FlatIndex(first_pass="binary"), ShardRows.split(owners(), SHARDS))
    sharded.add(drawn(DOCUMENTS, 1, "ip"))
    parts = [Counted(part) for part in sharded.parts]
    sharded.search(drawn(1, 2, "ip"), 5)
    assert [part.searches for part in parts] == [1, 1, 1]
