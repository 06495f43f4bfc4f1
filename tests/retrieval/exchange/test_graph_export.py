"""``sluice model export MODEL OUTPUT``: what it writes, measures and refuses."""

from pathlib import Path

import pytest
from command_line import Call
from small_world import documents, write_beir

from sluice.encoders.backends.export import QUANTISED_FILES, export_onnx
from sluice.encoders.backends.graph import MODEL_FILE
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.model_files.registry import open_encoder
from sluice.indexing import FlatIndex
from sluice.retrieval import Dataset, Document, Retriever, evaluate, load_dataset
from sluice.retrieval.exchange.graph_export import export_model, graph_loss, sampled

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "world")


@pytest.mark.thorough
def test_the_command_writes_and_measures(
    sluice: Call, bert: Path, world: Path, tmp_path: Path
) -> None:
    asked = ("model", "export", bert, tmp_path / "m", "--quantise", "int8")
    code, out, err = sluice(*asked, "--dataset", world, "--documents", 15, "--queries", 6)
    assert code == 0, err
    for name in (MODEL_FILE, QUANTISED_FILES["int8"]):
        assert (tmp_path / "m" / name).is_file()
        assert f"{name}: " in out
        assert f"  by {name} " in out
    assert "6 queries over 15 documents, nDCG@10 by torch" in out
    assert "(+0.0000)" in out
    code, out, err = sluice("model", "export", bert, tmp_path / "plain")
    assert code == 0, err
    assert "nDCG" not in out
    assert [path.name for path in (tmp_path / "plain" / "onnx").iterdir()] == ["model.onnx"]


def test_what_the_command_refuses(sluice: Call, bert: Path, world: Path, tmp_path: Path) -> None:
    def refused(*words: object) -> str:
        code, _, err = sluice("model", "export", *words)
        assert code == 2
        assert err.startswith("error: ")
        return err

    asked = (bert, tmp_path / "m")
    assert "known: int8; did you mean 'int8'" in refused(*asked, "--quantise", "int")
    assert "no dataset is given" in refused(*asked, "--documents", "5")
    assert "no split 'test'" not in refused(*asked, "--dataset", tmp_path / "none")
    assert "documents is 0" in refused(*asked, "--dataset", world, "--documents", 0)
    retriever = Retriever.build(open_encoder(bert), documents(), path=tmp_path / "r")
    assert f"give {tmp_path / 'r' / 'encoder'}" in refused(retriever.path, *asked[1:])
    code, _, err = sluice("export", bert, tmp_path / "m", "--format", "onnx")
    assert (code, "sluice model export MODEL OUTPUT" in err) == (2, True)
    assert not (tmp_path / "m").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dense", "splade", "cross_encoder"])
def test_the_loss_of_each_kind(
    bert: Path, masked_bert: Path, pair_bert: Path, world: Path, tmp_path: Path, kind: str
) -> None:
    source = {"dense": bert, "splade": masked_bert, "cross_encoder": pair_bert}[kind]
    if kind == "splade":  # a bare masked language model counts as a dense encoder
        from sluice.encoders import SpladeEncoder

        SpladeEncoder.from_pretrained(source).save_pretrained(tmp_path / "source")
        source = tmp_path / "source"
    found = export_model(source, tmp_path / "m", dataset=str(world))
    assert found.loss is not None
    assert (found.loss.queries, found.loss.documents) == (8, 40)
    assert found.loss.files[MODEL_FILE] == pytest.approx(found.loss.torch, abs=1e-9)
    assert found.loss.torch > 0


def test_the_loss_equals_a_search(bert: Path, world: Path, tmp_path: Path) -> None:
    export_onnx(bert, tmp_path / "m", quantise="int8")
    dataset = load_dataset(world)
    name = QUANTISED_FILES["int8"]
    loss = graph_loss(tmp_path / "m", [name], dataset)
    encoder = open_encoder(tmp_path / "m")
    coarse = open_encoder(tmp_path / "m", backend="onnx", backend_file=name)
    for system, value in ((encoder, loss.torch), (coarse, loss.files[name])):
        run = Retriever.build(system, dataset.corpus, index=FlatIndex()).run(dataset.queries, k=10)
        expected = evaluate(run, dataset.qrels, ["nDCG@10"]).mean["nDCG@10"]
        assert value == pytest.approx(expected, abs=1e-6)


def test_a_sample_keeps_what_is_judged(world: Path) -> None:
    dataset = load_dataset(world)
    texts, sample = sampled(dataset, documents=20, queries=5, seed=13)
    assert sampled(dataset, documents=20, queries=5, seed=13) == (texts, sample)
    assert sampled(dataset, documents=20, queries=5, seed=14) != (texts, sample)
    assert (len(texts), len(sample)) == (5, 20)
    names = [document.id for document in sample]
    assert names == sorted(names)
    assert {name for query in texts for name in dataset.qrels[query]} <= set(names)
    _, judged_only = sampled(dataset, documents=1, queries=5, seed=13)
    wanted = {name for query in texts for name in dataset.qrels[query]}
    assert {document.id for document in judged_only} == wanted
    texts, sample = sampled(dataset, documents=1000, queries=1000, seed=13)
    assert (len(texts), len(sample)) == (8, 40)


def test_an_empty_corpus_is_an_error() -> None:
    dataset = Dataset.from_memory([], {"q": "gold"}, {"q": {"d": 1}})
    with pytest.raises(DataError, match="corpus is empty"):
        sampled(dataset, documents=5, queries=5, seed=13)


def test_a_query_that_is_a_document_does_not_count(bert: Path, tmp_path: Path) -> None:
    export_onnx(bert, tmp_path / "m")
    docs = [Document(str(at), "", text) for at, text in enumerate(["gold river", "stone water"])]
    dataset = Dataset.from_memory(docs, {"0": "gold river"}, {"0": {"1": 1}})
    loss = graph_loss(tmp_path / "m", [MODEL_FILE], dataset)
    assert (loss.torch, loss.files) == (1.0, {MODEL_FILE: 1.0})
    with pytest.raises(ConfigError, match="queries is 0"):
        graph_loss(tmp_path / "m", [], dataset, queries=0)
