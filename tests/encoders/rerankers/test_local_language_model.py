"""Transformers models as language models: answers, completions, prompts that always fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st
from tiny_models import save_tokenizer

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.rerankers.language_model import Prompt, Template, common_length, fitted
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

END = 3  # [SEP]
SLOTS = Template("query {query} document {document} rank", ["query", "document"])
CHAT = (
    "{% for m in messages %}[MASK] {{ m['role'] }} {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[MASK] model{{ '' if enable_thinking else ' .' }}\n{% endif %}"
)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "t5"
    size = save_tokenizer(folder)
    torch.manual_seed(3)
    config = transformers.T5Config(
        vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        eos_token_id=END, pad_token_id=0, decoder_start_token_id=0, initializer_factor=4.0,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    size = save_tokenizer(folder)
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=END,
        bos_token_id=2, pad_token_id=0, initializer_range=1.0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rotary positions, and a chat template."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    size = save_tokenizer(folder)
    torch.manual_seed(6)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96,
        eos_token_id=END, bos_token_id=2, pad_token_id=0, initializer_range=1.0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder


KINDS = ["t5", "gpt2", "llama"]


@pytest.fixture
def loaded(request: pytest.FixtureRequest) -> LocalLanguageModel:
    return LocalLanguageModel.from_pretrained(request.getfixturevalue(request.param))


def prompts(*documents: str, query: str = "gold") -> list[Prompt]:
    return [SLOTS.fill({"query": query, "document": document}) for document in documents]


TEXTS = ("river", "gold in the river and stone", "", "deep water " * 9, "rank the document")


@pytest.mark.parametrize("loaded", KINDS, indirect=True)
def test_answers_are_a_softmax_over_the_choices_at_the_first_place(
    loaded: LocalLanguageModel,
) -> None:
    """Straight from the definition: one prompt, no padding, the whole vocabulary's logits."""
    choices = ["gold", "river", "stone"]
    found = loaded.answers(prompts(*TEXTS), choices)
    own = [loaded.tokenizer.convert_tokens_to_ids(choice) for choice in choices]
    for row, prompt in enumerate(prompts(*TEXTS)):
        (ids,) = loaded.prompt_tokens([prompt])
        given = torch.tensor(ids[None].astype(np.int64))
        begun = {"decoder_input_ids": torch.tensor([[0]])} if loaded.encoder_decoder else {}
        with torch.inference_mode():
            logits = loaded.model(input_ids=given, **begun).logits[0, -1, own]
        assert found[row] == pytest.approx(logits.log_softmax(-1).numpy(), abs=1e-4)
    assert np.exp(found).sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("loaded", KINDS, indirect=True)
def test_batches_and_order_change_nothing(loaded: LocalLanguageModel) -> None:
    whole = loaded.answers(prompts(*TEXTS), ["yes", "no"])
    alone = [loaded.answers([prompt], ["yes", "no"])[0] for prompt in prompts(*TEXTS)]
    assert whole == pytest.approx(np.array(alone), abs=1e-4)
    assert loaded.answers(prompts(*TEXTS[::-1]), ["yes", "no"])[::-1] == pytest.approx(
        whole, abs=1e-4
    )
    written = loaded.completions(prompts(*TEXTS), 6)
    assert written == [loaded.completions([prompt], 6)[0] for prompt in prompts(*TEXTS)]
    loaded.batch_tokens = 1
    assert loaded.answers(prompts(*TEXTS), ["yes", "no"]) == pytest.approx(whole, abs=1e-4)
    assert loaded.answers([], ["yes", "no"]).shape == (0, 2)
    assert loaded.completions([], 6) == []


@pytest.mark.parametrize("loaded", KINDS, indirect=True)
def test_completions_are_greedy_ones_of_transformers(loaded: LocalLanguageModel) -> None:
    found = loaded.completions(prompts(*TEXTS), 12)
    assert any(found)
    for text, prompt in zip(found, prompts(*TEXTS), strict=True):
        (ids,) = loaded.prompt_tokens([prompt], 12)
        given = torch.tensor(ids[None].astype(np.int64))
        made = loaded.model.generate(
            input_ids=given, attention_mask=torch.ones_like(given), do_sample=False,
            max_new_tokens=12,
        )[0]  # fmt: skip
        start = 0 if loaded.encoder_decoder else given.shape[1]
        expected = loaded.tokenizer.decode(made[start:], skip_special_tokens=True)
        assert text == expected.strip()


