"""Soft prompts: the loss, what is trained and what is not, resuming, saving."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_generators import END, save_gpt2, save_t5
from tiny_models import save_model

from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.generative.constrained_decoding import Continuations
from sluice.training.generation import prompt_learner
from sluice.training.generation.decoding import DiverseBeams
from sluice.training.generation.inverse_cloze import Passage
from sluice.training.generation.prompt_learner import learn_prompt
from sluice.training.generation.query_generation import ModelGenerator
from sluice.training.generation.query_prompt import FACTS, VECTORS, PromptTuning, Shot, SoftPrompt

TUNING = PromptTuning(
    tokens=4, text="learn to rank", shots=1, choices=4, epochs=6, learning_rate=0.2, length=6
)
PAIRS = [
    Shot("gold in the river and stone", "river gold"),
    Shot("deep water", "water"),
    Shot("rank the document by score", "score document"),
    Shot("learn to rank dense and sparse vector", "dense vector"),
]
HELD_OUT = PAIRS[:2]  # seen: a random model has nothing to generalise from
DOCUMENTS = [
    Passage("a", "gold", "gold in the river and stone"),
    Passage("b", "", "deep water"),
    Passage("c", "", "rank the document by score and learn to rank"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {"gpt2": save_gpt2(home / "gpt2"), "t5": save_t5(home / "t5", initializer_factor=2.0)}


def loaded(folder: Path, **options: Any) -> ModelGenerator:
    by = DiverseBeams(groups=2, beams=2, length=6)
    return ModelGenerator.from_pretrained(folder, by=by, **options)


@pytest.fixture(scope="module")
def learnt(folders: dict[str, Path]) -> SoftPrompt:
    return learn_prompt(TUNING, loaded(folders["gpt2"]), PAIRS, HELD_OUT, seed=1)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_vectors_of_tokens_are_read_as_those_tokens(folders: dict[str, Path], kind: str) -> None:
    generator = loaded(folders[kind])
    model: Any = generator.model
    words = generator.tokenizer("learn to rank", add_special_tokens=False)["input_ids"]
    ids, mask = generator._tokens(DOCUMENTS)
    rows = [[*words, *own[seen.bool()].tolist()] for own, seen in zip(ids, mask, strict=True)]
    whole = generator.padded(rows, left=kind == "gpt2")
    with torch.inference_mode():
        vectors = model.get_input_embeddings()(torch.tensor(words))
        soft = Continuations(model, ids, mask, 2, vectors)
        hard = Continuations(model, *whole, 2)
        first = soft.first()
        torch.testing.assert_close(first, hard.first(), rtol=1e-4, atol=1e-4)
        chosen, order = first.argmax(dim=1), torch.arange(6)
        torch.testing.assert_close(
            soft.next(chosen, order), hard.next(chosen, order), rtol=1e-4, atol=1e-4
        )
        bare = Continuations(model, ids, mask, 2).first()
    assert not torch.allclose(first, bare, atol=1e-2)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_the_loss_is_the_cross_entropy_of_the_query(folders: dict[str, Path], kind: str) -> None:
    """Straight from the definition: one text after another, tokens for vectors, float64."""
    generator = loaded(folders[kind])
    learner = prompt_learner.Learner(TUNING, generator, PAIRS, HELD_OUT, 1)
    shots = [[PAIRS[2]], [PAIRS[0]]]
    total, count = learner.loss(PAIRS[:2], shots)

    def ids(text: str) -> list[int]:
        return list(generator.tokenizer(text, add_special_tokens=False)["input_ids"])

    model: Any = generator.model.double()
    words = (ids("learn to rank") * 2)[:4]
    expected, tokens = 0.0, 0
    for pair, (shot,) in zip(PAIRS[:2], shots, strict=True):
        read = ids(f"Document: {shot.document}\nQuery: {shot.query}\n")
        read += ids(f"Document: {pair.document}\nQuery:")
        target = [*ids(pair.query), END]
        if kind == "t5":
            both = [*words, 2, *read, 3]  # [CLS] and [SEP] around the text
            output = model(
                input_ids=torch.tensor([both]),
                decoder_input_ids=torch.tensor([[0, *target[:-1]]]),
            )
            logits = output.logits[0]
        else:
            before = [*words, *read]
            output = model(input_ids=torch.tensor([[*before, *target]]))
            logits = output.logits[0, len(before) - 1 : -1]
        array = logits.detach().numpy()
        for row, token in zip(array, target, strict=True):
            expected -= row[token] - np.log(np.exp(row - row.max()).sum()) - row.max()
        tokens += len(target)
    assert count == tokens
    assert total.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_only_the_prompt_has_gradients(folders: dict[str, Path], kind: str) -> None:
    generator = loaded(folders[kind])
    model: Any = generator.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learner = prompt_learner.Learner(TUNING, generator, PAIRS, HELD_OUT, 1)
    with prompt_learner.frozen(model):
        loss, _ = learner.loss(PAIRS, [[] for _ in PAIRS])
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is None for parameter in model.parameters())
        assert learner.vectors.grad is not None
        assert bool((learner.vectors.grad.abs().sum(dim=1) > 0).all())
        assert learner.vectors.shape == (4, 16)  # tokens * width, and nothing else
        learner.learn(None)
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_is_learnt_is_the_best_of_what_was_seen(
    folders: dict[str, Path], learnt: SoftPrompt
) -> None:
    generator = loaded(folders["gpt2"])
    learner = prompt_learner.Learner(TUNING, generator, PAIRS, HELD_OUT, 1)
    assert learner.held_out_loss() == pytest.approx(learnt.losses["start"])
    with torch.no_grad():
        learner.vectors.copy_(torch.from_numpy(learnt.vectors))
    assert learner.held_out_loss() == pytest.approx(learnt.losses["learnt"])
    assert learnt.losses["learnt"] < learnt.losses["start"]
    by_group = {pair: learner.held_out_loss([pair]) for pair in PAIRS}
    assert by_group[learnt.shots[0]] == pytest.approx(learnt.losses["chosen"])
    seen = {PAIRS.index(group[0]) for group in _groups(learner)}
    assert len(seen) > 1
    assert learnt.losses["chosen"] == pytest.approx(min(by_group[PAIRS[n]] for n in seen))


def _groups(learner: Any) -> list[tuple[Shot, ...]]:
    groups: list[tuple[Shot, ...]] = []
    measured = learner.held_out_loss

    def noted(shots: Any = None) -> float:
        groups.append(shots)
        return float(measured(shots))

    learner.held_out_loss = noted
    learner.best_shots()
    return groups


def test_a_killed_call_goes_on(
    folders: dict[str, Path], learnt: SoftPrompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, state = loaded(folders["gpt2"]), tmp_path / "state"
    epochs: list[int] = []
    plain = prompt_learner.Learner._epoch

    def killed(learner: Any, epoch: int) -> None:
        if epoch == 2 and -1 not in epochs:
            raise KeyboardInterrupt
        epochs.append(epoch)
        plain(learner, epoch)

    monkeypatch.setattr(prompt_learner.Learner, "_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        learn_prompt(TUNING, generator, PAIRS, HELD_OUT, seed=1, state=state)
    epochs.append(-1)
    again = learn_prompt(TUNING, generator, PAIRS, HELD_OUT, seed=1, state=state)
    assert epochs[:4] == [0, 1, -1, 2]
    assert np.array_equal(again.vectors, learnt.vectors)
    assert again.losses == learnt.losses
    done = len(epochs)
    learn_prompt(TUNING, generator, PAIRS[1:], HELD_OUT, seed=1, state=state)
    assert epochs[done] == 0  # other pairs: from the start


def test_a_saved_prompt_writes_the_same(
    folders: dict[str, Path], learnt: SoftPrompt, tmp_path: Path
) -> None:
    learnt.save(tmp_path / "prompt")
    again = SoftPrompt.load(tmp_path / "prompt")
    assert np.array_equal(again.vectors, learnt.vectors)
    assert again.shots == learnt.shots
    assert again.fingerprint == learnt.fingerprint
    first, second = (loaded(folders["gpt2"], soft=each) for each in (learnt, again))
    queries = first.queries(DOCUMENTS)
    assert second.queries(DOCUMENTS) == queries
    assert first.fingerprint == second.fingerprint != loaded(folders["gpt2"]).fingerprint
    assert [first.queries([each])[0] for each in DOCUMENTS] == queries  # whatever the batch


def test_what_is_refused(folders: dict[str, Path], learnt: SoftPrompt, tmp_path: Path) -> None:
    generator = loaded(folders["gpt2"])
    with pytest.raises(ModelError, match="learnt with other weights"):
        loaded(folders["t5"], soft=learnt)
    with pytest.raises(ConfigError, match="a soft prompt has its own"):
        loaded(folders["gpt2"], soft=learnt, prompt="{text}")
    with pytest.raises(DataError, match="1 pair to learn from"):
        learn_prompt(TUNING, generator, PAIRS[:1], HELD_OUT)
    with pytest.raises(ConfigError, match="lower shots, tokens, length"):
        learn_prompt(PromptTuning(tokens=40, length=6, shots=3), generator, PAIRS, HELD_OUT)
    with pytest.raises(ConfigError, match="documents of 20 tokens in this model; expected 40"):
        tuning = PromptTuning(tokens=4, shots=1, length=6, document_length=40)
        learn_prompt(tuning, generator, PAIRS, HELD_OUT)
    for settings in ({"tokens": 0}, {"learning_rate": 0.0}, {"text": " "}, {"length": 1}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            PromptTuning(**settings)
    with pytest.raises(ModelError, match="no soft prompt"):
        SoftPrompt.load(tmp_path)
    learnt.save(tmp_path / "p")
    facts = json.loads((tmp_path / "p" / FACTS).read_text())
    for change, message in (
        ({"version": 9}, "newer version"), ({"shots": [{}]}, "not a soft prompt"),
        ({"length": "6"}, "not a soft prompt"), ({"prompt": 3}, "not a soft prompt"),
    ):  # fmt: skip
        (tmp_path / "p" / FACTS).write_text(json.dumps({**facts, **change}))
        with pytest.raises(ModelError, match=message):
            SoftPrompt.load(tmp_path / "p")
    (tmp_path / "p" / FACTS).write_text(json.dumps(facts))
    (tmp_path / "p" / VECTORS).write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not readable as safetensors"):
        SoftPrompt.load(tmp_path / "p")


def test_a_model_that_reads_from_both_sides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="reads a text from both sides"):
        loaded(save_model(tmp_path / "bert", "ForMaskedLM", eos_token_id=END))
