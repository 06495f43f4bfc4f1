"""BM25 in parts: what a fit of all at once gives, with the counts in memory or in a file."""

import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sluice.encoders.lexical.term_counts
from sluice.encoders import BM25Encoder
from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.lexical.term_counts import CountSpool, TermCounts

TEXTS = ["red fox", "", "red red car", "fox " * 300, "quick run", "blue"] * 3
ONE = TermCounts(np.arange(3, dtype=np.int32), np.ones(3, np.int32), np.array([3]), np.array([[3]]))
FIELDED = [{"title": text, "text": f"a {text} box"} for text in TEXTS]


def in_parts(encoder: BM25Encoder, texts: Iterable[Any]) -> list[sp.csr_array]:
    learner = hooks_of(encoder).learner
    assert learner is not None
    parts: list[Any] = list(learner.fit_in_parts(texts))
    return parts


@pytest.mark.parametrize("spill", [0, 4, 1000])
@pytest.mark.parametrize("fields", [None, {"title": 2.0, "text": 1.0}])
def test_the_parts_are_the_whole(
    monkeypatch: pytest.MonkeyPatch, spill: int, fields: dict[str, float] | None
) -> None:
    texts: list[Any] = FIELDED if fields else TEXTS
    whole = BM25Encoder(fields=fields)
    vectors = whole.fit_documents(texts)
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "BATCH_CHARACTERS", 1)
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "CHUNK_WORDS", 2)
    monkeypatch.setattr(sluice.encoders.lexical.term_counts, "SPILL", spill)
    encoder = BM25Encoder(fields=fields)
    parts = in_parts(encoder, iter(texts))
    assert len(parts) > 5
    assert {part.shape[1] for part in parts} == {encoder.dim}
    stacked = sp.csr_array(sp.vstack(parts))
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(stacked, name), getattr(vectors, name))
    assert encoder.fingerprint == whole.fingerprint


def test_no_document_is_an_empty_part() -> None:
    (part,) = in_parts(BM25Encoder(), [])
    assert part.shape == (0, 0)


def test_a_subclass_that_fits_in_its_own_way_is_asked_to() -> None:
    class Doubled(BM25Encoder):
        def fit_documents(self, texts: Iterable[Any]) -> sp.csr_array:
            return sp.csr_array(2 * super().fit_documents(texts))

    (part,) = in_parts(Doubled(), TEXTS)
    np.testing.assert_array_equal(part.toarray(), 2 * BM25Encoder().fit_documents(TEXTS).toarray())


def test_a_full_disk_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("3 requested and 0 written")  # as numpy says it

    spool = CountSpool(spill=0)
    monkeypatch.setattr(spool, "_write", full)
    with pytest.raises(OSError, match="is the disk full") as caught:
        spool.append(ONE)
    assert caught.value.filename == tempfile.gettempdir()


def test_a_file_that_was_cut_short_is_an_error() -> None:
    spool = CountSpool(spill=0)
    spool.append(ONE)
    assert spool._file is not None
    spool._file.truncate(9)
    with pytest.raises(DataError, match="is the disk full"):
        list(spool.drained())
