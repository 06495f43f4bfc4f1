"""Rankers over token vectors: what vectors, training, folders, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from static_embeddings import TABLE, save_static
from tiny_models import vocabulary

from sluice.encoders import DenseEncoder, StaticEncoder, TokenEncoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.objects import as_scorer
from sluice.encoders.own.matching import DRMM, KNRM, Duet
from sluice.encoders.own.matching.ranker import CELLS, MatchingRanker
from sluice.encoders.own.matching.sources import SOURCES, TokenSource
from sluice.encoders.table import MATCHING
from sluice.training import LOSSES, Example, Text, fit

PAIRS = [
    ("gold river", "the gold of the river"), ("gold river", "stone and water"), ("", "gold"),
    ("water", ""), ("sluice", "the river, the stone and the gold in the sluice"),
]  # fmt: skip


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    save_static(tmp_path_factory.mktemp("static") / "model")
    return next(tmp_path_factory.getbasetemp().glob("static*/model"))


def knrm_of(vectors: list[list[list[float]]], head: Any) -> list[float]:
    """KNRM's scores of pairs of unit token vectors, in float64: K-NRM eq. 4 to 7."""
    weight, bias = (p.detach().double().numpy() for p in (head.weight, head.bias))
    scores = []
    for query, document in vectors:
        cosines = np.array([[np.dot(u, v) for v in document] for u in query])
        cosines = cosines.reshape(len(query), len(document))
        features = []
        for mean, width in [(1, 1e-3), *((m / 10, 0.1) for m in range(9, -10, -2))]:
            sums = np.exp(-((cosines - mean) ** 2) / (2 * width**2)).sum(1)
            features.append(0.01 * np.log(np.maximum(sums, 1e-10)).sum())
        scores.append(float(weight[0] @ features + bias[0]))
    return scores


def unit(values: Any) -> list[Any]:
    rows = np.asarray(values, np.float64)
    return [row / np.linalg.norm(row) for row in rows]


def test_the_states_of_a_dense_encoder(bert: Path) -> None:
    ranker = KNRM.from_pretrained(bert)
    encoder = DenseEncoder.from_pretrained(bert)
    special = {encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id}

    def states(text: str) -> list[Any]:
        ids = encoder.tokenizer(text)["input_ids"]
        with torch.no_grad():
            found = encoder.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
        return unit([row for row, one in zip(found, ids, strict=True) if one not in special])

    expected = knrm_of([[states(q), states(d)] for q, d in PAIRS], ranker.module["head"].outer)
    np.testing.assert_allclose(ranker.score(PAIRS), expected, atol=2e-5)


@pytest.mark.parametrize("kind", ["static", "dense"])
def test_a_table_is_read_without_a_network(kind: str, static: Path, bert: Path) -> None:
    if kind == "static":
        ranker, table = KNRM.from_pretrained(static), TABLE
    else:
        ranker = KNRM.from_pretrained(bert, vectors="table")
        words = DenseEncoder.from_pretrained(bert).model.get_input_embeddings().weight
        table = words.detach().numpy()
        assert isinstance(ranker.source.encoder, StaticEncoder)
    places = {piece: number for number, piece in enumerate(vocabulary())}

    def rows(text: str) -> list[Any]:
        return unit([table[places[w]] for w in text.replace(",", " ,").split()])

    expected = knrm_of([[rows(q), rows(d)] for q, d in PAIRS], ranker.module["head"].outer)
    np.testing.assert_allclose(ranker.score(PAIRS), expected, atol=1e-5)


def test_the_vectors_of_a_token_encoder(bert: Path, tmp_path: Path) -> None:
    TokenEncoder.from_pretrained(bert, expand_queries=6).save_pretrained(tmp_path / "tokens")
    ranker = KNRM.from_pretrained(tmp_path / "tokens", document_length=20)
    encoder = TokenEncoder.from_pretrained(tmp_path / "tokens", document_length=20)
    queries = encoder.encode_queries([q for q, _ in PAIRS])
    documents = encoder.encode_documents([d for _, d in PAIRS])
    made = [[unit(q), unit(d)] for q, d in zip(queries, documents, strict=True)]
    expected = knrm_of(made, ranker.module["head"].outer)
    np.testing.assert_allclose(ranker.score(PAIRS), expected, atol=2e-5)
    features = ranker.tokenize_pairs(PAIRS)
    np.testing.assert_allclose(ranker.logits(features).detach(), expected, atol=2e-5)
    # Masks that fill a query up are no token of a document.
    duet = Duet.from_pretrained(tmp_path / "tokens")
    assert np.isfinite(duet.score(PAIRS)).all()


