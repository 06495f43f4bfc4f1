"""Token encoders: as sentence-transformers encodes, saved and loaded, with gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders import TokenEncoder
from sluice.encoders.foundation.token_vectors import TokenVectors

QUERIES = ["what is the river stone", "gold", "the river, water: " + "sluice " * 40, ""]
DOCUMENTS = ["the river, stone. water!", "gold - sluice", "", "a deep, sparse. query " * 30]


def theirs(folder: Path) -> Any:
    from sentence_transformers import MultiVectorEncoder

    return MultiVectorEncoder(str(folder), device="cpu")


def same(ours: TokenVectors, expected: list[Any], apart: float = 1e-5) -> None:
    assert [len(text) for text in ours] == [len(text) for text in expected]
    for text, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(text, other, atol=apart)


@pytest.fixture
def started(bert: Path) -> TokenEncoder:
    return TokenEncoder.from_pretrained(bert, dim=8, query_length=16, document_length=50)


@pytest.mark.parametrize("settings", [
    {}, {"attend_to_expansion": True}, {"expand_queries": False}, {"expand_queries": 10},
    {"skip_words": []}, {"projection": {"dim": 8, "layers": 2, "residual": True}},
    {"projection": False}, {"normalize": False}, {"query_marker": "", "document_marker": ""},
    {"query_prompt": "query: "},
], ids=str)  # fmt: skip
def test_saved_encoder_is_the_same_here_and_in_sentence_transformers(
    bert: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    options = {"query_length": 16, "document_length": 50, "seed": 5, **settings}
    encoder = TokenEncoder.from_pretrained(bert, **options)
    encoder.save_pretrained(tmp_path / "saved")
    again = TokenEncoder.from_pretrained(tmp_path / "saved")
    assert again.fingerprint == encoder.fingerprint
    peer = theirs(tmp_path / "saved")
    same(encoder.encode_queries(QUERIES), peer.encode_query(QUERIES, convert_to_numpy=True))
    same(
        encoder.encode_documents(DOCUMENTS), peer.encode_document(DOCUMENTS, convert_to_numpy=True)
    )
    same(again.encode_documents(DOCUMENTS), list(encoder.encode_documents(DOCUMENTS)), 1e-6)


@pytest.mark.parametrize("side", ["query", "document"])
def test_embed_has_the_vectors_of_encoding_and_gradients(started: TokenEncoder, side: str) -> None:
    texts = QUERIES if side == "query" else DOCUMENTS
    encoded = getattr(started, "encode_queries" if side == "query" else "encode_documents")(texts)
    vectors = started.embed(started.tokenize(texts, side), side)  # type: ignore[arg-type]
    real = vectors.abs().sum(dim=-1) > 0
    assert real.sum(dim=1).tolist() == encoded.lengths.tolist()
    np.testing.assert_allclose(vectors[real].detach().numpy(), encoded.values, atol=1e-5)
    vectors.sum().backward()
    weight = started.projection.linear.weight  # type: ignore[union-attr]
    assert torch.isfinite(weight.grad).all()  # type: ignore[arg-type]
    assert weight.grad.abs().sum() > 0  # type: ignore[union-attr]
