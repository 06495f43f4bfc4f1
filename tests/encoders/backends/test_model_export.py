"""Exporting a model: a whole folder or nothing, what it reports, and int8."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders import BM25Encoder, CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.backends import export as model_export
from sluice.encoders.backends.backend import open_backend, through
from sluice.encoders.backends.export import (
    LENGTHS,
    QUANTISED_FILES,
    export_onnx,
    sample_texts,
)
from sluice.encoders.backends.graph import MODEL_FILE
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, ModelError
from sluice.encoders.model_files.registry import open_encoder

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.thorough
def test_a_dense_folder(bert: Path, texts: list[str], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = DenseEncoder.from_pretrained(
        bert, pooling="cls", projection=16, query_prompt="query: ", document_length=40
    )
    report = export_onnx(encoder, tmp_path / "m", texts=texts)
    found = report.differences[MODEL_FILE]
    assert (report.kind, found.texts) == ("dense", len(LENGTHS) + len(texts))
    assert found.largest < 1e-5
    assert found.cosine > 0.999999
    assert "vectors differ from torch's by" in str(report)
    again = open_encoder(tmp_path / "m")
    assert again.fingerprint == encoder.fingerprint
    twin = through(again, open_backend(tmp_path / "m", "onnx", "last_hidden_state"))
    expected = encoder.encode_queries(texts)
    np.testing.assert_allclose(twin.encode_queries(texts), expected, atol=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    theirs.max_seq_length = 40
    documents = encoder.encode_documents(texts)
    np.testing.assert_allclose(theirs.encode(texts), documents, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dense", "splade", "cross_encoder"])
def test_the_file_says_what_it_takes_and_gives(
    bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path, kind: str
) -> None:
    model, output = {
        "dense": (DenseEncoder.from_pretrained(bert), "last_hidden_state"),
        "splade": (SpladeEncoder.from_pretrained(masked_bert), "head_states"),
        "cross_encoder": (CrossEncoder.from_pretrained(pair_bert), "logits"),
    }[kind]
    report = export_onnx(model, tmp_path / "m")
    stored = onnx.load_model(str(tmp_path / "m" / MODEL_FILE))
    onnx.checker.check_model(stored)
    names = [value.name for value in stored.graph.input]
    assert names == ["input_ids", "attention_mask", "token_type_ids"]
    for value in stored.graph.input:
        axes = [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        assert axes == ["batch", "length"]
    assert [value.name for value in stored.graph.output] == [output]
    assert stored.opset_import[0].version >= 17
    facts = {entry.key: entry.value for entry in stored.metadata_props}
    assert facts == {"sluice.weights": model.weights_hash(), "sluice.kind": kind}
    unit = {"dense": "vectors", "splade": "term weights", "cross_encoder": "logits"}[kind]
    assert f"{unit} differ from torch's" in str(report)
    assert ("cosine" in str(report)) == (kind != "cross_encoder")


@pytest.mark.thorough
def test_int8_comes_with_its_loss(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        report = export_onnx(bert, tmp_path / "m", quantise="int8")
    assert not caplog.records
    name = QUANTISED_FILES["int8"]
    assert list(report.differences) == [MODEL_FILE, name]
    exact, coarse = report.differences.values()
    assert coarse.largest > 10 * exact.largest
    assert 0.9 < coarse.cosine < 1
    assert report.bytes[name] == (tmp_path / "m" / name).stat().st_size
    assert f"{name}: " in str(report)
    backend = open_backend(tmp_path / "m", "onnx", "last_hidden_state", file=name)
    found = through(open_encoder(tmp_path / "m"), backend).encode_documents(["gold river"])
    assert np.isfinite(found).all()


@pytest.mark.usefixtures("bfloat16")
def test_an_encoder_in_training_or_bfloat16_is_left_as_it_is(bert: Path, tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, dtype="bfloat16")
    encoder.module.train()
    before = encoder.weights_hash()
    report = export_onnx(encoder, tmp_path / "m")
    assert report.differences[MODEL_FILE].largest < 1e-5
    assert encoder.module.training
    assert encoder.dtype is torch.bfloat16
    assert encoder.weights_hash() == before


@pytest.mark.thorough
def test_a_wrong_graph_is_never_written(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_onnx(bert, tmp_path / "m")
    before = (tmp_path / "m" / MODEL_FILE).read_bytes()
    good = model_export.write_graph

    scale = 1.0

    def spoiled(encoder: Any, path: Path) -> None:
        good(encoder, path)
        model = onnx.load_model(str(path))
        tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        weights = np.frombuffer(tensor.raw_data, np.float32) * scale
        tensor.raw_data = weights.astype(np.float32).tobytes()
        path.write_bytes(model.SerializeToString())

    monkeypatch.setattr(model_export, "write_graph", spoiled)
    for factor in (1.5, float("nan")):
        scale = factor
        with pytest.raises(ModelError, match="differs from torch"):
            export_onnx(bert, tmp_path / "m")
        with pytest.raises(ModelError, match="nothing was written"):
            export_onnx(bert, tmp_path / "new")
    assert (tmp_path / "m" / MODEL_FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_is_refused(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"thesis.txt"):
        export_onnx(bert, tmp_path / "foreign")
    assert (tmp_path / "foreign" / "thesis.txt").read_text() == "mine"
    for output in (bert, bert.parent):
        with pytest.raises(ConfigError, match="is or contains the model itself"):
            export_onnx(bert, output)
    with pytest.raises(ConfigError, match="quantise: 'int4'; known: int8"):
        export_onnx(bert, tmp_path / "m", quantise="int4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a BM25Encoder cannot be exported"):
        export_onnx(BM25Encoder(), tmp_path / "m")
    saved = BM25Encoder()
    saved.fit(["gold river"])
    saved.save_pretrained(tmp_path / "bm25")
    with pytest.raises(ConfigError, match="of type bm25 is not exported"):
        export_onnx(tmp_path / "bm25", tmp_path / "m")
    with pytest.raises(ModelError, match="no such model folder"):
        export_onnx(str(tmp_path / "none"), tmp_path / "m")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="onnx"):
        export_onnx(bert, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.thorough
def test_exporting_again_replaces_the_folder(bert: Path, tmp_path: Path) -> None:
    export_onnx(bert, tmp_path / "m", quantise="int8")
    export_onnx(bert, tmp_path / "m")
    assert [path.name for path in (tmp_path / "m" / "onnx").iterdir()] == ["model.onnx"]
    sidecar = json.loads((tmp_path / "m" / "sluice.json").read_text())
    assert sidecar["type"] == "dense"


def test_the_sample_is_fixed_and_of_every_length() -> None:
    sample = sample_texts()
    assert sample == sample_texts()
    assert [len(text.split()) for text in sample] == list(LENGTHS)
    assert sample[0] == ""