def test_prompts_are_no_part_of_a_text(bert: Path, tmp_path: Path) -> None:
    plain = KNRM.from_pretrained(bert, vectors="states")
    prompted = DenseEncoder.from_pretrained(bert, query_prompt="query: ", document_prompt="water ")
    prompted.save_pretrained(tmp_path / "m")
    ranker = KNRM.from_pretrained(tmp_path / "m")
    (query,) = ranker.source.encode(["gold river"], "query")
    assert query.ids.tolist() == plain.source.encode(["gold river"], "query")[0].ids.tolist()


def test_every_distinct_text_is_encoded_once(static: Path, monkeypatch: Any) -> None:
    ranker = KNRM.from_pretrained(static)
    asked: list[str] = []
    encode = TokenSource.encode

    def counted(self: Any, texts: Any, side: Any) -> Any:
        asked.extend(texts)
        return encode(self, texts, side)

    monkeypatch.setattr(TokenSource, "encode", counted)
    pairs = [("gold", "water"), ("gold", "stone"), ("river", "stone"), ("gold", "water")]
    scores = ranker.score(pairs)
    assert sorted(asked) == ["gold", "river", "stone", "water"]
    assert scores[0] == scores[3]
    # The same in small batches and blocks of documents.
    monkeypatch.setattr("sluice.encoders.own.matching.ranker.CELLS", 2)
    monkeypatch.setattr("sluice.encoders.own.matching.ranker.BYTES", 1)
    np.testing.assert_allclose(ranker.score(pairs), scores, atol=1e-6)
    assert CELLS > 2


@pytest.mark.thorough
@pytest.mark.parametrize("kind", MATCHING)
def test_training_moves_the_head_alone_unless_vectors_are_trained(
    kind: str, static: Path, tmp_path: Path
) -> None:
    for train_vectors in (False, True) if kind == "knrm" else (False,):
        spec = {"type": kind, "model": str(static), "train_vectors": train_vectors}
        ranker: MatchingRanker = build(spec, MATCHING, where="encoder")
        table = ranker.source.encoder.table.weight.detach().clone()
        before = {n: p.detach().clone() for n, p in ranker.module["head"].named_parameters()}
        marks = ranker.fingerprint
        examples = [
            Example(
                Text(f"q{n}", word),
                (Text(f"d{n}", f"{word} and {word} the"), Text(f"e{n}", "of the number")),
                (1.0, 0.0),
            )
            for n, word in enumerate(["gold", "river", "stone", "water"])
        ]
        trainer = {"max_steps": 8, "learning_rate": 0.05, "per_device_train_batch_size": 4,
                   "save_strategy": "no", "logging_steps": 1}  # fmt: skip
        report = fit(
            ranker, examples, build({"type": "localized_softmax"}, LOSSES, where="loss"),
            output=tmp_path / str(train_vectors), trainer=trainer,
            gradient_cache=3 if train_vectors else None,
        )  # fmt: skip
        losses = [line["loss"] for line in report.history if "loss" in line]
        assert losses[-1] < 0.9 * losses[0]
        assert ranker.fingerprint != marks
        moved = not torch.equal(table, ranker.source.encoder.table.weight)
        assert moved == train_vectors
        names = dict(ranker.module["head"].named_parameters())
        assert any(not torch.equal(before[n], p) for n, p in names.items())
        ranker.save_pretrained(tmp_path / f"{kind}{train_vectors}")
        loaded = open_encoder(tmp_path / f"{kind}{train_vectors}")
        assert type(loaded) is type(ranker)
        np.testing.assert_array_equal(loaded.score(PAIRS), ranker.score(PAIRS))
        assert loaded.fingerprint == ranker.fingerprint


def test_a_frozen_transformer_computes_without_dropout(bert: Path) -> None:
    ranker = KNRM.from_pretrained(bert)
    ranker.module.train()
    features = ranker.tokenize_pairs(PAIRS)
    first, second = ranker.logits(features), ranker.logits(features)
    assert torch.equal(first, second)
    assert first.requires_grad
    np.testing.assert_allclose(first.detach().numpy(), ranker.score(PAIRS), atol=1e-5)
    assert {name.partition(".")[0] for name, _ in ranker.module.named_parameters()} == {"head"}


