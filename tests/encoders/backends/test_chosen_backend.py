"""Encoders that encode by an exported graph: chosen, saved, opened again, told apart."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.backends.export import export_onnx
from sluice.encoders.backends.graph import MODEL_FILE
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.indexing import FlatIndex
from sluice.retrieval import Document, Retriever

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")),
    reason="onnxruntime is not installed",
)
INT8 = "onnx/model_qint8.onnx"


@pytest.fixture(scope="module")
def exported(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "dense"
    export_onnx(DenseEncoder.from_pretrained(bert), folder, quantise="int8")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_each_kind_of_encoder_runs_its_graph(
    engine: Any, exported: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path,
    texts: list[str],
) -> None:  # fmt: skip
    if importlib.util.find_spec(engine.replace("onnx", "onnxruntime")) is None:
        pytest.skip(f"{engine} is not installed")
    dense = DenseEncoder.from_pretrained(exported, backend=engine)
    plain = DenseEncoder.from_pretrained(exported)
    assert dense.network() is None
    assert dense.fingerprint == plain.fingerprint
    expected = plain.encode_documents(texts)
    np.testing.assert_allclose(dense.encode_documents(texts), expected, atol=1e-5)
    export_onnx(SpladeEncoder.from_pretrained(masked_bert), tmp_path / "splade")
    terms = [
        SpladeEncoder.from_pretrained(tmp_path / "splade", backend=chosen).encode_documents(texts)
        for chosen in (engine, "torch")
    ]
    np.testing.assert_allclose(terms[0].toarray(), terms[1].toarray(), atol=2e-5)
    export_onnx(CrossEncoder.from_pretrained(pair_bert), tmp_path / "cross")
    pairs = list(zip(texts, texts[::-1], strict=True))
    scores = [
        CrossEncoder.from_pretrained(tmp_path / "cross", backend=chosen).score(pairs)
        for chosen in (engine, "torch")
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


def test_a_quantised_graph_is_another_encoder(exported: Path, tmp_path: Path) -> None:
    plain = DenseEncoder.from_pretrained(exported)
    small = DenseEncoder.from_pretrained(exported, backend="onnx", backend_file=INT8)
    assert small.fingerprint != plain.fingerprint
    small.save_pretrained(tmp_path / "saved")
    again = DenseEncoder.from_pretrained(tmp_path / "saved")
    assert again.backend is not None
    assert again.fingerprint == small.fingerprint
    texts = ["river gold", "a b c"]
    np.testing.assert_array_equal(again.encode_queries(texts), small.encode_queries(texts))
    torch_again = DenseEncoder.from_pretrained(tmp_path / "saved", backend="torch")
    assert torch_again.fingerprint == plain.fingerprint


def test_a_retriever_keeps_its_back_end(exported: Path, tmp_path: Path) -> None:
    small = DenseEncoder.from_pretrained(exported, backend="onnx", backend_file=INT8)
    corpus = [Document("a", "", "river gold"), Document("b", "", "water stone")]
    Retriever.build(small, corpus, index=FlatIndex(), path=tmp_path / "r")
    opened = Retriever.open(tmp_path / "r")
    assert opened.search("river gold", k=1)[0].doc_id == "a"
    assert opened.encoder.backend.file == INT8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "onyx"}, "did you mean 'onnx'"),
        ({"backend_file": INT8}, "needs backend"),
        ({"backend": "torch", "backend_file": INT8}, "is for backend onnx"),
        ({"backend": "onnx", "backend_file": "onnx/none.onnx"}, "no onnx/none.onnx"),
        ({"backend": "onnx", "dtype": "bfloat16"}, "computes in float32"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    exported: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DenseEncoder.from_pretrained(exported, **options)


def test_an_encoder_with_a_graph_is_exported_again(exported: Path, tmp_path: Path) -> None:
    DenseEncoder.from_pretrained(exported, backend="onnx").save_pretrained(tmp_path / "noted")
    export_onnx(tmp_path / "noted", tmp_path / "again")
    assert DenseEncoder.from_pretrained(tmp_path / "again").backend is not None


def test_a_graph_of_other_weights_is_not_run(exported: Path, texts: list[str]) -> None:
    encoder = DenseEncoder.from_pretrained(exported, backend="onnx")
    encoder.encode_documents(texts)
    with torch.no_grad():
        encoder.model.embeddings.word_embeddings.weight.mul_(-1)
    with pytest.raises(ModelError, match="changed since its graph"):
        encoder.encode_documents(texts)


def test_an_open_graph_keeps_its_mark(bert: Path, tmp_path: Path) -> None:
    export_onnx(bert, tmp_path / "model", quantise="int8")
    encoder = DenseEncoder.from_pretrained(tmp_path / "model", backend="onnx", backend_file=INT8)
    before = encoder.fingerprint
    (tmp_path / "model" / INT8).unlink()
    assert encoder.fingerprint == before


def as_published(source: Path, folder: Path, names: dict[str, str]) -> Path:
    """Return a folder whose graph is another tool's: other names, nothing noted, both outputs."""
    import onnx

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*qint8*"))
    model = onnx.load_model(str(folder / MODEL_FILE))
    del model.metadata_props[:]
    for node in model.graph.node:
        for number, name in enumerate(node.output):
            node.output[number] = names.get(name, name)
    for value in model.graph.output:
        value.name = names.get(value.name, value.name)
    shape = ["batch", model.graph.output[0].type.tensor_type.shape.dim[2].dim_value]
    means = onnx.helper.make_tensor_value_info("sentence_embedding", 1, shape)
    model.graph.output.append(means)
    axes = onnx.helper.make_tensor("means.axes", onnx.TensorProto.INT64, [1], [1])
    model.graph.initializer.append(axes)
    name = model.graph.output[0].name
    old = model.opset_import[0].version < 18
    node = (
        onnx.helper.make_node("ReduceMean", [name], ["sentence_embedding"], axes=[1], keepdims=0)
        if old
        else onnx.helper.make_node(
            "ReduceMean", [name, "means.axes"], ["sentence_embedding"], keepdims=0
        )
    )
    model.graph.node.append(node)
    onnx.save_model(model, str(folder / MODEL_FILE))
    return folder


@pytest.mark.parametrize("output", ["last_hidden_state", "token_embeddings"])
def test_a_graph_as_others_publish_it(
    output: str, exported: Path, tmp_path: Path, texts: list[str], caplog: Any
) -> None:
    folder = as_published(exported, tmp_path / "m", {"last_hidden_state": output})
    plain = DenseEncoder.from_pretrained(folder)
    graph = DenseEncoder.from_pretrained(folder, backend="onnx")
    np.testing.assert_allclose(
        graph.encode_documents(texts), plain.encode_documents(texts), atol=1e-5
    )
    assert graph.fingerprint != plain.fingerprint  # nothing says that it is of these weights
    graph.save_pretrained(tmp_path / "saved")
    assert DenseEncoder.from_pretrained(tmp_path / "saved").fingerprint == graph.fingerprint
    assert not caplog.records


def test_a_published_graph_of_another_model_is_told(
    exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = as_published(exported, tmp_path / "m", {})
    encoder = DenseEncoder.from_pretrained(folder, backend="torch")
    with torch.no_grad():
        encoder.model.embeddings.word_embeddings.weight.mul_(-1)
    encoder.save_pretrained(tmp_path / "other")
    shutil.copytree(folder / "onnx", tmp_path / "other" / "onnx")
    DenseEncoder.from_pretrained(tmp_path / "other", backend="onnx")
    (record,) = caplog.records
    assert "does not say which weights it was made from, and its vectors differ" in record.message