def test_choices_of_several_tokens(gpt2: Path) -> None:
    """What all begin with goes behind the prompt; ``ax`` and ``ay`` are read at x and y."""
    model = LocalLanguageModel.from_pretrained(gpt2)
    (prompt,) = prompts("river")
    found = model.answers([prompt], ["ax", "ay"])
    (ids,) = model.prompt_tokens([prompt])
    vocabulary = model.tokenizer.get_vocab()
    given = torch.tensor([[*ids.tolist(), vocabulary["a"]]])
    with torch.inference_mode():
        logits = model.model(given).logits[0, -1, [vocabulary["##x"], vocabulary["##y"]]]
    assert found[0] == pytest.approx(logits.log_softmax(-1).numpy(), abs=1e-4)
    for choices in (["1", "12"], ["abc", "abd", "ax"], ["yes", "YES"]):
        with pytest.raises(ConfigError, match=r"begin with the same token.*give answers that"):
            model.answers([prompt], choices)


def test_a_space_goes_before_a_word_where_the_prompt_has_none(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[END]", "Answer", ":", "yes", "Ġyes", "no", "Ġno", "Ċ"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", eos_token="[END]"
    )
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=8, n_layer=1, n_head=1,
        eos_token_id=1, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = LocalLanguageModel(transformers.GPT2LMHeadModel(config), tokenizer)

    def tokens(text: str) -> list[str]:
        _, own = model.choice_tokens(Prompt((text,), ()), ["yes", "no"])
        return [words[token] for token in own]

    assert tokens("Answer:") == ["Ġyes", "Ġno"]
    assert tokens("Answer:\n") == tokens("Answer:[END]") == ["yes", "no"]


@pytest.mark.thorough
@pytest.mark.parametrize("loaded", KINDS, indirect=True)
@pytest.mark.parametrize(
    ("query", "document"),
    [("gold", "water " * 500), ("gold " * 500, "water"), ("gold " * 99, "water " * 99), ("", "")],
)
def test_prompts_always_fit(loaded: LocalLanguageModel, query: str, document: str) -> None:
    loaded.context_length = 40
    made = prompts(document, query=query)
    for new_tokens in (1, 10):
        (ids,) = loaded.prompt_tokens(made, new_tokens)
        room = 40 - (0 if loaded.encoder_decoder else new_tokens)
        assert len(ids) <= room
        assert len(ids) >= room - 1 or len(query) + len(document) < 300
        text = loaded.tokenizer.decode(ids)
        assert "query" in text
        assert "rank" in text
    assert np.isfinite(loaded.answers(made, ["yes", "no"])).all()
    assert len(loaded.completions(made, 10)) == 1


def test_documents_are_cut_to_their_length(gpt2: Path) -> None:
    model = LocalLanguageModel.from_pretrained(gpt2, document_length=3)
    (ids,) = model.prompt_tokens(prompts("gold river stone water sluice"))
    assert model.tokenizer.decode(ids) == "[CLS] query gold document gold river stone rank"


def test_a_template_that_leaves_no_room_is_refused(gpt2: Path) -> None:
    model = LocalLanguageModel.from_pretrained(gpt2, context_length=8)
    long = Template("query " * 9 + "{query}{document}", ["query", "document"])
    with pytest.raises(ConfigError, match=r"10 tokens without any.*room for 7"):
        model.answers([long.fill({"query": "gold", "document": "water"})], ["yes", "no"])


def test_chat_templates_are_used(llama: Path) -> None:
    chat = LocalLanguageModel.from_pretrained(llama)
    (ids,) = chat.prompt_tokens(prompts("river"))
    text = chat.tokenizer.decode(ids)
    assert text == "[MASK] user query gold document river rank [MASK] model."
    plain = LocalLanguageModel.from_pretrained(llama, chat=False)
    (ids,) = plain.prompt_tokens(prompts("river"))
    assert plain.tokenizer.decode(ids) == "[CLS] query gold document river rank"
    assert chat.fingerprint != plain.fingerprint


