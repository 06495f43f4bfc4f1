"""Full disks below an index in Qdrant's engine, and below an FM-index that spools."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.tokens import TokenSequences
from sluice.indexing import FlatIndex, FmIndex, QdrantIndex
from sluice.indexing.databases.qdrant import edge
from sluice.indexing.storage.rows import DenseSpool


def test_a_nearly_full_disk_is_refused_before_the_engine_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("qdrant_edge", reason="pip install 'sluice-ir[qdrant]'")
    vectors = np.random.default_rng(0).integers(-3, 4, (40, 3)).astype(np.float32)
    free = SimpleNamespace(free=edge.FREE - 1)

    def usage(path: Any) -> SimpleNamespace:
        assert Path(path).exists()
        return free

    monkeypatch.setattr(edge.shutil, "disk_usage", usage)
    index, expected = QdrantIndex(str(tmp_path / "db")), FlatIndex()
    expected.add(vectors)
    with pytest.raises(DataError, match=r"63 MB of its disk are free, .* nothing was changed"):
        index.add(vectors)
    free.free = edge.FREE
    index.add(vectors[:30])
    free.free = 0
    with pytest.raises(DataError, match="0 MB of its disk are free"):
        index.add(vectors[30:])
    assert index.rows == 30
    free.free = edge.FREE
    index.add(vectors[30:])
    found, true = index.search(vectors[:5], 40), expected.search(vectors[:5], 40)
    assert np.array_equal(found.rows, true.rows)


def test_a_deletion_that_finds_no_space_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FmIndex()
    index.spool(tmp_path / "work")
    index.add(TokenSequences.of([[1, 2], [1, 3]]))
    assert index.count([1]) == 2

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(DenseSpool, "append", full)
        with pytest.raises(DataError, match=r"delete: .*work: No space left .* nothing was del"):
            index.delete([0])
    assert (len(index), index.count([1]), index.count([2])) == (2, 2, 1)
    index.delete([0])
    assert (len(index), index.count([1]), index.count([2])) == (1, 1, 0)
