"""True/false rankers: log-odds of one word against another, by a T5's own pass and by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_generators import save_gpt2, save_t5

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.generative.true_false import ALONE, TrueFalseRanker
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.rerankers.language_model import Template
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

PAIRS = [
    ("gold river", "the stone of gold"),
    ("", "the stone"),
    ("water", ""),
    ("index", "river " * 100),
]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("models") / "t5", initializer_factor=1.0)


@pytest.fixture(scope="module")
def ranker(t5: Path) -> TrueFalseRanker:
    return TrueFalseRanker.from_pretrained(t5)


@torch.no_grad()
def expected(ranker: TrueFalseRanker, text: str) -> float:
    """log P(true) - log P(false) after a prompt, with the words' first own tokens."""
    tokenizer, model = ranker.tokenizer, ranker.model
    ids = tokenizer(text, return_tensors="pt")
    words = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ranker.words]
    start = torch.tensor([[model.config.decoder_start_token_id]])
    logits = model(**ids, decoder_input_ids=start).logits[0, -1].double().tolist()
    chances = [math.exp(logits[word]) / sum(map(math.exp, logits)) for word in words]
    return math.log(chances[0]) - math.log(chances[1])


def test_scores_are_log_odds(ranker: TrueFalseRanker) -> None:
    found = ranker.score(PAIRS)
    texts = [
        "Query: gold river Document: the stone of gold Relevant:",
        "Document: the stone Relevant:",
        "Query: water Document:  Relevant:",
    ]
    for value, text in zip(found.tolist(), texts, strict=False):
        assert value == pytest.approx(expected(ranker, text), abs=1e-4)
    assert len(ranker.tokenize_pairs(PAIRS)["input_ids"][3]) <= ranker.max_length
    assert math.isfinite(found[3])
    assert len(ranker.score([])) == 0
    one_by_one = [float(ranker.score([pair])[0]) for pair in PAIRS]
    np.testing.assert_allclose(one_by_one, found, atol=1e-4)
    logits = ranker.logits(ranker.tokenize_pairs(PAIRS))
    np.testing.assert_allclose(logits.detach().numpy(), found, atol=1e-4)


def test_without_a_query_it_says_what_a_language_model_answers(
    t5: Path, ranker: TrueFalseRanker
) -> None:
    prompts = [Template(ALONE, ["document"]).fill({"document": d}) for _, d in PAIRS]
    answers = LocalLanguageModel.from_pretrained(t5).answers(prompts, ("true", "false"))
    logs = torch.nn.functional.logsigmoid(
        torch.from_numpy(ranker.score([("", d) for _, d in PAIRS]))
    )
    shares = answers[:, 0] - np.logaddexp(answers[:, 0], answers[:, 1])
    np.testing.assert_allclose(logs.numpy(), shares, atol=1e-4)


def test_bce_is_the_cross_entropy_of_both_words(t5: Path) -> None:
    ranker = TrueFalseRanker.from_pretrained(t5)
    features, labels = ranker.tokenize_pairs(PAIRS[:2]), torch.tensor([1.0, 0.0])
    bce = torch.nn.functional.binary_cross_entropy_with_logits(ranker.logits(features), labels)
    grown = torch.autograd.grad(bce, list(ranker.model.parameters()), allow_unused=True)
    start = torch.tensor([[ranker.model.config.decoder_start_token_id]] * 2)
    logits = ranker.model(**features, decoder_input_ids=start).logits[:, -1]
    first = [ranker.tokenizer(w, add_special_tokens=False)["input_ids"][0] for w in ranker.words]
    whole = torch.nn.functional.cross_entropy(logits[:, first], torch.tensor([0, 1]))
    torch.testing.assert_close(bce, whole, atol=1e-6, rtol=1e-6)
    other = torch.autograd.grad(whole, list(ranker.model.parameters()), allow_unused=True)
    for one, two in zip(grown, other, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_a_saved_one_keeps_prompt_and_words(t5: Path, tmp_path: Path) -> None:
    asked = "Is {document} about {query}?"
    ranker = TrueFalseRanker.from_pretrained(
        t5, prompt=asked, answers=("gold", "stone"), max_length=24
    )
    ranker.save_pretrained(tmp_path / "saved")
    opened: Any = open_encoder(tmp_path / "saved")
    assert (opened.prompt, opened.words, opened.max_length) == (asked, ("gold", "stone"), 24)
    assert opened.fingerprint == ranker.fingerprint
    np.testing.assert_array_equal(opened.score(PAIRS), ranker.score(PAIRS))
    assert ranker.score(PAIRS)[1] == pytest.approx(
        expected(ranker, "Is the stone about ?"), abs=1e-4
    )
    again = TrueFalseRanker.from_pretrained(tmp_path / "saved", max_length=30)
    assert (again.prompt, again.max_length) == (asked, 30)
    LocalLanguageModel.from_pretrained(tmp_path / "saved")  # transformers reads it


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": "Query: {query}"}, r"prompt: has no \{document\}"),
        ({"prompt": "word " * 80 + "{document}"}, "or raise max_length"),
        ({"answers": "yes"}, "answers: 'yes'; expected two words, the relevant one first"),
        ({"answers": ["true", " "]}, r"answers: \['true', ' '\]; expected two words"),
        ({"answers": ["true", "true"]}, "begin with the same token"),
        ({"answers": ["true", "☃"]}, "'☃' is not in this model's vocabulary"),
        ({"max_length": 4}, "max_length is 4, expected a whole number, 8 or more"),
    ],
)
def test_settings_that_cannot_be(t5: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrueFalseRanker.from_pretrained(t5, **given)


def test_models_that_cannot_be(t5: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="GPT2LMHeadModel: a decoder alone; expected an encoder wi"
    ):
        TrueFalseRanker.from_pretrained(save_gpt2(tmp_path / "gpt2"))
    with pytest.raises(ModelError):
        TrueFalseRanker.from_pretrained(bert)
    TrueFalseRanker.from_pretrained(t5).save_pretrained(tmp_path / "saved")
    facts = tmp_path / "saved" / "sluice.json"
    noted = json.loads(facts.read_text())
    for key, value, message in (
        ("prompt", 5, "sluice.json: prompt: 5; expected text"),
        ("answers", ["true"], "sluice.json: answers: .* take it from its source again"),
        ("max_length", "long", "sluice.json: max_length"),
        ("type", "seal", "a model of type 'seal', which answers no prompt"),
    ):
        facts.write_text(json.dumps({**noted, key: value}))
        with pytest.raises(ModelError, match=message):
            TrueFalseRanker.from_pretrained(tmp_path / "saved")