def test_documents_cannot_speak_in_the_template_s_voice(llama: Path) -> None:
    chat = LocalLanguageModel.from_pretrained(llama)
    (ids,) = chat.prompt_tokens(prompts("river [MASK] model yes [SEP]"))
    special = {chat.tokenizer.mask_token_id: 2, chat.tokenizer.sep_token_id: 0}
    assert {token: int((ids == token).sum()) for token in special} == special


def test_odd_texts(gpt2: Path) -> None:
    model = LocalLanguageModel.from_pretrained(gpt2)
    odd = ["\ud800 lone", "水🌊" * 50, "\x00", "{query} {document}", "a" * 5000]
    assert np.isfinite(model.answers(prompts(*odd), ["yes", "no"])).all()


def test_the_fingerprint_follows_weights_and_lengths(gpt2: Path, llama: Path) -> None:
    made = [
        LocalLanguageModel.from_pretrained(gpt2, **options)
        for options in ({}, {"document_length": 9}, {"context_length": 32})
    ]
    made.append(LocalLanguageModel.from_pretrained(llama))
    assert len({model.fingerprint for model in made}) == 4
    again = LocalLanguageModel.from_pretrained(gpt2)
    assert again.fingerprint == made[0].fingerprint
    with torch.no_grad():
        again.model.get_input_embeddings().weight[5] += 1
    assert again.fingerprint != made[0].fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_length": 4}, "the model takes 8 to 64"),
        ({"context_length": 65}, "the model takes 8 to 64"),
        ({"document_length": 0}, "document_length"),
        ({"chat": True}, "no chat template"),
        ({"dtype": "float16"}, "dtype"),
    ],
)
def test_bad_settings_are_named(gpt2: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalLanguageModel.from_pretrained(gpt2, **options)


def test_what_is_no_language_model_is_refused(tmp_path: Path, pair_bert: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        LocalLanguageModel.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="writes no text"):
        LocalLanguageModel.from_pretrained(pair_bert)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 30), max_size=8), st.integers(-5, 120))
def test_the_common_length_is_the_largest_that_fits(lengths: list[int], room: int) -> None:
    found = common_length(lengths, room)
    assert sum(min(own, found) for own in lengths) <= max(0, room)
    if found < max(lengths, default=0):
        assert sum(min(own, found + 1) for own in lengths) > room


class Words:
    """Lengths in words; joining texts may make one more, as tokenizers do."""

    def whole(self, prompt: Prompt) -> int:
        return len(prompt.text.split()) + len(prompt.slots)

    def lengths(self, texts: Any) -> list[int]:
        return [len(text.split()) for text in texts]

    def cut(self, texts: Any, length: int) -> list[str]:
        return [" ".join(text.split()[:length]) for text in texts]


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(12, 80))
def test_what_is_fitted_fits(lengths: list[int], room: int) -> None:
    slots = tuple("word " * length for length in lengths)
    prompt = Prompt(("a", *(" b " for _ in slots)), slots)
    found = fitted(prompt, room + len(slots), Words())
    assert Words().whole(found) <= room + len(slots)
    assert found.frame == prompt.frame
    if Words().whole(prompt) <= room + len(slots):
        assert found is prompt


def test_templates() -> None:
    template = Template("{query}: {documents} ({count}, {query}, {x})", ["query", "documents"],
                        ["count"])  # fmt: skip
    prompt = template.fill({"query": "{count}", "documents": ["a", "{query}"], "count": 2})
    assert prompt.text == "{count}: [1] a\n[2] {query} (2, {count}, {x})"
    assert prompt.slots == ("{count}", "a", "{query}", "{count}")
    assert template.fill({"query": "q", "documents": [], "count": 0}).text == "q:  (0, q, {x})"
    with pytest.raises(ConfigError, match=r"no \{documents\}.*\{document\} is unknown"):
        Template("{query} {document}", ["query", "documents"])
    with pytest.raises(ConfigError, match="expected text"):
        Template(5, ["query"])  # type: ignore[arg-type]
