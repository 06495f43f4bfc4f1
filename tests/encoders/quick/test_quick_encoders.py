"""The numpy forms give the encoders' values, and are used only where that was shown."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import save_model

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.backends.quick import opened_quickly
from sluice.encoders.backends.quick.encoders import QuickCross, QuickDense, QuickSplade

MAKERS = {"dense": DenseEncoder, "splade": SpladeEncoder, "cross_encoder": CrossEncoder}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))


def opened(kind: str, folder: Path, **options: Any) -> Any:
    make: Any = MAKERS[kind]
    return opened_quickly(kind, folder, options, partial(make.from_pretrained, folder))


@pytest.mark.parametrize(
    ("pooling", "normalize", "prompt"), [("mean", True, ""), ("cls", False, "search: ")]
)
def test_queries_have_the_encoders_vectors(
    bert: Path, tmp_path: Path, texts: list[str], pooling: Any, normalize: bool, prompt: str
) -> None:
    folder = tmp_path / "model"
    DenseEncoder.from_pretrained(
        bert, pooling=pooling, normalize=normalize, query_prompt=prompt, query_length=16
    ).save_pretrained(folder)
    encoder, quick = opened("dense", folder), opened("dense", folder)
    assert (type(encoder), type(quick)) == (DenseEncoder, QuickDense)
    assert quick.fingerprint == encoder.fingerprint
    asked = [*texts, "a lone \ud800 surrogate"]
    expected = encoder.encode_queries(asked)
    assert np.abs(quick.encode_queries(asked) - expected).max() <= 2e-6 * np.abs(expected).max()
    assert type(opened("dense", folder, dtype="float32", device="cpu")) is QuickDense
    assert type(opened("dense", folder, dtype="bfloat16")) is QuickDense, "one query: float32"
    assert type(opened("dense", folder, batch_tokens=64, query_length=8)) is DenseEncoder
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    assert type(opened("dense", folder)) is DenseEncoder, "another file is shown anew"
    assert type(opened("dense", folder)) is QuickDense


@pytest.mark.parametrize("prompt", ["", "search: "])
def test_queries_have_the_splade_encoders_terms(
    masked_bert: Path, tmp_path: Path, texts: list[str], prompt: str
) -> None:
    folder = tmp_path / "model"
    SpladeEncoder.from_pretrained(
        masked_bert, query_prompt=prompt, query_length=16
    ).save_pretrained(folder)
    encoder, quick = opened("splade", folder), opened("splade", folder)
    assert (type(encoder), type(quick)) == (SpladeEncoder, QuickSplade)
    expected, vectors = encoder.encode_queries(texts), quick.encode_queries(texts)
    np.testing.assert_allclose(vectors.toarray(), expected.toarray(), rtol=1e-5, atol=1e-5)
    assert (vectors.dtype, vectors.has_sorted_indices) == (np.float32, True)
    assert quick.encode_queries([]).shape == (0, expected.shape[1])
    pruned = tmp_path / "pruned"  # a setting that the numpy form does not have
    SpladeEncoder.from_pretrained(masked_bert, query_top_k=2).save_pretrained(pruned)
    assert [type(opened("splade", pruned)) for _ in range(2)] == [SpladeEncoder] * 2


def test_pairs_have_the_cross_encoders_scores(
    pair_bert: Path, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    CrossEncoder.from_pretrained(pair_bert, max_length=32).save_pretrained(folder)
    monkeypatch.setattr("sluice.encoders.backends.quick.encoders.CHUNK", 40)
    for options in ({}, {"max_length": 12}):
        encoder = opened("cross_encoder", folder, **options)
        quick = opened("cross_encoder", folder, **options)
        assert (type(encoder), type(quick)) == (CrossEncoder, QuickCross)
        pairs = [("gold in the river", text) for text in texts]
        expected = encoder.score(pairs)
        np.testing.assert_allclose(quick.score(pairs), expected, rtol=0, atol=1e-5)
    assert quick.score([]).shape == (0,)


def test_what_is_unknown_or_differs_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = save_model(tmp_path / "relu", "Model", hidden_act="relu")
    DenseEncoder.from_pretrained(other).save_pretrained(tmp_path / "saved")
    for folder in (other, tmp_path / "saved"):
        assert [type(opened("dense", folder)) for _ in range(2)] == [DenseEncoder] * 2
    usual = save_model(tmp_path / "usual", "Model")
    DenseEncoder.from_pretrained(usual).save_pretrained(tmp_path / "again")
    with monkeypatch.context() as patch:
        patch.setattr(QuickDense, "encode_queries", lambda _, texts: np.ones((len(texts), 32)))
        assert [type(opened("dense", tmp_path / "again")) for _ in range(2)] == [DenseEncoder] * 2
    assert type(opened("dense", tmp_path / "again")) is DenseEncoder, "the note says so"
    for note in (tmp_path / "cache" / "quick").iterdir():
        note.write_text("damaged")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")  # the note cannot be written
    assert [type(opened("dense", tmp_path / "again")) for _ in range(2)] == [DenseEncoder] * 2


def test_a_retriever_opened_for_a_few_queries_finds_the_same(bert: Path, tmp_path: Path) -> None:
    from small_world import documents

    from sluice.retrieval import Retriever

    encoder = DenseEncoder.from_pretrained(bert)
    Retriever.build(encoder, documents(), path=tmp_path / "r")
    first, second = (Retriever.open(tmp_path / "r", quick=True) for _ in range(2))
    hits = [retriever.search("gold in the river", 3) for retriever in (first, second)]
    assert [hit.doc_id for hit in hits[0]] == [hit.doc_id for hit in hits[1]]
    assert (type(first.encoder), type(second.encoder)) == (DenseEncoder, QuickDense)
    head = json.loads((tmp_path / "r" / "retriever.json").read_text())
    assert second.encoder.fingerprint == head["encoder_fingerprint"]


def test_passages_are_named_as_they_were_cut(bert: Path, tmp_path: Path) -> None:
    from sluice.retrieval import Document, Passages, Retriever

    long = " ".join(f"w{number}-a walrus's tusk; gold {number}" for number in range(40))
    cut = Passages(length=12, overlap=2)
    encoder = DenseEncoder.from_pretrained(bert)
    Retriever.build(encoder, [Document("a", "", long)], path=tmp_path / "r", passages=cut)
    found = [
        Retriever.open(tmp_path / "r", quick=quick).search("gold 31", 1)[0].passage
        for quick in (True, True, False)
    ]
    assert found[0] == found[1] == found[2] is not None
