"""Pyramids: lower layers that read query and body apart, upper ones that read both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders import CrossEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.rerankers.pyramid import PyramidEncoder
from sluice.training import LOSSES, Example, Text, fit

SHAPE = {"query_length": 6, "title_tokens": 2, "body_length": 12}
PAIRS = [
    ("gold river", "the gold of the river and the stone in the water"),
    ("gold river", "stone"),
    ("", "water water gold"),
    ("sluice", ""),
    ("the river of gold in the sluice with stone", "the " * 40),
]


def laid_out(encoder: PyramidEncoder, pair: tuple[str, str]) -> tuple[list[int], ...]:
    """The ids, segments and positions of a pair, and how many tokens stand before the body."""
    words = [encoder.tokenizer(text, add_special_tokens=False)["input_ids"] for text in pair]
    cls_id, sep = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    query, title = [cls_id, *words[0][:6], sep], [*words[1][:2], sep]
    body = [*words[1][2:13], sep]
    head = len(query) + len(title)
    return (
        [*query, *title, *body],
        [0] * len(query) + [1] * (len(title) + len(body)),
        [*range(head), *range(11, 11 + len(body))],
        [head],
    )


def by_masks(encoder: PyramidEncoder, pair: tuple[str, str], lower: int) -> float:
    """One pass over all tokens; in the lower layers a mask keeps body and rest apart."""
    ids, types, positions, (head,) = laid_out(encoder, pair)
    rows = [torch.tensor([each]) for each in (ids, types, positions)]
    bert = encoder.model.bert
    states = bert.embeddings(input_ids=rows[0], token_type_ids=rows[1], position_ids=rows[2])
    side = torch.arange(len(ids)) >= head
    apart = torch.where(side[:, None] == side[None, :], 0.0, -1e30)[None, None]
    for number, layer in enumerate(bert.encoder.layer):
        states = layer(states, apart if number < lower else torch.zeros_like(apart))
    return float(encoder.model.classifier(bert.pooler(states)))


@pytest.mark.parametrize("lower", [0, 1])
def test_scores_are_those_of_one_pass_with_masks(pair_bert: Path, lower: int) -> None:
    encoder = PyramidEncoder.from_pretrained(pair_bert, lower_layers=lower, **SHAPE)
    with torch.no_grad():
        expected = [by_masks(encoder, pair, lower) for pair in PAIRS]
        trained = encoder.logits(encoder.tokenize_pairs(PAIRS)).tolist()
    assert encoder.score(PAIRS).tolist() == pytest.approx(expected, abs=1e-5)
    assert trained == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected) > 1e-3


def test_without_lower_layers_it_is_the_models_own_pass(pair_bert: Path) -> None:
    encoder = PyramidEncoder.from_pretrained(pair_bert, lower_layers=0, **SHAPE)
    for pair, score in zip(PAIRS, encoder.score(PAIRS).tolist(), strict=True):
        ids, types, positions, _ = laid_out(encoder, pair)
        with torch.no_grad():
            own = encoder.model(
                input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]),
                position_ids=torch.tensor([positions]),
            ).logits  # fmt: skip
        assert score == pytest.approx(float(own), abs=1e-5)


def test_a_body_is_read_once(pair_bert: Path, monkeypatch: Any) -> None:
    encoder = PyramidEncoder.from_pretrained(pair_bert, lower_layers=1, **SHAPE)
    made: list[str] = []
    own = PyramidEncoder._made

    def counted(self: Any, documents: Any) -> Any:
        made.extend(documents)
        return own(self, documents)

    monkeypatch.setattr(PyramidEncoder, "_made", counted)
    pairs = [("gold", "the river"), ("stone", "the river"), ("gold", "water")]
    first = encoder.score(pairs)
    assert made == ["the river", "water"]
    assert (encoder.score(pairs) == first).all()
    assert made == ["the river", "water"]
    with torch.no_grad():  # trained further, nothing that was kept is right
        encoder.model.bert.embeddings.word_embeddings.weight.mul_(1.5)
    changed = encoder.score(pairs)
    assert len(made) == 4
    fresh = PyramidEncoder.from_pretrained(pair_bert, lower_layers=1, memory_mb=0, **SHAPE)
    with torch.no_grad():
        fresh.model.bert.embeddings.word_embeddings.weight.mul_(1.5)
    np.testing.assert_allclose(fresh.score(pairs), changed, atol=1e-6)
    fresh.score(pairs)
    assert len(made) == 8  # it keeps nothing
    assert not fresh._bodies


def test_what_is_kept_is_bounded(pair_bert: Path) -> None:
    encoder = PyramidEncoder.from_pretrained(pair_bert, lower_layers=1, memory_mb=1, **SHAPE)
    texts = [f"the river {n} of stone and water" for n in range(1100)]
    encoder.score([("gold", text) for text in texts])
    held = sum(each.numel() * each.element_size() for each in encoder._bodies.values())
    assert held == encoder._kept_bytes <= 1 << 20
    assert held > 0.9 * (1 << 20)
    assert set(texts[-500:]) <= set(encoder._bodies)
    assert not set(encoder._bodies) >= set(texts)


@pytest.mark.parametrize("head", ["classifier", "similarity"])
def test_it_learns_and_is_saved(bert: Path, tmp_path: Path, head: Any) -> None:
    encoder = PyramidEncoder.from_pretrained(bert, head=head, lower_layers=1, **SHAPE)
    examples = [
        Example(
            Text(f"q{n}", word),
            (Text(f"d{n}", f"of the {word} and {word}"), Text(f"e{n}", "of the number is")),
            (1.0, 0.0),
        )
        for n, word in enumerate(["gold", "river", "stone", "water"])
    ]
    from sluice.encoders.foundation.build import build

    loss = build({"type": "localized_softmax"}, LOSSES, where="loss")
    trainer = {"max_steps": 6, "learning_rate": 0.002, "per_device_train_batch_size": 4,
               "save_strategy": "no", "logging_steps": 1}  # fmt: skip
    report = fit(encoder, examples, loss, output=tmp_path / "t", trainer=trainer, gradient_cache=3)
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert losses[-1] < losses[0]
    encoder.save_pretrained(tmp_path / "m")
    assert kind_of(tmp_path / "m") == "pyramid"
    loaded = open_encoder(tmp_path / "m")
    assert loaded.shape == encoder.shape
    assert loaded.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(loaded.score(PAIRS), encoder.score(PAIRS), atol=1e-6)
    other = PyramidEncoder.from_pretrained(tmp_path / "m", lower_layers=0)
    assert other.fingerprint != encoder.fingerprint


def test_what_does_not_fit_is_refused(pair_bert: Path, bert: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"lower_layers": 2}, "lower_layers is 2, expected a whole number, 0 to 1"),
        ({"query_length": 0}, "query_length is 0"),
        ({"title_tokens": -1}, "title_tokens is -1"),
        ({"body_length": 60}, "body_length: 60, behind 51 positions .*; the model has 64: make"),
        ({"query_length": 60}, "body_length is -15"),
        ({"memory_mb": -1}, "memory_mb is -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            PyramidEncoder.from_pretrained(pair_bert, **settings)  # type: ignore[arg-type]
    encoder = PyramidEncoder.from_pretrained(pair_bert)
    assert encoder.shape == (1, 32, 16, 13)
    encoder.save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match=r"a model of type pyramid, which scores otherwise; open"):
        CrossEncoder.from_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "sluice.json"
    text = file.read_text()
    for shape, said in (
        ('"no"', " is"),
        ('{"layers": 1}', " is"),
        ('{"query_length": "x"}', " is"),
        ('{"lower_layers": 99}', ": lower_layers"),
        ('{"query_length": -1}', ": query_length"),
        ('{"body_length": 99999}', ": body_length"),
    ):
        start = text.index('"shape"')
        file.write_text(text[:start] + f'"shape": {shape}' + text[text.index("}", start) + 1 :])
        with pytest.raises(ModelError, match=rf"sluice\.json: shape{said}"):
            open_encoder(tmp_path / "m")
    with pytest.raises(ModelError, match=r"pair 0 is 'ab'"):
        encoder.score(["ab"])  # type: ignore[list-item]
    assert encoder.score([]).shape == (0,)
    assert CrossEncoder.from_pretrained(pair_bert).kind == "cross_encoder"
