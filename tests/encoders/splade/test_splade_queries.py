"""Queries without a network, and which terms stay: formulas, both passes, sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings, strategies as st

from sluice.encoders import DenseEncoder, SpladeEncoder, fit_idf
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.splade.pooling import splade_max
from sluice.encoders.splade.start import idf_from_texts, start_splade
from sluice.encoders.splade.terms import StaticQueries, TermSelection


def counted(encoder: SpladeEncoder, texts: list[str]) -> np.ndarray:
    """log(1 + (N - df + 0.5) / (df + 0.5)), one text after the other."""
    df = np.zeros(encoder.dim)
    for text in texts:
        for token in set(encoder.tokenizer(text)["input_ids"]):
            df[token] += 1
    weights = np.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
    weights[encoder.tokenizer.all_special_ids] = 0
    return weights


@pytest.fixture
def idf(masked_bert: Path, texts: list[str]) -> SpladeEncoder:
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="idf")
    fit_idf(encoder, texts)
    return encoder


def test_a_query_weighs_its_distinct_tokens_by_idf(idf: SpladeEncoder, texts: list[str]) -> None:
    expected = counted(idf, texts)
    assert not idf.needs_idf
    vocabulary = idf.tokenizer.get_vocab()
    vectors = idf.encode_queries(["gold river gold", "the Unknownéword", ""]).toarray()
    row = np.zeros(idf.dim)
    for word in ("gold", "river"):
        row[vocabulary[word]] = expected[vocabulary[word]]
    np.testing.assert_allclose(vectors[0], row, atol=1e-6)
    assert vectors[1, vocabulary["the"]] > 0
    assert not vectors[:, idf.tokenizer.all_special_ids].any()
    assert not vectors[2].any()


def test_no_network_runs_for_a_query(idf: SpladeEncoder, texts: list[str]) -> None:
    calls = []
    idf.model.forward = lambda **features: calls.append(features)
    idf.packed = False
    assert idf.encode_queries(texts).nnz > 0
    assert idf.embed(idf.tokenize(texts, "query"), "query").count_nonzero() > 0
    assert calls == []


def test_training_and_encoding_make_the_same_queries(idf: SpladeEncoder, texts: list[str]) -> None:
    embedded = idf.embed(idf.tokenize(texts, "query"), "query").detach().numpy()
    np.testing.assert_allclose(idf.encode_queries(texts).toarray(), embedded, atol=1e-7)


def test_idf_of_one_is_splade_doc(masked_bert: Path, texts: list[str]) -> None:
    plain = SpladeEncoder.from_pretrained(masked_bert, query_model="idf")
    assert plain.needs_idf
    bow = SpladeEncoder.from_pretrained(masked_bert, query_model="bow")
    for side in ("query", "document"):
        left, right = (e.embed(e.tokenize(texts, side), side) for e in (plain, bow))
        torch.testing.assert_close(left, right, rtol=0, atol=0)
    assert (plain.encode_queries(texts) != bow.encode_queries(texts)).nnz == 0
    assert (plain.encode_documents(texts) != bow.encode_documents(texts)).nnz == 0


def test_splade_doc_on_frequency_logits_is_the_overlap_of_terms(
    masked_bert: Path, texts: list[str]
) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="bow")
    size = encoder.dim
    silent = set(encoder.tokenizer.all_special_ids)
    queries = encoder.encode_queries(texts).toarray()
    for document in texts:
        ids = encoder.tokenizer(document)["input_ids"]
        frequency = np.bincount([i for i in ids if i not in silent], minlength=size)
        logits = np.where(frequency > 0, np.exp(frequency) - 1.0, -1.0)
        padded = torch.full((1, 3, size), 1e3)  # behind the mask
        padded[0, 0] = torch.from_numpy(logits).float()
        mask = torch.tensor([[1, 0, 0]])
        vector = splade_max(padded, mask, torch.eye(size), torch.zeros(size))[0].numpy()
        for query, text in zip(queries, texts, strict=True):
            terms = {i for i in encoder.tokenizer(text)["input_ids"] if i not in silent}
            overlap = sum(int(frequency[i]) for i in terms)
            assert float(query @ vector) == pytest.approx(overlap, rel=1e-5)


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_pooling_is_that_of_sentence_transformers(pooling: Any, activation: Any) -> None:
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    from sluice.encoders.splade.pooling import splade_sum

    torch.manual_seed(5)
    logits = torch.randn(6, 9, 40) * 3
    mask = (torch.arange(9) < torch.tensor([[9], [1], [4], [7], [2], [9]])).long()
    theirs = SpladePooling(pooling, activation_function=activation)(
        {"token_embeddings": logits.clone(), "attention_mask": mask}
    )["sentence_embedding"]
    pool = splade_max if pooling == "max" else splade_sum
    twice = activation == "log1p_relu"
    ours = pool(logits, mask, torch.eye(40), torch.zeros(40), twice=twice)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_trained_weights_get_gradients_where_they_are_positive(masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(
        masked_bert, query_model="idf", train_idf=True, idf_learning_rate=1e-3
    )
    assert encoder.learning_rates == {"queries.weights": 1e-3}
    names = [name for name, p in encoder.module.named_parameters() if p.requires_grad]
    assert "queries.weights" in names
    vocabulary = encoder.tokenizer.get_vocab()
    weights = encoder.queries.weights
    with torch.no_grad():
        weights[vocabulary["river"]] = -0.5
    features = encoder.tokenize(["gold river"], "query")
    encoder.embed(features, "query").sum().backward()
    expected = torch.zeros(encoder.dim)
    expected[vocabulary["gold"]] = 1.0
    torch.testing.assert_close(weights.grad, expected)
    frozen = SpladeEncoder.from_pretrained(masked_bert, query_model="idf")
    assert not frozen.queries.weights.requires_grad


def test_folders_load_in_sentence_transformers_and_back(
    idf: SpladeEncoder, texts: list[str], tmp_path: Path
) -> None:
    from sentence_transformers import SparseEncoder

    idf.lengths["query"] = 9
    with torch.no_grad():  # trained below zero: counts as zero everywhere
        idf.queries.weights[idf.tokenizer.get_vocab()["river"]] = -0.5
    idf.save_pretrained(tmp_path / "ours")
    theirs = SparseEncoder(str(tmp_path / "ours"), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    queries = theirs.encode_query(texts, convert_to_sparse_tensor=False).numpy()
    documents = theirs.encode_document(texts, convert_to_sparse_tensor=False).numpy()
    for folder in ("ours", "theirs"):
        assert kind_of(tmp_path / folder) == "splade"
        again = open_encoder(tmp_path / folder)
        assert again.query_model == "idf"
        assert again.lengths["query"] == 9
        for encoder in (idf, again):
            np.testing.assert_allclose(
                encoder.encode_queries(texts).toarray(), queries, rtol=1e-6, atol=1e-6
            )
            found = encoder.encode_documents(texts).toarray()
            np.testing.assert_allclose(found, documents, rtol=1e-6, atol=1e-5)
    assert open_encoder(tmp_path / "ours").fingerprint == idf.fingerprint
    document = open_encoder(tmp_path / "ours" / "document")
    assert document.query_model == "bow"
    with pytest.raises(ModelError, match="SPLADE"):
        DenseEncoder.from_pretrained(tmp_path / "ours")


def test_settings_survive_saving(masked_bert: Path, texts: list[str], tmp_path: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(
        masked_bert, query_model="idf", lexical="document", prune_ratio=0.3, prune_below=0.01,
        query_top_k=2, document_top_k=9, document_length=20, query_prompt="gold ",
    )  # fmt: skip
    fit_idf(encoder, texts)
    encoder.save_pretrained(tmp_path / "model")
    again = open_encoder(tmp_path / "model")
    assert again.settings() == encoder.settings()
    assert again.fingerprint == encoder.fingerprint
    assert (np.diff(again.encode_queries(texts).indptr) <= 2).all()
    again.save_pretrained(tmp_path / "again")
    assert open_encoder(tmp_path / "again").fingerprint == encoder.fingerprint
    assert SpladeEncoder.from_pretrained(tmp_path / "model", query_model="bow").queries is not None


def test_an_idf_json_beside_the_weights_is_read(masked_bert: Path, tmp_path: Path) -> None:
    SpladeEncoder.from_pretrained(masked_bert).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "idf.json").write_text(json.dumps({"gold": 2.5, "nosuchtoken": 1.0}))
    encoder = SpladeEncoder.from_pretrained(tmp_path / "model", query_model="idf")
    assert encoder.encode_queries(["gold river"]).data.tolist() == [2.5]
    assert SpladeEncoder.from_pretrained(tmp_path / "model").query_model == "shared"
    (tmp_path / "model" / "idf.json").write_text(json.dumps({"gold": "much"}))
    with pytest.raises(ModelError, match="'gold' weighs 'much'"):
        SpladeEncoder.from_pretrained(tmp_path / "model", query_model="idf")


def test_wrong_settings_are_refused(masked_bert: Path, texts: list[str]) -> None:
    for options, words in (
        ({"query_model": "tfidf"}, "known: shared, bow, idf"),
        ({"train_idf": True}, "train_idf: query_model is 'shared'"),
        ({"query_model": "idf", "idf_learning_rate": 0.1}, "with train_idf: true"),
        ({"lexical": "queries"}, "known: none, query, document, both"),
        ({"prune_ratio": 1.5}, "prune_ratio: 1.5"),
        ({"prune_below": -1.0}, "prune_below: -1.0"),
    ):
        with pytest.raises(ConfigError, match=words):
            SpladeEncoder.from_pretrained(masked_bert, **options)
    with pytest.raises(ConfigError, match="use query_model: idf"):
        fit_idf(SpladeEncoder.from_pretrained(masked_bert), texts)
    with pytest.raises(DataError, match="no texts"):
        fit_idf(SpladeEncoder.from_pretrained(masked_bert, query_model="idf"), [])


def test_idf_streams_its_texts(masked_bert: Path) -> None:
    tokenizer = SpladeEncoder.from_pretrained(masked_bert).tokenizer
    many = (f"gold {'river' * (n % 2)}" for n in range(5_000))
    weights = idf_from_texts(tokenizer, many, 300)
    vocabulary = tokenizer.get_vocab()
    assert weights[vocabulary["gold"]] == pytest.approx(np.log1p(0.5 / 5000.5))
    assert weights[vocabulary["river"]] == pytest.approx(np.log1p(2500.5 / 2500.5))
    assert weights[vocabulary["stone"]] == pytest.approx(np.log1p(5000.5 / 0.5))


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"lexical": "both"},
        {"lexical": "query", "query_top_k": 2},
        {"prune_ratio": 0.5},
        {"prune_below": 0.4, "document_top_k": 6},
        {"lexical": "document", "prune_ratio": 0.2, "activation": "log1p_relu"},
        {"pooling": "sum", "prune_ratio": 0.3},
    ],
)
def test_training_padded_and_packed_passes_agree(
    options: dict[str, Any], packed: bool, masked_bert: Path, texts: list[str]
) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, **options)
    plain = SpladeEncoder.from_pretrained(
        masked_bert, **{k: v for k, v in options.items() if k in ("pooling", "activation")}
    )
    encoder.packed = packed
    assert (encoder.network() is not None) == packed
    for side in ("query", "document"):
        full = plain.embed(plain.tokenize(texts, side), side).detach()
        lexical = options.get("lexical") in (side, "both")
        pruned = side == "document"
        expected = []
        for text, row in zip(texts, full, strict=True):  # the variants, one text after the other
            ids = encoder.tokens([text], side).ids[0]
            own = torch.zeros(encoder.dim)
            own[[i for i in set(ids.tolist()) if i not in encoder.tokenizer.all_special_ids]] = 1
            row = row * own if lexical else row
            if pruned and "prune_below" in options:
                row = torch.where(row >= options["prune_below"], row, 0.0)
            if pruned and "prune_ratio" in options:
                row = torch.where(row >= options["prune_ratio"] * row.max(), row, 0.0)
            if (limit := options.get(f"{side}_top_k")) is not None:
                order = row.sort(descending=True, stable=True).indices[limit:]
                row = row.clone()
                row[order] = 0.0
            expected.append(row)
        trained = encoder.embed(encoder.tokenize(texts, side), side)
        torch.testing.assert_close(trained, torch.stack(expected), atol=1e-5, rtol=1e-5)
        encode = encoder.encode_queries if side == "query" else encoder.encode_documents
        encoded = encode(texts)
        assert encoded.has_sorted_indices
        np.testing.assert_allclose(encoded.toarray(), torch.stack(expected), rtol=1e-6, atol=1e-5)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=7, max_size=7),
        min_size=1, max_size=4,
    ),
    lexical=st.booleans(),
    below=st.none() | st.sampled_from([0.3, 0.5]),
    ratio=st.none() | st.sampled_from([0.2, 0.5, 1.0]),
    top_k=st.none() | st.integers(1, 8),
)  # fmt: skip
def test_both_faces_of_a_selection_agree(
    rows: list[list[float]], lexical: bool, below: Any, ratio: Any, top_k: Any
) -> None:
    selection = TermSelection(lexical, below, ratio, top_k)
    vectors = torch.tensor(rows, requires_grad=True)
    own = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]).expand(len(rows), 7)
    batch = selection.of_batch(vectors, own)
    bag = np.array([0, 2, 3, 5], np.int32)
    for row, found in zip(rows, batch, strict=True):
        matrix = sp.csr_array(np.array([row], np.float32))
        terms, weights = selection.of_text(matrix.indices, matrix.data, bag)
        alone = np.zeros(7, np.float32)
        alone[terms] = weights
        np.testing.assert_array_equal(found.detach().numpy(), alone)
    batch.sum().backward()
    kept = batch.detach() != 0
    assert torch.equal((vectors.grad != 0) & kept, kept)


def test_columns_without_a_token_weigh_nothing(masked_bert: Path) -> None:
    tokenizer = SpladeEncoder.from_pretrained(masked_bert).tokenizer
    wide = StaticQueries(tokenizer, len(tokenizer) + 3)
    assert wide.table()[-3:].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ModelError, match="7 query weights"):
        StaticQueries(tokenizer, 9, weights=torch.ones(7))


@pytest.mark.thorough
def test_an_exported_graph_makes_the_documents(
    masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    from sluice.encoders.backends.export import export_onnx

    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="idf", prune_ratio=0.2)
    fit_idf(encoder, texts)
    encoder.save_pretrained(tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "graph")
    graph = open_encoder(tmp_path / "graph", backend="onnx")
    assert graph.fingerprint == encoder.fingerprint
    found = graph.encode_documents(texts).toarray()
    np.testing.assert_allclose(
        found, encoder.encode_documents(texts).toarray(), rtol=1e-6, atol=1e-5
    )
    assert (graph.encode_queries(texts) != encoder.encode_queries(texts)).nnz == 0
    graph.save_pretrained(tmp_path / "again")
    assert open_encoder(tmp_path / "again").backend is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_model": "bow", "query_top_k": 2}, "query_top_k: 2 does nothing: with query_model"),
        ({"query_model": "bow", "lexical": "query"}, "lexical: query does nothing: with query_mod"),
        ({"query_model": "idf", "lexical": "query"}, "lexical: query does nothing: with query_mod"),
    ],
)
def test_settings_of_queries_that_a_table_does_not_hear(
    options: dict[str, Any], message: str, masked_bert: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        SpladeEncoder.from_pretrained(masked_bert, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("noted", [{"query_top_k": 5}, {"lexical": "query"}])
@pytest.mark.parametrize("query_model", ["bow", "idf"])
def test_folders_that_note_such_settings_open_as_they_did(
    query_model: Any, noted: dict[str, Any], masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    """Earlier versions saved them, and an index knows its encoder by a fingerprint with them."""
    SpladeEncoder.from_pretrained(masked_bert, **noted).save_pretrained(tmp_path / "shared")
    encoder = SpladeEncoder.from_pretrained(tmp_path / "shared", query_model=query_model)
    encoder.save_pretrained(tmp_path / "m")
    again = open_encoder(tmp_path / "m")
    assert again.fingerprint == encoder.fingerprint
    assert (again.encode_queries(texts) != encoder.encode_queries(texts)).nnz == 0
    if query_model == "idf":
        assert open_encoder(tmp_path / "m" / "document").query_model == "bow"


def test_a_new_head_refuses_them_too(masked_bert: Path, texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="query_top_k: 2 does nothing"):
        start_splade(masked_bert, texts, query_model="bow", query_top_k=2)
