"""The loss of rankings: its value and gradient in float64, what is learnt, and what is refused."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_generators import save_gpt2, save_t5

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.generative.listwise import ListwiseRanker
from sluice.training import fit
from sluice.training.loop.parts import choose_parts
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.sequences import Rankings
from sluice.training.protocol import Example, Text

PROMPT = "{query} : {documents} rank"
WORDS = ["gold", "river", "stone", "water", "index", "term"]


def example(name: str, order: list[int], *, labels: tuple[float, ...] = ()) -> Example:
    documents = tuple(Text(WORDS[place], f"the {WORDS[place]}") for place in order)
    grades = labels or tuple(1 / math.log2(1 + rank) for rank in range(1, len(order) + 1))
    return Example(Text(name, f"{WORDS[order[0]]} {name}"), documents, grades)


EXAMPLES = [example("q1", [2, 0, 1]), example("q2", [3, 1]), example("q3", [5, 4, 0, 2])]


@pytest.fixture(scope="module", params=["t5", "gpt2"])
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    save = {"t5": save_t5, "gpt2": save_gpt2}[request.param]
    folder = save(tmp_path_factory.mktemp("models") / request.param)
    made = ListwiseRanker.from_pretrained(folder, prompt=PROMPT)
    made.module.double().eval()
    return made


def parts(ranker: ListwiseRanker, **settings: Any) -> tuple[Any, Any, Any]:
    loss = build({"type": "rankings", **settings}, LOSSES, where="loss")
    loss.bind(ranker, 3)
    return (loss, *loss.own_pass(ranker, seed=3, sparse=False))


def value(ranker: ListwiseRanker, examples: list[Example] = EXAMPLES, **settings: Any) -> Any:
    loss, module, collator = parts(ranker, **settings)
    inputs = collator(examples)
    return loss.over(loss.batch(module(**inputs["features"]), inputs))


def tokens_of(ranker: ListwiseRanker, collator: Any) -> list[list[tuple[float, float, int]]]:
    """Each token to write: its log-probability, the mean one of the vocabulary, and its rank.

    By one pass of the model for each token, with what was written before it.
    """
    known = []
    for each in EXAMPLES:
        shown = collator.shown(each)
        assert sorted(shown) == list(range(len(each.documents)))
        texts = [each.documents[place].text for place in shown]
        numbers = [shown.index(place) + 1 for place in range(len(shown))]  # labels fall
        words = [(f"[{number}]", rank) for rank, number in enumerate(numbers, 1)]
        said = [pair for word in words for pair in (word, (">", 0))][:-1]
        features = ranker.tokenize_lists([(each.query.text, texts)])
        own, before = [], list[int]()
        for word, rank in [*said, ("", 0)]:
            ids = ranker.tokenizer(word, add_special_tokens=False)["input_ids"] if word else [3]
            for token in ids:
                if ranker.encoder_decoder:
                    start = torch.tensor([[0, *before]])
                    logits = ranker.model(**features, decoder_input_ids=start).logits[0, -1]
                else:
                    ids_so_far = [*features["input_ids"][0].tolist(), *before]
                    logits = ranker.model(input_ids=torch.tensor([ids_so_far])).logits[0, -1]
                logs = logits.log_softmax(0)
                own.append((logs[token].item(), logs.mean().item(), rank))
                before.append(token)
        known.append(own)
    return known


@torch.no_grad()
def test_the_value_is_the_weighted_cross_entropy_of_every_token(ranker: ListwiseRanker) -> None:
    known = [token for own in tokens_of(ranker, parts(ranker)[2]) for token in own]
    for importance, smoothing in ((1.0, 0.0), (0.0, 0.0), (2.5, 0.2)):
        expected = 0.0
        for log, mean, rank in known:
            weight = 1 + importance / math.log2(rank + 1) if rank else 1.0
            expected -= weight * ((1 - smoothing) * log + smoothing * mean)
        found = value(ranker, importance=importance, smoothing=smoothing)
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(expected / len(known), rel=1e-9)
    plain = -sum(log for log, _, _ in known) / len(known)  # the loss of any language model
    assert value(ranker, importance=0.0).item() == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_gradient_is_weighted_softmax_less_target(
    ranker: ListwiseRanker, monkeypatch: pytest.MonkeyPatch, smoothing: float
) -> None:
    loss, module, collator = parts(ranker, importance=1.5, smoothing=smoothing)
    inputs = collator(EXAMPLES)
    query = inputs["features"]["query"]
    size = int(ranker.model.config.vocab_size)
    drawn = torch.Generator().manual_seed(1)
    shape = (*query["labels"].shape, size)
    logits = torch.randn(shape, generator=drawn, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(ranker, "answer_logits", lambda features, answers: logits)
    loss.over(loss.batch(module(**inputs["features"]), inputs)).backward()
    expected = torch.zeros(shape, dtype=torch.float64)
    count = int((query["labels"] >= 0).sum())
    for row, labels in enumerate(query["labels"].tolist()):
        for at, label in enumerate(labels):
            if label < 0:
                continue
            rank = int(query["ranks"][row, at])
            weight = 1 + 1.5 / math.log2(rank + 1) if rank else 1.0
            target = torch.full((size,), smoothing / size, dtype=torch.float64)
            target[label] += 1 - smoothing
            expected[row, at] = weight * (logits[row, at].detach().softmax(0) - target) / count
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-15)


@pytest.fixture
def by_letter(ranker: ListwiseRanker) -> ListwiseRanker:
    return ListwiseRanker(ranker._reader, prompt=PROMPT, first_token=True)


TIED = example("q4", [1, 4, 0, 5], labels=(0.5, 2.0, 0.5, 0.0))


def test_first_adds_the_weighted_rank_net_of_the_first_letters(by_letter: ListwiseRanker) -> None:
    """What a search reads, ``log P`` of letters, differs from logits by a number for each list."""
    examples = [*EXAMPLES, TIED]
    _, _, collator = parts(by_letter, first=10.0)
    inputs = collator(examples)["features"]["query"]
    expected = []
    for row, each in enumerate(examples):
        shown = collator.shown(each)
        prompt = by_letter._order.prompt(
            each.query.text, [each.documents[place].text for place in shown]
        )
        letters = [f"[{'ABCDEF'[place]}]" for place in range(len(shown))]
        scores = by_letter._reader.answers([prompt], letters)[0]
        labels = [each.labels[place] for place in shown]
        order = sorted(range(len(shown)), key=lambda at: -labels[at])
        terms = [
            math.log1p(math.exp(scores[low] - scores[high])) / (i + j)
            for i, high in enumerate(order, 1)
            for j, low in enumerate(order, 1)
            if labels[high] > labels[low]
        ]
        expected.append(sum(terms) / len(terms))
        column = int(inputs["first"][row])
        assert inputs["labels"][row, column] == inputs["letters"][row, 0]
    same = example("q9", [0, 1], labels=(1.0, 1.0))
    alone = example("q8", [2])
    with torch.no_grad():
        plain = value(by_letter, [*examples, same, alone]).item()
        for first in (10.0, 0.5):
            found = value(by_letter, [*examples, same, alone], first=first)
            own = found.item() - plain
            assert own == pytest.approx(first * sum(expected) / len(expected), rel=1e-5)
        assert value(by_letter, [same], first=10.0).item() == 0.0


def test_the_gradient_of_first_letters(by_letter: ListwiseRanker, monkeypatch: Any) -> None:
    loss, module, collator = parts(by_letter, importance=0.0, first=2.0)
    inputs = collator([TIED, EXAMPLES[1]])
    query = inputs["features"]["query"]
    shape = (*query["labels"].shape, int(by_letter.model.config.vocab_size))
    drawn = torch.Generator().manual_seed(1)
    logits = torch.randn(shape, generator=drawn, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(by_letter, "answer_logits", lambda features, answers: logits)
    loss.over(loss.batch(module(**inputs["features"]), inputs)).backward()
    count = int((query["labels"] >= 0).sum())
    expected = torch.zeros(shape, dtype=torch.float64)
    for row, labels in enumerate(query["labels"].tolist()):
        for at, label in enumerate(labels):
            if label >= 0:
                expected[row, at] = logits[row, at].detach().softmax(0) / count
                expected[row, at, label] -= 1 / count
    # Ranks 2 and 3 of TIED have one grade.
    for row, pairs in enumerate([[(1, 2), (1, 3), (1, 4), (2, 4), (3, 4)], [(1, 2)]]):
        at = int(query["first"][row])
        for high, low in pairs:
            better, worse = (int(query["letters"][row, rank - 1]) for rank in (high, low))
            gap = logits[row, at, worse].item() - logits[row, at, better].item()
            share = 2.0 / (high + low) / (1 + math.exp(-gap)) / len(pairs) / 2
            expected[row, at, worse] += share
            expected[row, at, better] -= share
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-15)


def test_first_needs_a_model_that_reads_letters(
    ranker: ListwiseRanker, by_letter: ListwiseRanker, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"rankings.first: 10 ranks .* encoder.first_token: true"):
        parts(ranker, first=10.0)
    with pytest.raises(ConfigError, match=r"rankings.first"):
        Rankings(first=-1.0)
    start = save_gpt2(tmp_path / "gpt2")
    encoder = ListwiseRanker.from_pretrained(start, prompt=PROMPT, first_token=True)
    before = [values.clone() for values in encoder.module.parameters()]
    fit(encoder, EXAMPLES, Rankings(first=10.0), output=tmp_path / "run",
        trainer={"max_steps": 2, "per_device_train_batch_size": 2})  # fmt: skip
    assert any(
        not torch.equal(one, two)
        for one, two in zip(before, encoder.module.parameters(), strict=True)
    )


def test_what_is_shown_depends_on_seed_epoch_and_query(ranker: ListwiseRanker) -> None:
    _, _, collator = parts(ranker)
    long = example("long", [0, 1, 2, 3, 4, 5])
    drawn = []
    for epoch in range(4):
        collator.set_epoch(epoch)
        drawn.append(collator.shown(long))
        assert collator.shown(long) == drawn[-1]
    assert len({tuple(each) for each in drawn}) > 1
    whole, alone = collator(EXAMPLES)["features"]["query"], collator(EXAMPLES[2:])
    assert torch.equal(whole["labels"][2], alone["features"]["query"]["labels"][0])


@torch.no_grad()
def test_documents_of_one_grade_follow_as_shown_and_count_for_nothing_alone(
    ranker: ListwiseRanker, caplog: pytest.LogCaptureFixture
) -> None:
    loss, _, collator = parts(ranker)
    tied = example("q1", [0, 1, 2, 3], labels=(0.0, 1.0, 0.0, 0.0))
    shown = collator.shown(tied)
    order = [shown.index(1), *(at for at, place in enumerate(shown) if place != 1)]
    expected = ranker.answer("", ["a"] * 4, order)[0]
    assert collator([tied])["features"]["query"]["labels"][0].tolist() == expected
    same = example("q9", [0, 1], labels=(1.0, 1.0))
    assert value(ranker, [*EXAMPLES, same]).item() == pytest.approx(value(ranker).item())
    assert value(ranker, [same]).item() == 0.0
    loss.bind_examples([*EXAMPLES, same])
    assert "1 of 4 examples (such as query q9)" in caplog.text
    with pytest.raises(DataError, match="all documents of each of 1 examples have one grade"):
        loss.bind_examples([same])


@pytest.mark.thorough
def test_a_model_that_learns_a_ranking_writes_it(tmp_path: Path) -> None:
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    folder = save_gpt2(tmp_path / "gpt2", n_embd=32, initializer_range=0.1, **still)
    ranker = ListwiseRanker.from_pretrained(folder, prompt=PROMPT)
    examples = [example(f"q{n}", [(n + at) % 6 for at in (0, 3, 1, 4)]) for n in range(4)]
    loss, module, collator = parts(ranker)
    steps = torch.optim.AdamW(ranker.module.parameters(), lr=0.01)
    inputs = collator(examples)
    for _ in range(90):
        steps.zero_grad()
        loss.over(loss.batch(module(**inputs["features"]), inputs)).backward()
        steps.step()
    right = 0
    for each in examples:
        shown = collator.shown(each)
        texts = [each.documents[place].text for place in shown]
        right += [shown[at] for at in ranker.order(each.query.text, texts)] == [0, 1, 2, 3]
    assert right >= 3


def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    start = save_gpt2(tmp_path / "gpt2")
    trainer = {"max_steps": 4, "per_device_train_batch_size": 2, "save_steps": 2}

    def trained(output: Path) -> tuple[Any, Any]:
        ranker = ListwiseRanker.from_pretrained(start, prompt=PROMPT)
        return ranker, fit(ranker, EXAMPLES, Rankings(), output=output, trainer=trainer)

    whole, _ = trained(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    resumed, report = trained(tmp_path / "killed")
    assert report.resumed_step == 2
    for one, two in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    start = save_t5(tmp_path / "t5")
    ranker = ListwiseRanker.from_pretrained(start, prompt=PROMPT, window=3, max_length=24)
    loss, _, _ = parts(ranker)
    with pytest.raises(DataError, match=r"'q3': a list of 4 documents, .* windows of 3; set enc"):
        loss.bind_examples(EXAMPLES)
    twice = Example(EXAMPLES[0].query, EXAMPLES[0].documents[:1] * 2, (1.0, 0.5))
    with pytest.raises(DataError, match="'q1': document 'stone' is in its list twice"):
        loss.bind_examples([twice])
    full = ListwiseRanker.from_pretrained(start, prompt=PROMPT, max_length=18)
    with pytest.raises(
        ConfigError,
        match="there is room for 18 only; shorten it, or show fewer documents, or raise max_length",
    ):
        parts(full)[0].bind_examples([example("q", [0, 1]), example("r", [0, 1, 2, 3, 4, 5])])
    with pytest.raises(ConfigError, match="a listwise encoder takes rankings"):
        choose_parts(ranker, InfoNCE(), live=False, sparse=False, seed=1)
    for settings in ({"importance": -1.0}, {"importance": math.inf}, {"smoothing": 1.0}):
        with pytest.raises(ConfigError, match=rf"rankings.{next(iter(settings))}"):
            Rankings(**settings)


def test_a_tokenizer_that_takes_too_many_tokens_for_numbers(
    ranker: ListwiseRanker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled = [(n // 9, n // 9 + 1) for n in range(90)]
    monkeypatch.setattr(ranker._reader, "answer_tokens", lambda prompt, answer: ([5] * 90, spelled))
    with pytest.raises(ModelError, match="90 tokens for an order of 2 documents"):
        ranker.answer("gold", ["a", "b"], [1, 0])
