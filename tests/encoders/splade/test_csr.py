"""CSR encoders: sentence-transformers' codes, the formula in float64, saved, trained, indexed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sparse_codes import LATENTS, save_csr

from sluice.encoders import CsrEncoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.indexing import InvertedIndex
from sluice.training import fit
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example, Text

LAYOUTS: dict[str, dict[str, Any]] = {
    "codes of the pooled": {},
    "of unit vectors, normalised": {"unit": True, "normalize": True},
    "compared by the cosine": {"similarity": "cosine"},
    "fewer at a time than trained with": {"limit": 5},
    "more than are above 0": {"k": 80},
}


@pytest.fixture(scope="module")
def folder(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_csr(bert, tmp_path_factory.mktemp("csr") / "m", normalize=True)


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_folder(layout: str, bert: Path, texts: list[str], tmp_path: Path) -> None:
    options = LAYOUTS[layout]
    folder = save_csr(bert, tmp_path / "m", **options)
    assert kind_of(folder) == "csr"
    ours, theirs = open_encoder(folder), SparseEncoder(str(folder), device="cpu")
    assert isinstance(ours, CsrEncoder)
    expected = np.asarray(theirs.encode(texts, convert_to_sparse_tensor=False))
    assert ours.dim == LATENTS == expected.shape[1]
    assert ours.top_k == theirs.max_active_dims
    if options.get("similarity") == "cosine":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = ours.encode_documents(texts)
    assert found.has_sorted_indices
    assert (np.diff(found.indptr) == (expected > 0).sum(axis=1)).all()
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-5)
    alone = [ours.encode_queries([text]).toarray()[0] for text in reversed(texts)]
    np.testing.assert_allclose(alone[::-1], expected, atol=1e-5)
    ours.packed = ours.dense.packed = ours.dense.packed_training = False
    np.testing.assert_allclose(ours.encode_documents(texts).toarray(), expected, atol=1e-5)
    ours.save_pretrained(tmp_path / "saved")
    opened = open_encoder(tmp_path / "saved")
    assert opened.fingerprint == ours.fingerprint
    np.testing.assert_allclose(opened.encode_documents(texts).toarray(), expected, atol=1e-5)
    again = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    assert again.max_active_dims == ours.top_k
    assert again.similarity_fn_name == theirs.similarity_fn_name
    np.testing.assert_array_equal(
        again.encode(texts, convert_to_sparse_tensor=False),
        theirs.encode(texts, convert_to_sparse_tensor=False),
    )


def test_codes_by_hand(folder: Path, texts: list[str], tmp_path: Path) -> None:
    encoder = CsrEncoder.from_pretrained(folder, top_k=4)
    state = load_file(folder / "2_SparseAutoEncoder" / "model.safetensors")
    matrix, bias, before = (
        state[name].double().numpy()
        for name in ("decoder.linear.weight", "latent_bias", "pre_bias")
    )
    shutil.copytree(folder, tmp_path / "dense")
    entries = json.loads((folder / "modules.json").read_text())
    (tmp_path / "dense" / "modules.json").write_text(json.dumps(entries[:2]))
    dense = DenseEncoder.from_pretrained(tmp_path / "dense", normalize=False)
    expected = np.zeros((len(texts), LATENTS))
    for row, vector in enumerate(dense.encode_documents(texts).astype(np.float64)):
        centred = vector - vector.mean()
        spread = (sum(x * x for x in centred) / (len(centred) - 1)) ** 0.5
        latents = matrix @ (centred / (spread + 1e-5) - before) + bias
        for place in sorted(range(LATENTS), key=lambda j: (-latents[j], j))[:4]:
            expected[row, place] = max(latents[place], 0.0)
    np.testing.assert_allclose(encoder.encode_documents(texts).toarray(), expected, atol=1e-4)
    graded = encoder.embed(encoder.tokenize(texts, "document"), "document")
    np.testing.assert_allclose(graded.detach().numpy(), expected, atol=1e-4)
    features = encoder.tokenize(["gold", "gold"], "query")
    features["attention_mask"][1] = 0
    assert not encoder.embed(features, "query")[1].any()


def test_bfloat16_is_the_dense_encoders_alone(
    folder: Path, texts: list[str], bfloat16: None
) -> None:
    encoder = CsrEncoder.from_pretrained(folder, dtype="bfloat16")
    assert encoder.dtype is torch.bfloat16
    codes = encoder.autoencoder(torch.from_numpy(encoder.dense.encode_documents(texts)))
    found = encoder.encode_documents(texts)
    np.testing.assert_allclose(found.toarray(), codes.detach().numpy(), atol=1e-6)


def test_equal_latents_are_kept_by_number(folder: Path) -> None:
    head = CsrEncoder.from_pretrained(folder, top_k=2).autoencoder
    with torch.no_grad():
        head.weight.zero_()
        head.latent_bias.fill_(0.5)
    codes = head(torch.ones(1, 32))
    assert codes.nonzero()[:, 1].tolist() == [0, 1]


def test_five_steps(folder: Path, tmp_path: Path) -> None:
    encoder = CsrEncoder.from_pretrained(folder)
    for part in encoder.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    words = ["gold", "river", "stone", "water"]
    examples = [
        Example(Text(f"q{n}", word), (Text(f"d{n}", f"the {word} of {n}"),))
        for n, word in enumerate(words)
    ]
    before = {name: p.detach().clone() for name, p in encoder.module.named_parameters()}
    fit(
        encoder, examples, InfoNCE(temperature=1.0), output=tmp_path,
        trainer={"max_steps": 5, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
                 "logging_steps": 1},
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert (np.diff(encoder.encode_documents(words).indptr) <= encoder.top_k).all()
    moved = {name for name, p in encoder.module.named_parameters() if not p.equal(before[name])}
    assert {"autoencoder.weight", "autoencoder.pre_bias", "autoencoder.latent_bias"} <= moved
    assert "model.encoder.layer.0.output.dense.weight" in moved


def test_an_inverted_index_finds_them(folder: Path, texts: list[str]) -> None:
    encoder = CsrEncoder.from_pretrained(folder)
    documents, queries = encoder.encode_documents(texts), encoder.encode_queries(["gold", "x"])
    index = InvertedIndex()
    index.add(documents)
    hits = index.search(queries, len(texts) + 3)
    scores = queries.toarray().astype(np.float64) @ documents.toarray().astype(np.float64).T
    for query, (rows, found) in enumerate(zip(hits.rows, hits.scores, strict=True)):
        assert set(rows[rows >= 0]) == set(np.flatnonzero(scores[query] > 0))
        np.testing.assert_allclose(found[rows >= 0], scores[query, rows[rows >= 0]], rtol=1e-5)
    assert encoder.encode_documents([]).shape == (0, LATENTS)


PLACE = "2_SparseAutoEncoder"


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / PLACE / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        state = load_file(folder / PLACE / "model.safetensors")
        change(state)
        save_file(state, folder / PLACE / "model.safetensors")

    return rewrite


def limit(folder: Path) -> None:
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_active_dims": 97}))


def pickled(folder: Path) -> None:
    (folder / PLACE / "model.safetensors").rename(folder / PLACE / "pytorch_model.bin")


def first(folder: Path) -> None:
    entries = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([entries[0], entries[2], entries[1]]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (config(input_dim=31), "input_dim and hidden_dim are 31 and 96; expected 32"),
        (config(hidden_dim=10**12), "expected numbers of .*1000000000000, 32"),
        (config(k=97), "k is 97; expected 1 to 96"),
        (config(normalize="yes"), "normalize is 'yes'"),
        (config(k_aux=-1), "k_aux is -1; expected a whole number, 0 or more"),
        (config(dead_threshold="30"), "dead_threshold is '30'; expected a whole number"),
        (weights(lambda s: s.pop("pre_bias")), "holds .*expected numbers of"),
        (weights(lambda s: s["pre_bias"].fill_(float("nan"))), "pre_bias has numbers that are not"),
        (
            weights(lambda s: s.update({"encoder.weight": s["decoder.linear.weight"] + 1})),
            "encoder.weight and decoder.linear.weight differ",
        ),
        (lambda folder: shutil.rmtree(folder / PLACE), "config.json: missing; take the folder"),
        (limit, "max_active_dims is 97; expected 1 to 96"),
        (pickled, "sluice model import"),
        (first, "SparseAutoEncoder only at the end"),
    ],
)
def test_damaged_folders(
    damage: Callable[[Path], None], says: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(ModelError, match=says):
        CsrEncoder.from_pretrained(tmp_path / "m")


def test_other_uses(folder: Path, bert: Path) -> None:
    with pytest.raises(ModelError, match="a CSR encoder's folder; load it with type: csr"):
        DenseEncoder.from_pretrained(folder)
    with pytest.raises(ModelError, match=r"has no sparse autoencoder; .* by type: dense"):
        CsrEncoder.from_pretrained(bert)
    for top_k in (0, 97, True, 2.5):
        with pytest.raises(ConfigError, match=rf"top_k: {top_k}; expected 1 to 96"):
            CsrEncoder.from_pretrained(folder, top_k=top_k)
