"""Token encoders: as sentence-transformers encodes, saved and loaded, with gradients."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_architectures import save_architecture

from sluice.encoders import TokenEncoder
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.transformer.packed.attention import Heads, PaddedAttention, TextAttention

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


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("architecture", ["Bert", "Roberta", "MPNet", "DistilBert"])
def test_packed_passes_are_the_models_own(tmp_path: Path, architecture: str, attend: bool) -> None:
    """Mask tokens that nothing sees are computed as by the model's own attention mask."""
    base = save_architecture(tmp_path / "base", architecture, "dense")
    packed = TokenEncoder.from_pretrained(
        base, dim=8, query_length=40, expand_queries=12, attend_to_expansion=attend
    )
    padded = copy.deepcopy(packed)
    padded.packed = padded.packed_training = False
    features = packed.tokenize(QUERIES, "query")
    assert packed.network() is not None
    assert packed.training_pass(features, features["input_ids"] > 0) is not None
    ours = packed.encode_queries(QUERIES)
    same(ours, list(padded.encode_queries(QUERIES)))
    assert padded.network() is None
    weights = torch.randn(8, generator=torch.Generator().manual_seed(1))
    for encoder in (packed, padded):
        vectors = encoder.embed(encoder.tokenize(QUERIES, "query"), "query")
        real = vectors.abs().sum(dim=-1) > 0
        np.testing.assert_allclose(vectors[real].detach().numpy(), ours.values, atol=1e-5)
        (vectors @ weights).square().sum().backward()
    gradients = {
        name: (one.grad, other.grad)
        for (name, one), other in zip(
            packed.module.named_parameters(), padded.module.parameters(), strict=True
        )
        if one.grad is not None and other.grad is not None
    }
    largest = max(float(theirs.norm()) for _, theirs in gradients.values())
    for name, (mine, theirs) in gradients.items():  # a key's bias has none but rounding
        assert float((mine - theirs).norm()) < 1e-5 * largest, name


@pytest.mark.parametrize("bias", [False, True])
def test_attention_of_accelerators_sees_as_much(bias: bool) -> None:
    lengths, seen = [6, 6, 5, 3], [6, 2, 2, 3]
    torch.manual_seed(2)
    projected, added = torch.randn(20, 24), torch.randn(2, 6, 6) if bias else None
    heads, device = Heads(2, 2, 4), torch.device("cpu")
    ours = TextAttention(lengths, heads, seen, bias=added)
    theirs = PaddedAttention(lengths, heads, device, seen, bias=added)
    expected = ours(projected)
    torch.testing.assert_close(theirs(projected), expected)
    for last, places in ((False, [0, 6, 12, 17]), (True, [5, 11, 16, 19])):
        queries, rest = projected[places, :8], projected[:, 8:]
        single = ours.single(queries, rest, last=last)
        torch.testing.assert_close(theirs.single(queries, rest, last=last), single)
        torch.testing.assert_close(single, expected[places])


def test_small_batches_and_bfloat16(bert: Path) -> None:
    """Batches of few tokens change nothing, bfloat16 little; texts come in their order."""
    texts = [f"{'river stone ' * (n % 7)} gold" for n in range(30)]
    whole = TokenEncoder.from_pretrained(bert, dim=8)
    small = TokenEncoder.from_pretrained(bert, dim=8, batch_tokens=40)
    half = TokenEncoder.from_pretrained(bert, dim=8, dtype="bfloat16")
    for side in ("encode_queries", "encode_documents"):
        expected = getattr(whole, side)(texts)
        same(getattr(small, side)(texts), list(expected))
        cosines = (getattr(half, side)(texts).values * expected.values).sum(axis=1)
        assert cosines.min() > 0.99
        one_by_one = [getattr(whole, side)([text]).values for text in texts]
        same(expected, one_by_one)
        assert len(getattr(whole, side)([])) == 0
