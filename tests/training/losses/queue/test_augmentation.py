"""Soft augmentation: what changes, what is put in, and that seed and step decide it."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.own.momentum_keys import (
    CLASSES,
    MODES,
    Mode,
    Tokens,
    augmented,
    count_tokens,
    frequency_classes,
    representatives,
    tokens_of,
)

VOCABULARY = 50
TOKENS = Tokens(4, torch.arange(VOCABULARY) >= 5)


def texts_of(seed: int, rows: int = 40, length: int = 30) -> dict[str, Tensor]:
    """Zipfian texts between two special tokens, padded to different lengths."""
    torch.manual_seed(seed)
    shares = 1.0 / torch.arange(1, VOCABULARY - 4)
    ids = 5 + torch.multinomial(shares, rows * length, replacement=True).reshape(rows, length)
    ids[:, 0] = 2
    mask = (torch.arange(length) < torch.randint(5, length + 1, (rows, 1))).long()
    ids = ids * mask
    return {"input_ids": ids, "attention_mask": mask}


def change(mode: Mode, features: dict[str, Tensor], **options: Any) -> Tensor:
    given: dict[str, Any] = {"rate": 0.1, "seed": 3, "step": 5, "side": "query", **options}
    counts = count_tokens(features, VOCABULARY)
    return augmented(features, mode, counts, TOKENS, **given)["input_ids"]


def test_classes_of_frequency_halve() -> None:
    counts = torch.tensor([64, 63, 33, 32, 16, 1, 0])
    assert frequency_classes(counts).tolist() == [0, 0, 1, 1, 2, 6, CLASSES - 1]
    ordinary = torch.tensor([False, True, True, True, True, True, True])
    found = representatives(counts, frequency_classes(counts), Tokens(0, ordinary))
    assert found[[0, 1, 2, 6, CLASSES - 1, 3]].tolist() == [1, 2, 4, 5, 6, 0]
    nothing = frequency_classes(torch.zeros(3, dtype=torch.long))
    assert nothing.tolist() == [CLASSES - 1] * 3


@pytest.mark.parametrize("mode", MODES)
def test_only_ordinary_tokens_of_the_text_change(mode: Mode) -> None:
    features = texts_of(1)
    ids, real = features["input_ids"], features["attention_mask"].bool()
    changed = change(mode, features)
    different = changed != ids
    assert different.any()  # every mode really does something
    assert not different[~real].any()
    assert not different[ids < 5].any()
    put = changed[different]
    assert ((put >= 5) | (put == TOKENS.mask)).all()
    share = different.sum() / (real & (ids >= 5)).sum()
    assert 0.02 < share < 0.15
    assert torch.equal(features["input_ids"], texts_of(1)["input_ids"])


def test_what_each_mode_puts_in() -> None:
    features = texts_of(2, rows=400)
    ids = features["input_ids"]
    counts = count_tokens(features, VOCABULARY)
    classes = frequency_classes(counts)
    stand = representatives(counts, classes, TOKENS)
    masked = change(0, features)
    different = masked != ids
    share = (masked[different] == TOKENS.mask).float().mean()
    assert 0.83 < share < 0.95  # 80 of the 90 in a hundred that change, more or less
    by_class = change(1, features)
    different = by_class != ids
    assert torch.equal(by_class[different], stand[classes[ids[different]]])
    for mode in (2, 3):
        changed = change(mode, features)  # type: ignore[arg-type]
        different = changed != ids
        touched = [set(classes[ids[row][different[row]]].tolist()) for row in range(400)]
        assert all(len(each) <= 1 for each in touched)  # one class of a text
        expected = stand[classes[ids]] if mode == 2 else torch.full_like(ids, TOKENS.mask)
        assert torch.equal(changed[different], expected[different])


@pytest.mark.parametrize("mode", MODES)
def test_augmentation_is_a_function_of_seed_and_step(mode: Mode) -> None:
    features = texts_of(3)
    first = change(mode, features)
    torch.manual_seed(99)
    assert torch.equal(change(mode, features), first)
    for other in ({"seed": 4}, {"step": 6}, {"side": "document"}):
        assert not torch.equal(change(mode, features, **other), first)
    assert torch.equal(change(mode, features, rate=0.0), features["input_ids"])


def test_texts_without_ordinary_tokens_stay(tiny: ModuleType) -> None:
    ids = torch.tensor([[2, 3, 0], [2, 0, 0]])
    features = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    for mode in MODES:
        assert torch.equal(change(mode, features, rate=1.0), ids)


def test_the_tokens_of_an_encoder_without_a_tokenizer(tiny: ModuleType) -> None:
    tokens = tokens_of(tiny.Dense())
    assert tokens.mask == 0
    assert len(tokens.ordinary) == tiny.VOCAB
    nothing = tiny.Dense()
    nothing.module = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="no embeddings of tokens"):
        tokens_of(nothing)


def test_towers_that_hide_tokens_differently() -> None:
    def tower(mask: int) -> SimpleNamespace:
        return SimpleNamespace(tokenizer=SimpleNamespace(all_special_ids=[0], mask_token_id=mask))

    pair = SimpleNamespace(
        module=torch.nn.Embedding(9, 2), towers={"query": tower(3), "document": tower(3)}
    )
    assert tokens_of(pair).mask == 3
    pair.towers["document"] = tower(4)
    with pytest.raises(ConfigError, match="different mask tokens"):
        tokens_of(pair)
