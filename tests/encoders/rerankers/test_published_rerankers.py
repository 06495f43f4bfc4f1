"""Published rerankers: two labels, monoT5's true and false, Qwen3's yes and no, BGE's Yes."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from published import DECODER, T5, byte_pairs, network, spaced_pairs, unigrams
from sentence_transformers import CrossEncoder as Theirs
from tiny_models import save_model

from sluice.encoders import CrossEncoder, as_scorer
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.rerankers.recipes import RECIPES, recipe_of
from sluice.retrieval import Document, Rerank, Retriever
from sluice.retrieval.stages.generative.rerankers import generative, generative_http

PAIRS = [
    ("gold", "a river of gold"), ("gold", ""), ("deep water", "x"), ("rank", "learn to rank " * 9),
    ("gold", "a river of gold"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ["Bert", "Deberta"])
@pytest.mark.parametrize("names", [None, {0: "irrelevant", 1: "relevant"}, {0: "yes", 1: "no"}])
def test_two_labels_are_log_odds(architecture: str, names: Any, tmp_path: Path) -> None:
    kept = {} if names is None else {"id2label": names}
    folder = save_model(tmp_path / "m", "ForSequenceClassification", num_labels=2, **kept)
    if architecture != "Bert":
        config = transformers.DebertaV2Config(
            vocab_size=120, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
            intermediate_size=32, max_position_embeddings=64, type_vocab_size=0, num_labels=2,
            initializer_range=0.2, **kept,
        )  # fmt: skip
        torch.manual_seed(1)
        transformers.DebertaV2ForSequenceClassification(config).save_pretrained(folder)
    assert kind_of(folder) == "cross_encoder"
    ours = CrossEncoder.from_pretrained(folder, device="cpu")
    scores = ours.score(PAIRS)
    both = Theirs(str(folder), device="cpu").predict(PAIRS, activation_fn=torch.nn.Identity())
    relevant = 0 if names == {0: "yes", 1: "no"} else 1
    np.testing.assert_allclose(scores, both[:, relevant] - both[:, 1 - relevant], atol=1e-5)
    chances = np.exp(both) / np.exp(both).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), chances[:, relevant], atol=1e-5)
    embedded = ours.logits(ours.tokenize_pairs(PAIRS))
    np.testing.assert_allclose(embedded.detach().numpy(), scores, atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    again = CrossEncoder.from_pretrained(tmp_path / "ours", device="cpu")
    np.testing.assert_allclose(again.score(PAIRS[::-1])[::-1], scores, atol=1e-5)
    assert again.fingerprint == ours.fingerprint
    if names is None and architecture == "Bert":  # the configuration does not say
        assert "id2label" not in json.loads((folder / "config.json").read_text())
        with torch.enable_grad():
            ours.logits(ours.tokenize_pairs(PAIRS)).sum().backward()
        assert all(p.grad is not None for n, p in ours.module.named_parameters() if "classif" in n)


def test_two_labels_learn_in_five_steps(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "ForSequenceClassification", num_labels=2)
    encoder, losses = CrossEncoder.from_pretrained(folder, device="cpu"), []
    pairs, wanted = [("gold", "a river"), ("gold", "stone"), ("deep", "water")], torch.eye(3)[0]
    optimiser = torch.optim.Adam(encoder.module.parameters(), lr=2e-3)
    for _ in range(5):
        logits = encoder.logits(encoder.tokenize_pairs(pairs))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    corpus = [Document(f"d{n}", "", text) for n, (_, text) in enumerate(pairs)]
    stage = Retriever.build("bm25", [*corpus, Document("d3", "", "gold")]) >> Rerank(encoder)
    [hit] = stage.search("gold", k=5)
    assert hit.score == pytest.approx(float(encoder.score([("gold", "gold")])[0]), abs=1e-5)


def test_more_labels_are_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "ForSequenceClassification", num_labels=3)
    with pytest.raises(ModelError, match=r"config\.json: a classifier of 3 labels"):
        as_scorer(str(folder))


MONO = {
    "monoT5": ("monot5-base-msmarco", "T5ForConditionalGeneration", ("true", "false")),
    "mT5": ("mt5-base-mmarco-v2", "MT5ForConditionalGeneration", ("yes", "no")),
}


@pytest.fixture(scope="module", params=MONO)
def mono_t5(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name, architecture, words = MONO[request.param]
    folder = tmp_path_factory.mktemp("mono") / name
    tokens = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    size = unigrams(folder, "T5Tokenizer", single="$A </s>", tokens=tokens, words=words)
    network(folder, architecture, vocab_size=size + 128, pad_token_id=0,
            eos_token_id=1, decoder_start_token_id=0, **T5)  # fmt: skip
    return request.param, folder


def test_mono_t5(mono_t5: tuple[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    """The probability of the relevant word, of the first token that the decoder writes."""
    recipe, folder = mono_t5
    _, architecture, words = MONO[recipe]
    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    true, false = (tokenizer.convert_tokens_to_ids(f"▁{word}") for word in words)
    assert tokenizer.unk_token_id not in (true, false)
    wanted = []
    for query, document in PAIRS:
        text = f"Query: {query} Document: {document} Relevant:"
        encoded = tokenizer(text, return_tensors="pt")
        start = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.no_grad():
            logits = model(**encoded, decoder_input_ids=start).logits[0, -1]
        wanted.append(float(logits[[true, false]].double().softmax(dim=0)[0]))
    with caplog.at_level(logging.INFO, "sluice"):
        reranker = generative(str(folder), context_length=512)
    assert f"asked as {recipe} was trained" in caplog.text
    scores = reranker.score(PAIRS)
    np.testing.assert_allclose(scores, wanted, rtol=1e-3)
    assert len(set(np.round(np.log(wanted), 4))) == 4
    np.testing.assert_allclose(reranker.score(PAIRS[::-1])[::-1], wanted, rtol=1e-3)
    own = generative(str(folder), context_length=512, prompt="{query} {document}")
    assert own.fingerprint != reranker.fingerprint


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen") / "Qwen3-Reranker-0.6B"
    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    size = byte_pairs(folder, "Qwen2Tokenizer", single=None, tokens=tokens, words=["yes no"] * 20,
                      further=("<|im_start|>",), chat_template=template)  # fmt: skip
    network(folder, "Qwen3ForCausalLM", vocab_size=size, pad_token_id=1, bos_token_id=1,
            eos_token_id=0, **{**DECODER, "max_position_embeddings": 1024})  # fmt: skip
    return folder


def test_qwen3_reranker(qwen3: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The authors' prefix, instruction and suffix; a softmax over no and yes."""
    model = transformers.AutoModelForCausalLM.from_pretrained(qwen3).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen3)
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    assert None not in (yes, no)
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        "and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
        "<|im_start|>user\n"
    )  # fmt: skip
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    wanted = []
    for query, document in PAIRS:
        text = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
        ids = tokenizer(before + text + after, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            logits = model(**ids).logits[0, -1]
        wanted.append(float(logits[[no, yes]].double().softmax(dim=0)[1]))
    reranker = generative(str(qwen3))
    np.testing.assert_allclose(reranker.score(PAIRS), wanted, atol=1e-5)
    assert len(set(np.round(wanted, 6))) == 4
    with caplog.at_level(logging.WARNING, "sluice"):
        as_scorer(str(qwen3))
    assert "give it the prompt of Qwen3-Reranker: type: generative" in caplog.text


@pytest.fixture(scope="module")
def bge_gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bge") / "bge-reranker-v2-gemma"
    tokens = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>",
              "unk_token": "<unk>", "mask_token": "<mask>"}  # fmt: skip
    size = spaced_pairs(folder, "GemmaTokenizer", single="<bos> $A", tokens=tokens,
                        chat_template="{{ messages }}")  # fmt: skip
    network(folder, "GemmaForCausalLM", vocab_size=size, pad_token_id=0, eos_token_id=1,
            bos_token_id=2, **{**DECODER, "max_position_embeddings": 1024})  # fmt: skip
    return folder


