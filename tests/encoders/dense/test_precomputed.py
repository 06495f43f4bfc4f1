"""The encoder of handed-over query vectors: looked up, refused, and a folder that opens again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders import PrecomputedEncoder
from sluice.encoders.encoder import Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.table import ENCODERS

TEXTS = ["where is gold?", "", "ç\n\ud800", "a river"]
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def test_known_texts_give_their_vectors() -> None:
    encoder = PrecomputedEncoder(TEXTS, VECTORS)
    assert isinstance(encoder, Encoder)
    assert (encoder.dim, len(encoder), encoder.texts) == (3, 4, TEXTS)
    found = encoder.encode_queries(["a river", "where is gold?", "a river"])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, VECTORS[[3, 0, 3]])
    assert encoder.encode_queries([]).shape == encoder.encode_documents([]).shape == (0, 3)
    found[:] = 0  # a copy
    np.testing.assert_array_equal(encoder.encode_queries(TEXTS), VECTORS)


def test_unknown_texts_are_an_error_with_remedies() -> None:
    encoder = PrecomputedEncoder(TEXTS, VECTORS)
    with pytest.raises(
        ModelError, match=r"did you mean 'a river'.*2 of 3.*search --vectors"
    ) as told:
        encoder.encode_queries(["a rivers", "a river", "x"])
    assert "--encoder" in str(told.value)
    with pytest.raises(ModelError, match="queries only"):
        encoder.encode_documents(["a river"])
    with pytest.raises(DataError, match="a single str"):
        encoder.encode_queries("a river")
    with pytest.raises(ModelError, match="0 are known"):
        PrecomputedEncoder(dim=3).encode_queries(["x"])


@pytest.mark.parametrize(
    ("texts", "vectors", "dim", "message"),
    [
        (["a"], VECTORS, None, "1 texts for 4 vectors"),
        ("abcd", VECTORS, None, "a single str"),
        (["a", "b", "a", "c"], VECTORS, None, "'a' at positions 0 and 2"),
        (["a", "b", 3, "c"], VECTORS, None, "3 is a int"),
        (TEXTS, VECTORS.astype(int), None, "int64, expected a numpy array of floats"),
        (TEXTS, VECTORS.tolist(), None, "list, expected"),
        (TEXTS, VECTORS[:, 0], None, r"shape \(4,\), expected \[n, dim\]"),
        (TEXTS, VECTORS, 4, r"expected \[n, 4\]"),
        (TEXTS, np.where(VECTORS == 0, np.nan, VECTORS), None, "row 1 is not finite"),
        (TEXTS, VECTORS.astype(float) * 1e300, None, "row 0 is not finite"),
    ],
)
def test_what_is_not_one_vector_a_text(texts: Any, vectors: Any, dim: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PrecomputedEncoder(texts, vectors, dim=dim)


@pytest.mark.parametrize("dim", [None, 0])
def test_no_vectors_need_a_width(dim: int | None) -> None:
    with pytest.raises(ConfigError, match="without vectors"):
        PrecomputedEncoder(dim=dim)


def test_the_fingerprint_is_of_texts_and_vectors() -> None:
    near = VECTORS.copy()
    near[3, 2] = np.nextafter(near[3, 2], 9)
    prints = {
        PrecomputedEncoder(TEXTS, VECTORS).fingerprint,
        PrecomputedEncoder(TEXTS[::-1], VECTORS).fingerprint,
        PrecomputedEncoder(TEXTS, VECTORS[::-1]).fingerprint,
        PrecomputedEncoder(TEXTS, near).fingerprint,
        PrecomputedEncoder(dim=3).fingerprint,
        PrecomputedEncoder(dim=4).fingerprint,
    }
    assert len(prints) == 6
    assert PrecomputedEncoder(TEXTS, VECTORS.astype(np.float64)).fingerprint in prints


@pytest.mark.parametrize("count", [0, 4])
def test_it_opens_again(tmp_path: Path, count: int) -> None:
    encoder = PrecomputedEncoder(TEXTS[:count], VECTORS[:count], dim=3)
    encoder.save_pretrained(tmp_path / "e")
    opened = open_encoder(str(tmp_path / "e"))
    assert isinstance(opened, PrecomputedEncoder)
    assert (opened.texts, opened.dim) == (TEXTS[:count], 3)
    assert opened.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(opened.encode_queries(opened.texts), VECTORS[:count])
    assert "precomputed" in ENCODERS
    encoder.save_pretrained(tmp_path / "e")  # replaces itself


def test_a_damaged_folder_is_one_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    objects = np.array([{}, []], dtype=object)
    for name, content in [("texts.json", "["), ("texts.json", '["a"]'), ("sluice.json", "{}")]:
        PrecomputedEncoder(TEXTS, VECTORS).save_pretrained(folder)
        (folder / name).write_text(
            content if name == "texts.json" else '{"type": "precomputed", "dim": "3"}'
        )
        with pytest.raises(ModelError, match=str(folder)):
            open_encoder(str(folder))
    PrecomputedEncoder(TEXTS, VECTORS).save_pretrained(folder)
    np.save(folder / "vectors.npy", objects, allow_pickle=True)
    with pytest.raises(ModelError, match="not readable"):
        open_encoder(str(folder))
