"""Gaussian encoders: the divergence by hand, gradients, limits, saving, indexes, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import save_tokenizer
from torch.autograd import gradcheck

from sluice.encoders import DenseEncoder, GaussianEncoder
from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.own.gaussian.encoder import Gaussians, augmented, gaussians_of
from sluice.encoders.transformer.tokens import Tokens
from sluice.indexing import AutoIndex, FaissIndex, FlatIndex, FunnelIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.stages.feedback.dense import prf

REFERENCE = 0.3


def divergence(query: Gaussians, document: Gaussians) -> NDArray[np.float64]:
    """KL(query || document) of every pair ``[B, N]``, as its definition has it."""
    table = np.zeros((len(query.means), len(document.means)))
    for row, (mean, variance) in enumerate(zip(*query, strict=True)):
        for column, (other, spread) in enumerate(zip(*document, strict=True)):
            table[row, column] = 0.5 * sum(
                math.log(w / v) - 1 + (v + (m - n) ** 2) / w
                for m, v, n, w in zip(mean, variance, other, spread, strict=True)
            )
    return table


def drawn(seed: int, count: int, width: int = 6) -> Gaussians:
    chance = np.random.default_rng(seed)
    return Gaussians(chance.normal(size=(count, width)), chance.uniform(0.05, 2, (count, width)))


def vectors_of(gaussians: Gaussians, side: Any, reference: float = REFERENCE) -> torch.Tensor:
    return augmented(
        torch.tensor(gaussians.means), torch.tensor(gaussians.variances), side, reference
    )


def test_inner_products_are_the_divergence_but_for_what_the_query_alone_decides() -> None:
    queries, documents = drawn(0, 4), drawn(1, 7)
    scores = vectors_of(queries, "query") @ vectors_of(documents, "document").T
    means, variances = queries
    own = ((variances + means**2) / REFERENCE - np.log(variances / REFERENCE) - 1).sum(1)
    expected = -2 * divergence(queries, documents) + own[:, None]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-11)
    # and torch's own divergence
    normal = torch.distributions.Normal
    one = normal(torch.tensor(means[0]), torch.tensor(variances[0]).sqrt())
    other = normal(torch.tensor(documents.means[2]), torch.tensor(documents.variances[2]).sqrt())
    theirs = torch.distributions.kl_divergence(one, other).sum()
    assert scores[0, 2].item() == pytest.approx(-2 * theirs.item() + own[0], abs=1e-11)


def test_equal_variances_rank_by_distance() -> None:
    queries, documents = drawn(0, 3), drawn(1, 20)
    level = Gaussians(documents.means, np.full_like(documents.variances, 0.7))
    scores = (vectors_of(queries, "query") @ vectors_of(level, "document").T).numpy()
    distances = np.square(queries.means[:, None] - level.means).sum(2)
    assert (np.argsort(-scores, axis=1) == np.argsort(distances, axis=1)).all()


@pytest.mark.parametrize("side", ["query", "document"])
def test_gaussians_are_read_back_and_gradients_are_right(side: Any) -> None:
    given = drawn(5, 3)
    back = gaussians_of(vectors_of(given, side).numpy(), side, REFERENCE)
    np.testing.assert_allclose(back.means, given.means, atol=1e-12)
    np.testing.assert_allclose(back.variances, given.variances, atol=1e-12)
    leaves = [torch.tensor(values, requires_grad=True) for values in given]
    assert gradcheck(lambda m, v: augmented(m, v, side, REFERENCE), leaves)


def trained(model: Path, **options: Any) -> GaussianEncoder:
    """An encoder whose variances differ."""
    encoder = GaussianEncoder.from_pretrained(model, **options)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        weight = encoder.variance.linear.linear.weight
        weight.copy_(0.3 * torch.randn(weight.shape, generator=draw))
    return encoder


def by_hand(encoder: GaussianEncoder, text: str) -> Gaussians:
    """Mean and variance from transformers' own states, in float64, as the paper has them."""
    ids = torch.tensor([encoder.token_ids([text], "document")[0]])
    with torch.no_grad():
        states = encoder.model(input_ids=ids).last_hidden_state[0].double().numpy()
    token = encoder.variance.settings.token
    kept = np.delete(states, 1, axis=0) if token else states  # [CLS] [VAR] text [SEP]
    pooled = kept[0] if encoder.pooling == "cls" else kept.mean(0)
    linear = encoder.variance.linear.linear
    read = states[1] if token else pooled
    logits = linear.weight.detach().double().numpy() @ read + linear.bias.detach().numpy()
    floor, beta = encoder.variance.settings.floor, encoder.variance.settings.beta
    variance = floor + np.log1p(np.exp(beta * logits)) / beta
    if encoder.projection is not None:
        layer = encoder.projection.linear
        pooled = layer.weight.detach().double().numpy() @ pooled + layer.bias.detach().numpy()
    return Gaussians(pooled / np.linalg.norm(pooled) if encoder.unit_means else pooled, variance)


