"""Concept encoders: the formula in float64, SPLADE as a limit, the inverted index, bad lists."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from sluice.encoders import ConceptEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.splade.concepts.head import ConceptHead
from sluice.encoders.splade.concepts.names import read_concepts
from sluice.indexing import InvertedIndex
from sluice.training import fit
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example, Text

NAMES = ["river gold", "sluice", "dense vectors", "water", "search", "rank", "stone"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("concepts") / "concepts.txt"
    file.write_text("".join(f"{name}\n" for name in NAMES))
    return str(file)


def started(bert: Path, vocabulary: str, **options: Any) -> ConceptEncoder:
    return ConceptEncoder.from_pretrained(bert, vocabulary=vocabulary, **options)


def by_hand(vectors: NDArray[np.float32], encoder: ConceptEncoder) -> NDArray[np.float64]:
    """The weights of rows that the head reads, as its formula has them."""
    weight, bias = (p.detach().double().numpy() for p in encoder.head.parameters())
    table = np.zeros((len(vectors), len(bias)))
    for row, vector in enumerate(vectors.astype(np.float64)):
        for column in range(len(bias)):
            logit = sum(a * b for a, b in zip(weight[column], vector, strict=True)) + bias[column]
            table[row, column] = np.log(1 + max(logit, 0.0))
    return table


@pytest.mark.parametrize("packed", [True, False])
def test_texts_by_hand(bert: Path, vocabulary: str, texts: list[str], packed: bool) -> None:
    encoder, dense = started(bert, vocabulary), DenseEncoder.from_pretrained(bert)
    encoder.packed = encoder.dense.packed = encoder.dense.packed_training = packed
    found = encoder.encode_documents(texts)
    assert found.shape == (len(texts), len(NAMES))
    assert found.has_sorted_indices
    expected = by_hand(dense.encode_documents(texts), encoder)
    assert 0 < (expected > 0).mean() < 1
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-4)
    graded = encoder.embed(encoder.tokenize(texts, "document"), "document")
    np.testing.assert_allclose(graded.detach().numpy(), expected, atol=1e-4)
    graded.square().sum().backward()
    for name in ("concepts.weight", "model.encoder.layer.0.output.dense.weight"):
        gradient = encoder.module.get_parameter(name).grad
        assert gradient is not None
        assert float(gradient.abs().max()) > 0


def test_a_start_has_a_text_by_its_cosine_with_the_name(bert: Path, vocabulary: str) -> None:
    encoder = started(bert, vocabulary, scale=10.0, threshold=0.1)
    dense = DenseEncoder.from_pretrained(bert)
    cosines = dense.encode_documents(["gold"]) @ dense.encode_documents(NAMES).T
    expected = np.log1p(np.maximum(10 * (cosines.astype(np.float64) - 0.1), 0))
    np.testing.assert_allclose(encoder.encode_queries(["gold"]).toarray(), expected, atol=1e-5)
    names = dense.encode_documents(NAMES).astype(np.float64)
    between = [names[i] @ names[j] for i in range(7) for j in range(i)]
    bias = started(bert, vocabulary).head.bias.detach().numpy()
    np.testing.assert_allclose(bias, -20 * np.quantile(between, 0.9), rtol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
def test_tokens_by_hand(bert: Path, vocabulary: str, texts: list[str], packed: bool) -> None:
    encoder = started(bert, vocabulary, read="tokens")
    encoder.packed = encoder.dense.packed = encoder.dense.packed_training = packed
    found = encoder.encode_documents(texts).toarray()
    graded = encoder.embed(encoder.tokenize(texts, "document"), "document").detach().numpy()
    for row, ids in enumerate(encoder.token_ids(texts, "document")):
        with torch.no_grad():
            states = encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        expected = by_hand(unit, encoder).max(axis=0)
        np.testing.assert_allclose(found[row], expected, atol=1e-4)
        np.testing.assert_allclose(graded[row], expected, atol=1e-4)


def test_over_all_words_by_the_head_of_a_language_model_it_is_splade(
    masked_bert: Path, texts: list[str]
) -> None:
    splade = SpladeEncoder.from_pretrained(masked_bert)
    decoder = splade.model.get_output_embeddings()
    head = ConceptHead(decoder.weight.detach().clone(), decoder.bias.detach().clone())
    features = splade.tokenize(texts, "document")
    ours = head(splade.hidden(features), features["attention_mask"])
    assert torch.equal(ours, splade.embed(features, "document"))


def test_an_inverted_index_serves_it_and_concepts_are_readable(
    bert: Path, vocabulary: str, texts: list[str]
) -> None:
    encoder = started(bert, vocabulary)
    documents, queries = encoder.encode_documents(texts), encoder.encode_queries(["gold", "", "x"])
    index = InvertedIndex()
    index.add(documents)
    hits = index.search(queries, len(texts))
    scores = queries.toarray().astype(np.float64) @ documents.toarray().astype(np.float64).T
    for query, (rows, found) in enumerate(zip(hits.rows, hits.scores, strict=True)):
        own = rows[rows >= 0]
        np.testing.assert_allclose(found[rows >= 0], scores[query, own], rtol=1e-5)
        assert set(own) == set(np.flatnonzero(scores[query] > 0))
    assert encoder.terms([0, 4]) == ["river gold", "search"]
    [top] = encoder.top_concepts(["sluice"], 5)
    assert top[0].name == "sluice"
    weights = documents.toarray()
    for row, concepts in enumerate(encoder.top_concepts(texts, 3)):
        order = sorted(range(len(NAMES)), key=lambda c: (-weights[row, c], c))[:3]
        assert [each.name for each in concepts] == [
            NAMES[column] for column in order if weights[row, column] > 0
        ]
    assert encoder.encode_documents([]).shape == (0, len(NAMES))


def test_saved_copied_and_opened(
    bert: Path, vocabulary: str, texts: list[str], tmp_path: Path
) -> None:
    for read in ("text", "tokens"):
        encoder = started(bert, vocabulary, read=read, query_prompt="river ")
        with torch.no_grad():
            encoder.head.bias.add_(0.5)
        encoder.save_pretrained(tmp_path / read)
        opened = open_encoder(tmp_path / read)
        assert isinstance(opened, ConceptEncoder)
        assert opened.fingerprint == encoder.fingerprint
        ours, theirs = (each.encode_queries(texts).toarray() for each in (opened, encoder))
        np.testing.assert_array_equal(ours, theirs)
    renamed = tmp_path / "text" / "3_Concepts" / "concepts.txt"
    renamed.write_text(renamed.read_text().replace("sluice", "sieve"))
    other = open_encoder(tmp_path / "text")
    assert other.names[1] == "sieve"
    assert other.fingerprint != started(bert, vocabulary).fingerprint
    with pytest.raises(ModelError, match="a concept encoder's folder; load it with type: concepts"):
        DenseEncoder.from_pretrained(tmp_path / "text")
    with pytest.raises(ConfigError, match=r"vocabulary: .* has concepts of its own"):
        ConceptEncoder.from_pretrained(tmp_path / "text", vocabulary=vocabulary)


def test_documents_without_any_concept_are_said_once(
    bert: Path, vocabulary: str, texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    encoder = started(bert, vocabulary, threshold=0.9999)
    with caplog.at_level(logging.WARNING, "sluice"):
        assert not encoder.encode_queries(["gold"]).nnz
        assert not caplog.records
        for _ in range(2):
            assert not encoder.encode_documents(texts).nnz
    assert [record.getMessage() for record in caplog.records] == [
        "8 of 8 documents have none of the 7 concepts, and no search finds them; give a lower "
        "threshold where the training starts, or less sparsity"
    ]


def test_a_text_without_tokens_has_no_concept(bert: Path, vocabulary: str) -> None:
    encoder = started(bert, vocabulary)
    with torch.no_grad():
        encoder.head.bias.fill_(5.0)  # which every text has then
    features = encoder.tokenize(["gold", "gold"], "query")
    features["attention_mask"][1] = 0
    weights = encoder.embed(features, "query").detach()
    assert bool((weights[0] > 0).all())
    assert not weights[1].any()


@pytest.mark.thorough
def test_trained_sparse_resumed_and_cached(bert: Path, vocabulary: str, tmp_path: Path) -> None:
    def fitted(folder: str, **options: Any) -> dict[str, torch.Tensor]:
        encoder = started(bert, vocabulary, threshold=0.8)
        for part in encoder.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        examples = [
            Example(Text(f"q{n}", name), (Text(f"d{n}", f"the {name} of {n}"),))
            for n, name in enumerate(NAMES)
        ]
        fit(
            encoder, examples, InfoNCE(temperature=1.0), output=tmp_path / folder,
            trainer={"max_steps": 4, "per_device_train_batch_size": 3, "learning_rate": 0.05,
                     "save_steps": 2, "save_total_limit": 4, "optim": "sgd"},
            sparsity={"document": {"type": "flops", "weight": 0.01}}, **options,
        )  # fmt: skip
        return {n: p.detach().clone() for n, p in encoder.module.named_parameters()}

    whole = fitted("one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "checkpoint-4")
    resumed, cached = fitted("two"), fitted("three", gradient_cache=1)
    start = dict(started(bert, vocabulary).module.named_parameters())
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
        torch.testing.assert_close(value, cached[name], rtol=0, atol=5e-5)
    assert not torch.equal(whole["concepts.weight"], start["concepts.weight"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a\n\nb\n", "concepts.txt:2: a blank line"),
        ("a\nb\n  \n", "concepts.txt:3: a blank line"),
        ("gold  rush\nwater\nGold rush\n", "concepts.txt:3: 'Gold rush' is in line 1 too; delete"),
        ("one\n", "1 concepts, expected 2 to 1,000,000"),
        ("", "0 concepts, expected 2"),
        (b"\xff\xfe\x00", "not readable as UTF-8"),
        (None, "vocabulary: no file"),
    ],
)
def test_bad_lists_are_refused_with_the_line(tmp_path: Path, text: Any, says: str) -> None:
    file = tmp_path / "concepts.txt"
    if isinstance(text, bytes):
        file.write_bytes(text)
    elif text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_concepts(file)


def test_names_are_read_as_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "concepts.txt"
    file.write_bytes("\ufeffC++\r\n Übung  macht \r\nC#".encode())
    assert read_concepts(file) == ["C++", "Übung macht", "C#"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocabulary": None}, "vocabulary: missing: .* name a text file"),
        ({"read": "words"}, "read: 'words', expected text or tokens"),
        ({"scale": 0}, "scale: 0, expected a number above 0"),
        ({"threshold": 1.0}, "threshold: 1.0, expected a cosine"),
        ({"read": "tokens", "projection": 8}, "read: tokens: tokens have 32 dimensions .* 8"),
    ],
)
def test_settings_that_cannot_be(
    bert: Path, vocabulary: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ConceptEncoder.from_pretrained(bert, **{"vocabulary": vocabulary, **options})


def test_damaged_folders(bert: Path, vocabulary: str, tmp_path: Path) -> None:
    started(bert, vocabulary).save_pretrained(tmp_path / "whole")

    def damaged(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "whole", tmp_path / name))

    folder = damaged("names")
    names = folder / "3_Concepts" / "concepts.txt"
    names.write_text(names.read_text() + "sluice\n")
    with pytest.raises(ModelError, match=r"concepts.txt:8: 'sluice' is in line 2 too"):
        open_encoder(folder)
    names.write_text("a\nb\n")
    with pytest.raises(ModelError, match=r"head.safetensors: holds .*\(7, 32\).* expected"):
        open_encoder(folder)
    names.unlink()
    with pytest.raises(ModelError, match=r"concepts\.txt"):
        open_encoder(folder)
    folder = damaged("weights")
    file = folder / "3_Concepts" / "head.safetensors"
    save_file({k: v.half() for k, v in load_file(file).items()}, file)
    with pytest.raises(ModelError, match="expected float32"):
        open_encoder(folder)
    for number, noted in enumerate(([], {"read": "words"}, {})):
        folder = damaged(f"noted{number}")
        facts = json.loads((folder / "sluice.json").read_text())
        (folder / "sluice.json").write_text(json.dumps({**facts, "concepts": noted}))
        with pytest.raises(ModelError, match=r"sluice\.json: concepts is .*expected"):
            open_encoder(folder)