def test_a_trained_transformer_gets_gradients(bert: Path) -> None:
    ranker = KNRM.from_pretrained(bert, train_vectors=True)
    ranker.logits(ranker.tokenize_pairs(PAIRS)).sum().backward()
    gradients = [p.grad for n, p in ranker.module.named_parameters() if "layer.0" in n]
    assert gradients
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert any(g.any() for g in gradients if g is not None)


def test_a_folder_is_a_reranker_by_its_name(static: Path, tmp_path: Path) -> None:
    ranker = KNRM.from_pretrained(static)
    ranker.save_pretrained(tmp_path / "m")
    np.testing.assert_array_equal(as_scorer(tmp_path / "m").score(PAIRS), ranker.score(PAIRS))


@pytest.fixture
def saved(static: Path, tmp_path: Path) -> Path:
    KNRM.from_pretrained(static).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": 5}, "kernels: 5, and .* was trained with 11; leave it out"),
        ({"vectors": "states"}, "vectors: 'states', and .* was trained with 'table'"),
        ({"seed": 1}, "seed: draws a new head, and .* has one"),
        ({"dtype": "bfloat16"}, "dtype: unknown key; static encoder takes"),
    ],
)
def test_settings_that_a_folder_contradicts_are_refused(
    saved: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        KNRM.from_pretrained(saved, **options)
    assert KNRM.from_pretrained(saved, kernels=11, document_length=2).lengths == {"document": 2}


def test_encoders_without_token_vectors_are_refused(
    static: Path, bert: Path, masked_bert: Path, tmp_path: Path
) -> None:
    TokenEncoder.from_pretrained(bert).save_pretrained(tmp_path / "tokens")
    for model, options, message in (
        (static, {"vectors": "states"}, "vectors: states; a static encoder has a table alone"),
        (tmp_path / "tokens", {"vectors": "table"}, "vectors: table; a token encoder's are made"),
        (bert, {"vectors": "table", "dtype": "bfloat16"}, "dtype: is of a network, and vectors: t"),
        (bert, {"vectors": "table", "batch_tokens": 9}, "batch_tokens: is of a network"),
    ):
        with pytest.raises(ConfigError, match=message):
            KNRM.from_pretrained(model, **options)
    with pytest.raises(ConfigError, match="train_vectors: true; drmm counts similarities"):
        DRMM.from_pretrained(static, train_vectors=True)
    KNRM.from_pretrained(static).save_pretrained(tmp_path / "knrm")
    with pytest.raises(ModelError, match=r"a model of type knrm; expected a dense, static or tok"):
        DRMM.from_pretrained(tmp_path / "knrm")
    assert set(SOURCES) == {"dense", "static", "tokens"}


def test_damaged_folders_are_named(saved: Path, tmp_path: Path) -> None:
    def broken(name: str, **facts: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(saved, folder)
        sidecar = json.loads((folder / "sluice.json").read_text())
        (folder / "sluice.json").write_text(json.dumps({**sidecar, **facts}))
        return folder

    for name, facts, message in (
        ("a", {"settings": {"kernels": 10**9}}, "kernels is 1000000000"),
        ("b", {"settings": {"kernels": 5}}, "does not fit the settings beside it"),
        ("c", {"settings": {"kernels": "x"}}, "settings.kernels: 'x'; expected a whole number"),
        ("d", {"settings": {}}, r"settings are \{\}, expected kernels"),
        ("e", {"settings": None}, "settings are None"),
    ):
        with pytest.raises(ModelError, match=message):
            open_encoder(broken(name, **facts))
    weights = load_file(saved / "head.safetensors")
    weights["outer.bias"][0] = float("nan")
    folder = broken("f")
    save_file(weights, folder / "head.safetensors")
    with pytest.raises(ModelError, match=r"outer\.bias has values that are not finite"):
        open_encoder(folder)
    (folder / "head.safetensors").unlink()
    with pytest.raises(ModelError, match=r"head\.safetensors: missing; it holds the ranker's head"):
        open_encoder(folder)
    shutil.rmtree(folder / "encoder")
    with pytest.raises(ModelError, match="encoder: missing; it holds the encoder of the token"):
        open_encoder(folder)


def test_pairs_that_are_none_are_refused(static: Path) -> None:
    ranker = KNRM.from_pretrained(static)
    for pairs in (["ab"], [("a", 1)], [("a", "b", "c")]):
        with pytest.raises(ModelError, match=r"pair 0 is .*, expected \(query, document\)"):
            ranker.score(pairs)  # type: ignore[arg-type]
    assert ranker.score([]).shape == (0,)