@pytest.mark.parametrize(
    ("options", "packed"),
    [
        ({"pooling": "cls", "normalize": False, "variance_floor": 0.01, "beta": 4.0}, True),
        ({"variance_token": "", "projection": 8, "start_variance": 0.5}, True),
        ({"document_prompt": "the river "}, True),
        ({"document_prompt": "the river "}, False),
    ],
)
def test_texts_by_hand(bert: Path, texts: list[str], options: dict[str, Any], packed: bool) -> None:
    encoder = trained(bert, **options)
    encoder.packed = encoder.packed_training = packed
    found = encoder.encode_documents(texts)
    assert found.shape == (len(texts), encoder.dim)
    expected = [by_hand(encoder, text) for text in texts]
    ours = encoder.gaussians(found, "document")
    np.testing.assert_allclose(ours.means, [each.means for each in expected], atol=5e-5)
    np.testing.assert_allclose(ours.variances, [each.variances for each in expected], rtol=1e-4)
    assert np.ptp(ours.variances) > 0.05
    graded = encoder.embed(encoder.tokenize(texts, "document"), "document")
    np.testing.assert_allclose(graded.detach().numpy(), found, rtol=2e-4, atol=2e-4)
    graded.square().sum().backward()
    for name in ("variance.linear.linear.weight", "model.encoder.layer.0.output.dense.weight"):
        gradient = encoder.module.get_parameter(name).grad
        assert gradient is not None
        assert float(gradient.abs().max()) > 0


def test_a_new_one_ranks_as_the_dense_encoder_it_starts_from(bert: Path, texts: list[str]) -> None:
    """Without a token of its own it sees the same text; scores are 20 cosines less 10."""
    encoder = GaussianEncoder.from_pretrained(bert, variance_token="")
    dense = DenseEncoder.from_pretrained(bert)
    scores = encoder.encode_queries(texts) @ encoder.encode_documents(texts).T
    cosines = dense.encode_queries(texts) @ dense.encode_documents(texts).T
    np.testing.assert_allclose(scores, 20 * cosines - 10, atol=1e-4)
    assert encoder.uncertainty(encoder.encode_queries(texts)) == pytest.approx(math.log(0.1))