def test_bge_gemma(bge_gemma: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The authors' pieces, tokenised one by one after the first token; the logit of Yes."""
    model = transformers.AutoModelForCausalLM.from_pretrained(bge_gemma).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bge_gemma)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    yes = ids("Yes")[0]
    ask = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the "
        "query by providing a prediction of either 'Yes' or 'No'."
    )
    wanted = []
    for query, document in PAIRS:
        before = [tokenizer.bos_token_id, *ids(f"A: {query}"), *ids("\n"), *ids(f"B: {document}")]
        with torch.no_grad():
            logits = model(torch.tensor([[*before, *ids("\n"), *ids(ask)]])).logits[0, -1]
        wanted.append(float(logits[yes]))
    with caplog.at_level(logging.INFO, "sluice"):
        reranker = generative(str(bge_gemma))
    assert "asked as BGE reranker v2 was trained" in caplog.text
    np.testing.assert_allclose(reranker.score(PAIRS), wanted, atol=1e-5)
    np.testing.assert_allclose(reranker.score(PAIRS[::-1])[::-1], wanted, atol=1e-5)
    assert len(set(np.round(wanted, 4))) == 4
    assert len(reranker.score([])) == 0
    named = generative(str(bge_gemma), style="logit")  # its chat template has no part in it
    assert named.fingerprint == reranker.fingerprint
    np.testing.assert_array_equal(named.score(PAIRS), reranker.score(PAIRS))
    other = generative(str(bge_gemma), style="logit", chat=False, answers=["No"])
    assert other.fingerprint != reranker.fingerprint
    assert abs(other.score(PAIRS) - wanted).min() > 1e-3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"answers": ["Yes", "No"]}, r"answers: .*; style logit takes one word, such as \[Yes\]"),
        ({"answers": "Yes"}, "answers: 'Yes'; style logit takes one word"),
        ({"answers": [""]}, "answers: '' is not in this model's vocabulary"),
        ({"prompt": "A: {query}"}, r"prompt: has no \{document\}"),
        ({"grades": 3}, "grades: style logit takes prompt, answers"),
    ],
)
def test_a_logit_that_cannot_be(options: dict[str, Any], says: str, bge_gemma: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        generative(str(bge_gemma), style="logit", **options)


def test_an_endpoint_has_no_logits() -> None:
    with pytest.raises(ConfigError, match=r"style: logit; an endpoint returns no logits; take"):
        generative_http(model="m", url="http://127.0.0.1:9/v1", style="logit")
    with pytest.raises(ConfigError, match=r"first_token: true; an endpoint returns no logits"):
        generative_http(model="m", url="http://127.0.0.1:9/v1", style="listwise", first_token=True)


@pytest.mark.parametrize("name", ["LayerWiseMiniCPMForCausalLM", "CostWiseGemmaForCausalLM"])
def test_layerwise_rerankers_are_refused_by_name(
    name: str, bge_gemma: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(bge_gemma, tmp_path / "m")
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "architectures": [name]}))
    for opens in (generative, as_scorer):
        with pytest.raises(ModelError, match=rf"{name} scores by a head at each .*v2-gemma"):
            opens(str(folder))  # type: ignore[operator]


def test_recipes_are_for_published_models_alone(tmp_path: Path) -> None:
    for recipe in RECIPES:
        for model in recipe.models:
            assert recipe_of(model) == recipe
    assert recipe_of("Qwen/Qwen3-0.6B") is None
    assert recipe_of(str(tmp_path)) is None
    with pytest.raises(ConfigError, match="grades: style yes_no takes"):
        generative("Qwen/Qwen3-Reranker-0.6B", grades=3)
