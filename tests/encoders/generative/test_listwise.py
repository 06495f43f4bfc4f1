"""Rerankers that write an order: what they read and write, what is saved, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_generators import save_gpt2, save_t5
from tiny_models import save_model

from sluice.encoders import as_encoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.generative.list_order import read_order, written_order
from sluice.encoders.generative.listwise import ListwiseRanker
from sluice.encoders.model_files.registry import open_encoder

PROMPT = "{query} : {documents} rank"
LISTS = [("gold river", ["the stone", "water", "index"]), ("term", ["rank", "a"])]


@pytest.fixture(scope="module", params=["t5", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    save = {"t5": save_t5, "gpt2": save_gpt2}[request.param]
    return save(tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def ranker(folder: Path) -> ListwiseRanker:
    return ListwiseRanker.from_pretrained(folder, prompt=PROMPT)


class Texts(dict[str, str]):
    def texts(self, document_ids: Any) -> list[str]:
        return [self[name] for name in document_ids]


class Candidates:
    def __init__(self, *doc_ids: str) -> None:
        self.doc_ids = doc_ids


def test_an_answer_has_the_tokens_of_its_text_and_their_ranks(ranker: ListwiseRanker) -> None:
    order = [2, 0, 1]
    tokens, ranks = ranker.answer("gold", ["a", "b", "c"], order)
    plain = ranker.tokenizer("[3] > [1] > [2]", add_special_tokens=False)["input_ids"]
    assert tokens == [*plain, 3]  # the end is [SEP] here
    assert ranks == [1, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3, 0]
    many = list(range(11))
    tokens, ranks = ranker.answer("gold", ["a"] * 11, many)
    said = ranker.tokenizer.convert_ids_to_tokens(tokens)
    assert [said[at] for at, rank in enumerate(ranks) if rank == 11] == [
        "[UNK]",
        "1",
        "##1",
        "[UNK]",
    ]
    assert read_order(written_order([4, 2, 0]), 5) == ([4, 2, 0, 1, 3], 3)


@torch.no_grad()
def test_logits_are_those_of_the_model_alone(ranker: ListwiseRanker) -> None:
    answers = torch.tensor([[32, 33, 34, 3], [33, 32, 3, 0]])
    logits = ranker.answer_logits(ranker.tokenize_lists(LISTS), answers)
    for row, (query, texts) in enumerate(LISTS):
        numbered = " ".join(f"[{n}] {text}" for n, text in enumerate(texts, 1))
        ids = ranker.tokenizer(f"{query} : {numbered} rank", return_tensors="pt")["input_ids"]
        own = answers[row : row + 1]
        if ranker.encoder_decoder:
            start = torch.cat([torch.zeros_like(own[:, :1]), own[:, :-1]], dim=1)
            expected = ranker.model(input_ids=ids, decoder_input_ids=start).logits[0]
        else:
            ids = torch.cat([ids[:, :-1], own], dim=1)  # without the end of the prompt
            expected = ranker.model(input_ids=ids).logits[0, -5:-1]
        kept = 4 - row  # the last of the second row is padding
        np.testing.assert_allclose(logits[row, :kept], expected[:kept], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_log_probabilities_are_sums_over_the_tokens(ranker: ListwiseRanker) -> None:
    found = ranker.log_probabilities(LISTS)
    for value, (query, texts) in zip(found, LISTS, strict=True):
        tokens, _ = ranker.answer(query, texts, range(len(texts)))
        features = ranker.tokenize_lists([(query, texts)])
        logits = ranker.answer_logits(features, torch.tensor([tokens]))[0].double().numpy()
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        expected = sum(np.log(chances[at, token]) for at, token in enumerate(tokens))
        assert value == pytest.approx(expected, rel=1e-4)


def test_scores_are_places_in_the_order_written(
    ranker: ListwiseRanker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = iter(["[2] > [3] > [1]", "no order"])
    monkeypatch.setattr(
        ranker._reader, "completions", lambda prompts, most: [next(said) for _ in prompts]
    )
    store = Texts(d1="gold", d2="river", d3="stone")
    heads = {"a": Candidates("d1", "d2", "d3"), "b": Candidates("d3", "d1"), "c": Candidates("d1")}
    scores = ranker.score_lists({"a": "x", "b": "y", "c": "z"}, heads, store)
    assert {query: each.tolist() for query, each in scores.items()} == {
        "a": [0, 2, 1], "b": [1, 0], "c": [0],
    }  # fmt: skip
    assert "1 of 2 answers name no document" in caplog.text
    assert ranker.score_lists({}, {}, store) == {}
    with pytest.raises(ConfigError, match="needs the documents' texts"):
        ranker.score_lists({}, {}, None)
    with pytest.raises(ConfigError, match="a ListwiseRanker ranks texts and encodes none"):
        as_encoder(ranker)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_first_token_orders_by_the_logits_of_letters(folder: Path) -> None:
    """(Reddy et al. 2024, FIRST.) The letters stand in the prompt and in what is trained."""
    ranker = ListwiseRanker.from_pretrained(folder, prompt=PROMPT, first_token=True)
    texts = ["the stone", "water", "index"]
    text = "gold river : [A] the stone [B] water [C] index rank"
    ids = ranker.tokenizer(text, return_tensors="pt")["input_ids"]
    before, *letters = (
        ranker.tokenizer.convert_tokens_to_ids(each) for each in ("[UNK]", "a", "b", "c")
    )
    if ranker.encoder_decoder:
        start = torch.tensor([[0, before]])
        logits = ranker.model(input_ids=ids, decoder_input_ids=start).logits[0, -1]
    else:  # without the end of the prompt
        ids = torch.cat([ids[:, :-1], torch.tensor([[before]])], dim=1)
        logits = ranker.model(input_ids=ids).logits[0, -1]
    assert ranker.order("gold river", texts) == np.argsort(-logits[letters].numpy()).tolist()
    tokens, ranks = ranker.answer("gold river", texts, [2, 0, 1])
    plain = ranker.tokenizer("[C] > [A] > [B]", add_special_tokens=False)["input_ids"]
    assert tokens[:-1] == plain
    assert ranks == [1, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3, 0]
    assert ranker.order("gold", []) == []
    assert ranker.order("gold", ["a"]) == [0]
    with pytest.raises(ConfigError, match="27 documents in one prompt, and there are 26 letters"):
        ranker.order("gold", ["a"] * 27)
    with pytest.raises(ConfigError, match="27 documents in one prompt, and there are 26 letters"):
        ranker.answer("gold", ["a"] * 27, range(27))


def test_a_saved_ranker_is_the_same(ranker: ListwiseRanker, folder: Path, tmp_path: Path) -> None:
    small = ListwiseRanker.from_pretrained(
        folder, prompt=PROMPT, window=4, step=1, passes=2, max_length=60, document_length=5,
        first_token=True,
    )  # fmt: skip
    for number, each in enumerate((ranker, small)):
        each.save_pretrained(tmp_path / str(number))
        opened = open_encoder(tmp_path / str(number))
        assert isinstance(opened, ListwiseRanker)
        assert opened.fingerprint == each.fingerprint
        assert opened.settings() == each.settings()
        assert opened.order(*LISTS[0]) == each.order(*LISTS[0])
    assert small.fingerprint != ranker.fingerprint
    all_at_once = ListwiseRanker.from_pretrained(tmp_path / "1", window=0)
    assert (all_at_once.window, all_at_once.passes, all_at_once.step) == (0, 1, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "{query}"}, r"prompt: has no \{documents\}"),
        ({"window": 1}, "window is 1"),
        ({"window": -1}, "window is -1"),
        ({"step": 2}, "step: is between windows, and window: 0"),
        ({"passes": 2}, "passes: repeats windows, and window: 0"),
        ({"window": 4, "step": 4}, "step: 4; expected less than the window, 4"),
        ({"max_length": 7}, "max_length is 7"),
        ({"document_length": 0}, "document_length: 0"),
        ({"chat": True}, "no chat template"),
    ],
)
def test_bad_settings(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ListwiseRanker.from_pretrained(folder, **changes)


def test_models_that_write_no_order(tmp_path: Path, ranker: ListwiseRanker) -> None:
    bert = save_model(tmp_path / "bert", "ForMaskedLM")
    with pytest.raises(ModelError, match="BertForMaskedLM writes no text"):
        ListwiseRanker.from_pretrained(bert)
    bare = save_model(tmp_path / "bare", "Model")
    with pytest.raises(ModelError):
        ListwiseRanker.from_pretrained(bare)
    ranker.save_pretrained(tmp_path / "own")
    for value, error in (("seal", "writes no order"), ("listwise", "window is 'x'")):
        noted = {"type": value, "window": "x", "version": 1}
        (tmp_path / "own" / "sluice.json").write_text(json.dumps(noted))
        with pytest.raises(ModelError, match=error):
            ListwiseRanker.from_pretrained(tmp_path / "own")