def test_a_document_without_tokens_scores_as_a_cosine_of_0(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tokenizer that puts none of its own around texts."""
    encoder = GaussianEncoder.from_pretrained(bert, variance_token="", start_variance=0.2)
    whole = encoder.tokens

    def bare(texts: Any, side: str) -> Tokens:
        return Tokens(
            [
                ids if text else ids[:0]
                for text, ids in zip(texts, whole(texts, side).ids, strict=True)
            ],
            None,
        )

    monkeypatch.setattr(encoder, "tokens", bare)
    scores = encoder.encode_queries(["gold", "x"]) @ encoder.encode_documents([""]).T
    assert scores == pytest.approx(-1 / 0.2)


def test_the_mean_log_variance_of_queries(bert: Path, texts: list[str]) -> None:
    encoder = trained(bert)
    expected = [np.log(by_hand(encoder, text).variances).mean() for text in texts]
    uncertainty = hooks_of(encoder).uncertainty
    assert uncertainty is not None
    np.testing.assert_allclose(uncertainty(encoder.encode_queries(texts)), expected, atol=1e-4)
    assert hooks_of(DenseEncoder.from_pretrained(bert)).uncertainty is None


class Ranked(NamedTuple):
    """An encoder, texts, and the best ten of them for each query, by the definition."""

    encoder: GaussianEncoder
    texts: list[str]
    best: dict[str, list[str]]


@pytest.fixture(scope="module")
def ranked(bert: Path) -> Ranked:
    words = ["river", "gold", "stone", "water", "sluice"]
    texts = [f"{one} of {two}" for one in words for two in words]
    encoder, asked = trained(bert), ["gold river", "index", "a stone in water"]
    by_formula = [by_hand(encoder, text) for text in [*asked, *texts]]
    means, variances = (np.array(side) for side in zip(*by_formula, strict=True))
    count = len(asked)
    table = divergence(
        Gaussians(means[:count], variances[:count]), Gaussians(means[count:], variances[count:])
    )
    order = np.argsort(table, axis=1, kind="stable")[:, :10]
    best = {query: [texts[place] for place in order[row]] for row, query in enumerate(asked)}
    return Ranked(encoder, texts, best)


@pytest.mark.thorough
@pytest.mark.parametrize("index", [
    FlatIndex, lambda: FaissIndex("Flat"), lambda: FaissIndex("HNSW32"), FunnelIndex, AutoIndex,
], ids=["flat", "faiss", "hnsw", "funnel", "auto"])  # fmt: skip
def test_every_index_of_inner_products_ranks_by_divergence(ranked: Ranked, index: Any) -> None:
    corpus = [Document(text, "", text) for text in ranked.texts]
    retriever = Retriever.build(ranked.encoder, corpus, index=index())
    for query, best in ranked.best.items():
        assert [hit.doc_id for hit in retriever.search(query, k=10)] == best


def test_others_refuse_its_folder_and_it_refuses_damage(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "m"
    trained(bert).save_pretrained(folder)
    with pytest.raises(ModelError, match="type: gaussian"):
        DenseEncoder.from_pretrained(folder)
    with pytest.raises((ImportError, ValueError, TypeError, AttributeError)):
        SentenceTransformer(str(folder), device="cpu")
    for option in ({"start_variance": 0.2}, {"projection": 4}, {"variance_token": ""}):
        with pytest.raises(ConfigError, match=f"{next(iter(option))}: .*has its own"):
            GaussianEncoder.from_pretrained(folder, **option)
    sidecar = json.loads((folder / "sluice.json").read_text())
    for changes, says in (
        ({"gaussian": None}, "sluice.json"),
        ({"gaussian": {"start": -1}}, "start_variance"),
        ({"gaussian": {"start": 0.1, "token": 3}}, "token"),
        ({"gaussian": {"start": 0.1, "token": "[NOT]"}}, r"no token '\[NOT\]'"),
        ({"gaussian": {"start": 0.1, "more": 1}}, "more"),
    ):
        (folder / "sluice.json").write_text(json.dumps(sidecar | changes))
        with pytest.raises(ModelError, match=says):
            GaussianEncoder.from_pretrained(folder)
    (folder / "sluice.json").write_text(json.dumps(sidecar))
    (module,) = folder.glob("*_Gaussian")
    config = json.loads((module / "config.json").read_text())
    (module / "config.json").write_text(json.dumps(config | {"out_features": 31}))
    with pytest.raises(ModelError):
        GaussianEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variance_floor": 0.0}, "variance_floor: 0.0, expected a number above 0"),
        ({"beta": -1}, "beta: -1, expected a number above 0"),
        ({"start_variance": 1e-5}, "start_variance: 1e-05, expected a number above"),
        ({"start_variance": float("nan")}, "start_variance is nan"),
        ({"variance_token": "a b"}, "variance_token: 'a b', expected a text without white space"),
        ({"variance_token": False}, "variance_token: False, expected a text"),
        ({"variance_token": "the"}, "variance_token: 'the' is made one token wherever it stands"),
        ({"variance_token": "[CLS]"}, r"variance_token: '\[CLS\]' .* puts around every text"),
        ({"variance_token": "[PAD]"}, r"variance_token: '\[PAD\]' .* around every text"),
        ({"pooling": "median"}, "pooling: 'median'; known: cls"),
        ({"projection": 0}, "projection"),
    ],
)
def test_settings_that_cannot_be(bert: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GaussianEncoder.from_pretrained(bert, **options)


def test_models_whose_tokens_see_only_the_past_have_no_token_before_the_text(
    tmp_path: Path, texts: list[str]
) -> None:
    import transformers

    settings = {"n_embd": 32, "n_layer": 1, "n_head": 4, "initializer_range": 0.2}
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    folder, size = tmp_path / "m", save_tokenizer(tmp_path / "m") + 4
    config = transformers.GPT2Config(vocab_size=size, n_positions=64, **settings, **ends)
    transformers.GPT2Model(config).save_pretrained(folder)
    encoder = trained(folder, pooling="last")
    assert encoder.variance.settings.token == ""
    spread = encoder.gaussians(encoder.encode_queries(texts), "query").variances
    assert (np.ptp(spread, axis=0) > 0).all()
    with pytest.raises(ConfigError, match="see only those before them"):
        GaussianEncoder.from_pretrained(folder, variance_token="[VAR]")


@pytest.mark.parametrize(("index", "says"), [
    (FlatIndex("cosine"), "index.metric: cosine"), (FaissIndex("Flat", metric="l2"), "metric: l2"),
    (FunnelIndex(dimensions=5), "index.dimensions: 5"),
    (FunnelIndex(first=FunnelIndex(dimensions=5)), "index.first.dimensions: 5"),
    (AutoIndex(exact_below=2), "auto measures with queries, and there are 0"),
], ids=["flat", "faiss", "funnel", "nested", "auto"])  # fmt: skip
def test_what_compares_other_than_a_query_and_a_document_is_refused(
    ranked: Ranked, index: Any, says: str
) -> None:
    corpus = [Document(word, "", word) for word in ("gold", "river", "stone")]
    with pytest.raises(ConfigError, match=says):
        Retriever.build(ranked.encoder, corpus, index=index)


def test_feedback_is_refused(ranked: Ranked) -> None:
    retriever = Retriever.build(ranked.encoder, [Document("gold", "", "gold")])
    with pytest.raises(ConfigError, match="two kinds, which have no mean"):
        prf(retriever).search("gold")


def test_it_is_exported(ranked: Ranked, texts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from sluice.encoders.backends.export import export_onnx

    encoder = ranked.encoder
    report = export_onnx(encoder, tmp_path / "m", texts=texts)
    assert report.kind == "gaussian"
    graph = open_encoder(tmp_path / "m", backend="onnx")
    assert graph.fingerprint == encoder.fingerprint
    for side in ("encode_queries", "encode_documents"):
        found, expected = getattr(graph, side)(texts), getattr(encoder, side)(texts)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
