"""Cross-encoders whose head compares the texts' states."""

import copy
import logging
import math
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from tiny_models import save_model, save_tokenizer

from sluice.encoders import CrossEncoder
from sluice.encoders.backends.export import export_onnx
from sluice.encoders.backends.quick import opened_quickly
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.rerankers.similarity_head import SimilarityHead, sides
from sluice.encoders.tuning.soup import soup
from sluice.encoders.tuning.tune import freeze

Rows = list[list[float]]


@pytest.fixture
def pairs(texts: list[str]) -> list[tuple[str, str]]:
    return [(query, document) for query in texts[:3] for document in texts]


def similar(model: Path, **options: object) -> CrossEncoder:
    return CrossEncoder.from_pretrained(model, head="similarity", **options)  # type: ignore[arg-type]


def cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    length = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(x * x for x in b))
    return dot / length if length else 0.0


def expected(head: SimilarityHead, first: list[float], queries: Rows, documents: Rows) -> float:
    """The formula of the head over plain lists, in float64."""
    weights = {name: value.double().tolist() for name, value in head.state_dict().items()}
    of_means = of_tokens = 0.0
    if queries and documents:
        means = [[math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
                 for rows in (queries, documents)]  # fmt: skip
        of_means = cosine(*means)
        of_tokens = math.fsum(max(cosine(q, d) for d in documents) for q in queries) / len(queries)
    inner = [
        math.tanh(math.fsum(w * x for w, x in zip(row, first, strict=True)) + bias)
        for row, bias in zip(weights["inner.weight"], weights["inner.bias"], strict=True)
    ]
    rest = math.fsum(w * x for w, x in zip(weights["outer.weight"][0], inner, strict=True))
    a, b = weights["scales"]
    score: float = a * of_means + b * of_tokens + rest + weights["outer.bias"][0]
    return score


def drawn(head: SimilarityHead) -> None:
    """Give every parameter a value of its own."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))


@pytest.mark.parametrize("packed", [True, False])
def test_scores_are_the_formula_over_the_models_own_states(
    bert: Path, pairs: list[tuple[str, str]], packed: bool
) -> None:
    encoder = similar(bert, max_length=40)
    head = encoder.similarity_head
    assert head is not None
    drawn(head)
    encoder.packed = encoder.packed_training = packed
    scores = encoder.score(pairs)
    for score, (query, document) in zip(scores, pairs, strict=True):
        features = encoder.tokenizer(
            [query], [document], truncation="longest_first", max_length=40, return_tensors="pt"
        )
        with torch.no_grad():
            states = encoder.model(**features).last_hidden_state[0].double().tolist()
        special = {encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id}
        rows: dict[int, Rows] = {0: [], 1: []}
        places = zip(
            features["input_ids"][0].tolist(), features["token_type_ids"][0].tolist(), states,
            strict=True,
        )  # fmt: skip
        for token, segment, state in places:
            if token not in special:
                rows[segment].append(state)
        assert score == pytest.approx(expected(head, states[0], rows[0], rows[1]), abs=2e-4)
    logits = encoder.logits(encoder.tokenize_pairs(pairs))
    np.testing.assert_allclose(logits.detach().numpy(), scores, atol=1e-4)


def test_the_gradient_is_that_of_the_formula(bert: Path) -> None:
    torch.manual_seed(5)
    head = SimilarityHead(6).double()
    drawn(head)
    states = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    queries = torch.tensor([[0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    documents = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 0, 0]]).bool()
    single = head.float()
    scores = single(states, queries, documents)
    for row in range(3):
        plain = states[row].tolist()
        parts = [
            [state for state, inside in zip(plain, side[row].tolist(), strict=True) if inside]
            for side in (queries, documents)
        ]
        assert scores[row].item() == pytest.approx(expected(single, plain[0], *parts), abs=1e-5)
    (gradient,) = torch.autograd.grad(scores.sum(), states)
    step = 1e-2
    for place in ((0, 0, 2), (0, 1, 3), (0, 4, 1), (1, 3, 0), (2, 2, 5)):
        moved = []
        for sign in (1, -1):
            other = states.detach().clone()
            other[place] += sign * step
            moved.append(single(other, queries, documents).sum().item())
        slope = (moved[0] - moved[1]) / (2 * step)
        assert gradient[place].item() == pytest.approx(slope, abs=2e-2, rel=2e-2)
    assert bool(gradient.isfinite().all())


def test_a_new_head_knows_more_than_chance_before_training(tmp_path: Path) -> None:
    # Random states of equal words are alike: a document that repeats the query scores above others.
    encoder = similar(save_model(tmp_path / "m", "Model", initializer_range=0.05))
    query = "gold in the river"
    scores = encoder.score([(query, query), (query, "sparse index weight"), (query, "")])
    assert scores[0] > scores[1]
    assert scores[2] == 0


def test_a_folder_keeps_its_head(
    bert: Path, pairs: list[tuple[str, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = similar(bert, max_length=30)
    assert encoder.similarity_head is not None
    assert not caplog.records
    drawn(encoder.similarity_head)
    encoder.save_pretrained(tmp_path / "m")
    assert kind_of(tmp_path / "m") == "cross_encoder"
    again = open_encoder(tmp_path / "m")
    assert again.max_length == 30
    np.testing.assert_array_equal(again.score(pairs), encoder.score(pairs))
    assert again.fingerprint == encoder.fingerprint
    assert similar(tmp_path / "m").fingerprint == again.fingerprint
    with torch.no_grad():
        again.similarity_head.scales[0] += 1
    assert again.fingerprint != encoder.fingerprint
    with caplog.at_level(logging.WARNING, "sluice"):
        other = CrossEncoder.from_pretrained(tmp_path / "m", head="classifier")
    assert other.similarity_head is None
    assert "drawn at random" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_with_values_that_are_not_finite_is_refused(
    bert: Path, tmp_path: Path, value: float
) -> None:
    encoder = similar(bert)
    assert encoder.similarity_head is not None
    with torch.no_grad():
        encoder.similarity_head.inner.weight[1, 2] = value
    encoder.save_pretrained(tmp_path / "m")
    with pytest.raises(
        ModelError, match=r"safetensors: inner\.weight has values that are not finite"
    ):
        open_encoder(tmp_path / "m")


def test_a_trained_classifier_that_is_left_out_is_named(
    pair_bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        assert similar(pair_bert).similarity_head is not None
    assert "head: similarity leaves its trained classifier out" in caplog.text


def test_soups_average_the_head_too(bert: Path, tmp_path: Path) -> None:
    values = []
    for name in ("a", "b"):
        encoder = similar(bert)
        assert encoder.similarity_head is not None
        with torch.no_grad():
            encoder.similarity_head.scales.fill_(4.0 if name == "a" else 8.0)
        encoder.save_pretrained(tmp_path / name)
        values.append(encoder)
    made = open_encoder(soup([tmp_path / "a", tmp_path / "b"], tmp_path / "soup"))
    assert made.similarity_head.scales.tolist() == [6.0, 6.0]


def test_heads_are_drawn_by_seed(bert: Path) -> None:
    first, second, other = (
        similar(bert, seed=seed).similarity_head.inner.weight  # type: ignore[union-attr]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_models_without_segments_tell_the_texts_apart(tmp_path: Path) -> None:
    size = save_tokenizer(tmp_path / "m")
    config = transformers.DistilBertConfig(
        vocab_size=size, dim=32, n_layers=1, n_heads=2, hidden_dim=64
    )
    transformers.DistilBertModel(config).save_pretrained(tmp_path / "m")
    encoder = similar(tmp_path / "m")
    features = encoder.tokenize_pairs([("gold river", "water"), ("x", "gold in the river")])
    assert "token_type_ids" not in features
    queries, documents = sides(
        features["input_ids"], features["attention_mask"], None, encoder._separators
    )
    assert queries.int().tolist() == [[0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]
    assert documents.int().tolist() == [[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 0]]
    assert np.isfinite(encoder.score([("gold", "river"), ("", "gold"), ("gold", "")])).all()


def test_two_separators_between_texts_are_one_border() -> None:
    ids = torch.tensor([[0, 7, 8, 2, 2, 9, 2, 1]])  # as RoBERTa lays a pair out
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]])
    queries, documents = sides(ids, mask, None, torch.tensor([0, 2]))
    assert queries.int().tolist() == [[0, 1, 1, 0, 0, 0, 0, 0]]
    assert documents.int().tolist() == [[0, 0, 0, 0, 0, 1, 0, 0]]


def test_a_decoder_without_separators_is_refused(tmp_path: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_word_level(), unk_token="<unk>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(tmp_path / "m")
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    transformers.LlamaModel(config).save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match=r"nothing between the texts.*; use head: classifier"):
        similar(tmp_path / "m")


def _word_level() -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: place for place, word in enumerate(["<unk>", "<pad>", "a", "b"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("packed", [True, False])
def test_terms_are_the_product_of_both_texts_word_weights(
    masked_bert: Path, pairs: list[tuple[str, str]], packed: bool, tmp_path: Path
) -> None:
    encoder = CrossEncoder.from_pretrained(masked_bert, head="terms", max_length=40)
    head = encoder.similarity_head
    assert head is not None
    drawn(head)
    encoder.packed = encoder.packed_training = packed
    scores = encoder.score(pairs)
    other = transformers.AutoModelForMaskedLM.from_pretrained(masked_bert).double().eval()
    third = head.scales[2].item()
    for score, (query, document) in zip(scores, pairs, strict=True):
        features = encoder.tokenizer(
            [query], [document], truncation="longest_first", max_length=40, return_tensors="pt"
        )
        with torch.no_grad():
            out = other(**features, output_hidden_states=True)
        ids, types = features["input_ids"][0].tolist(), features["token_type_ids"][0].tolist()
        special = {encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id}
        asked, found = (
            [place for place, token in enumerate(ids)
             if types[place] == side and token not in special]
            for side in (0, 1)
        )  # fmt: skip
        weights = np.log1p(np.maximum(out.logits[0].numpy(), 0))
        product = math.fsum(
            weights[i, ids[i]] * max((weights[j, ids[i]] for j in found), default=0.0)
            for i in asked
        )
        states = out.hidden_states[-1][0].tolist()
        rows = ([states[i] for i in asked], [states[j] for j in found])
        with torch.no_grad():
            head.scales = torch.nn.Parameter(head.scales[:2])
            rest = expected(head, states[0], *rows)
            head.scales = torch.nn.Parameter(torch.cat([head.scales, torch.tensor([third])]))
        assert score == pytest.approx(rest + third * product, abs=3e-4)
    logits = encoder.logits(encoder.tokenize_pairs(pairs))
    np.testing.assert_allclose(logits.detach().numpy(), scores, atol=1e-4)
    encoder.save_pretrained(tmp_path / "m")
    again = open_encoder(tmp_path / "m")
    np.testing.assert_allclose(again.score(pairs), scores, atol=1e-5)
    assert again.fingerprint == encoder.fingerprint
    assert CrossEncoder.from_pretrained(tmp_path / "m", head="terms").fingerprint == (
        encoder.fingerprint
    )
    with pytest.raises(ModelError, match="only Sluice runs its TermHead"):
        sentence_transformers.CrossEncoder(str(tmp_path / "m"), trust_remote_code=True)


def test_copies_of_a_head_of_terms_read_their_own_network(
    masked_bert: Path, pairs: list[tuple[str, str]]
) -> None:
    encoder = CrossEncoder.from_pretrained(masked_bert, head="terms", max_length=40)
    scores = encoder.score(pairs)
    copied, sent = copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))
    with torch.no_grad():
        for parameter in encoder.model.parameters():
            parameter.mul_(0.5)
    assert not np.allclose(encoder.score(pairs), scores)
    for other in (copied, sent):
        np.testing.assert_allclose(other.score(pairs), scores, atol=1e-5)


def test_terms_need_a_head_that_knows_words(bert: Path) -> None:
    with pytest.raises(ModelError, match="no masked-language-model head, which head: terms reads"):
        CrossEncoder.from_pretrained(bert, head="terms")


def test_freezing_leaves_the_head(bert: Path) -> None:
    encoder = similar(bert)
    freeze(encoder, layers=2, embeddings=True)
    trained = {n for n, p in encoder.module.named_parameters() if p.requires_grad}
    assert trained == {
        f"similarity_head.{name}"
        for name in ("scales", "inner.weight", "inner.bias", "outer.weight", "outer.bias")
    }


def test_bad_heads_are_named(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="head: 'similar'; expected classifier, similarity, terms; did"
    ):
        CrossEncoder.from_pretrained(bert, head="similar")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="backend: onnx; a similarity head has no exported graph"):
        similar(bert, backend="onnx")
    with pytest.raises(
        ConfigError, match=r"backend: x\.onnx; .* leave backend and backend_file out"
    ):
        similar(bert, backend_file="x.onnx")
    similar(bert).save_pretrained(tmp_path / "m")
    with pytest.raises(ConfigError, match="head: similarity cannot be exported as ONNX"):
        export_onnx(tmp_path / "m", tmp_path / "graph")
    file = tmp_path / "m" / "1_SimilarityHead" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ModelError, match="does not fit the model beside it"):
        open_encoder(tmp_path / "m")
    file.unlink()
    with pytest.raises(ModelError, match=r"sluice\.json says that the model has this head"):
        open_encoder(tmp_path / "m")


def test_the_numpy_form_leaves_the_head_to_torch(bert: Path, tmp_path: Path) -> None:
    similar(bert).save_pretrained(tmp_path / "m")
    opened = opened_quickly(
        "cross_encoder", tmp_path / "m", {}, partial(CrossEncoder.from_pretrained, tmp_path / "m")
    )
    again = opened_quickly(
        "cross_encoder", tmp_path / "m", {}, partial(CrossEncoder.from_pretrained, tmp_path / "m")
    )
    assert isinstance(opened, CrossEncoder)
    assert isinstance(again, CrossEncoder)
