"""The loss of spans: its value in float64, what is drawn, and that every setting is heard."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tiny_generators import save_gpt2, save_t5

from sluice.encoders import SealEncoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.generation.collators import overlap
from sluice.training.losses import LOSSES
from sluice.training.protocol import Example, Text

DOCUMENT = "gold in the river and stone beneath deep water of the sluice by the river"
EXAMPLES = [
    Example(Text("q1", "gold river"), (Text("d1", DOCUMENT), Text("n", "rank score"))),
    Example(Text("q2", "water"), (Text("d2", "deep water"), Text("d3", "")), (1.0, 2.0)),
]


@pytest.fixture(scope="module", params=["t5", "gpt2"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    save = {"t5": save_t5, "gpt2": save_gpt2}[request.param]
    made = SealEncoder.from_pretrained(save(tmp_path_factory.mktemp("models") / request.param))
    made.module.double()
    return made


def parts(encoder: SealEncoder, **settings: Any) -> tuple[Any, Any, Any]:
    loss = build({"type": "spans", **settings}, LOSSES, where="loss")
    return (loss, *loss.own_pass(encoder, seed=3, sparse=False))


def value(encoder: SealEncoder, **settings: Any) -> tuple[float, Any]:
    loss, module, collator = parts(encoder, **settings)
    inputs = collator(EXAMPLES)
    with torch.no_grad():
        made = {name: each.double() for name, each in module(**inputs["features"]).items()}
        return float(loss.over(loss.batch(made, inputs))), inputs["features"]["query"]["labels"]


def by_hand(encoder: SealEncoder, labels: np.ndarray, smoothing: float) -> float:
    """Token by token: what is left of log softmax, with the rest spread over all tokens."""
    entropies = []
    for example, spans in zip(EXAMPLES, labels.tolist(), strict=True):
        features = encoder.tokenize([example.query.text], "query")
        for span in spans:
            for place in range(sum(label >= 0 for label in span)):
                before = torch.tensor([span[:place]], dtype=torch.long)
                if encoder.encoder_decoder:
                    start = torch.tensor([[encoder.model.config.decoder_start_token_id]])
                    inputs = {**features, "decoder_input_ids": torch.cat([start, before], dim=1)}
                else:
                    inputs = {"input_ids": torch.cat([features["input_ids"], before], dim=1)}
                with torch.no_grad():
                    logits = encoder.model(**inputs).logits[0, -1].double().numpy()
                own = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
                entropies.append(-(1 - smoothing) * own[span[place]] - smoothing * own.mean())
    return float(np.mean(entropies))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_value_is_the_cross_entropy_of_every_token(
    encoder: SealEncoder, smoothing: float
) -> None:
    encoder.module.eval()
    found, labels = value(encoder, spans=2, length=4, smoothing=smoothing)
    assert labels.shape == (2, 2, 4)
    assert found == pytest.approx(by_hand(encoder, labels.numpy(), smoothing), rel=1e-5)


def test_spans_are_of_positives_and_repeat_for_seed_and_epoch(encoder: SealEncoder) -> None:
    _, _, collator = parts(encoder, spans=30, length=3)
    ids = encoder.encode_documents([DOCUMENT]).ids.tolist()
    runs = {tuple(ids[at : at + 3]) for at in range(len(ids) - 2)}
    first = collator.draw(EXAMPLES[0])
    assert {tuple(span) for span in first.tolist()} <= runs
    assert (collator.draw(EXAMPLES[0]) == first).all()
    collator.set_epoch(1)
    assert (collator.draw(EXAMPLES[0]) != first).any()
    short = collator.draw(EXAMPLES[1]).tolist()  # two tokens, or the empty document's none
    water = encoder.encode_documents(["deep water"]).ids.tolist()
    assert {tuple(span) for span in short} == {(*water, -100), (-100,) * 3}


def test_spans_that_share_trigrams_with_the_query_are_likelier(encoder: SealEncoder) -> None:
    _, _, collator = parts(encoder, length=2, temperature=0.5)
    words = ["gold", "in", "the", "river", "and", "stone", "deep", "water", "of", "the", "sluice"]
    ids = encoder.encode_documents([" ".join(words)]).ids
    weights = []
    for at in range(len(words) - 1):
        text, query = f" {words[at]} {words[at + 1]} ", " gold river "
        own = Counter(query[i : i + 3] for i in range(len(query) - 2))
        span = Counter(text[i : i + 3] for i in range(len(text) - 2))
        shared = sum(min(count, span[each]) for each, count in own.items())
        weights.append(math.exp(shared / sum(own.values()) / 0.5))
    expected = np.array(weights) / sum(weights)
    np.testing.assert_allclose(collator.chances("gold river", ids), expected, rtol=1e-10)


def test_overlap_is_a_share() -> None:
    assert overlap("Gold  river", "gold river") == 1
    assert overlap("gold", "water") == 0
    assert overlap("", "gold") == 0


@pytest.mark.parametrize(
    "settings", [{"spans": 3}, {"length": 2}, {"temperature": 5.0}, {"smoothing": 0.3}]
)
def test_every_setting_is_heard(encoder: SealEncoder, settings: dict[str, Any]) -> None:
    encoder.module.eval()
    usual = {"spans": 4, "length": 4, "temperature": 0.05}
    assert value(encoder, **usual)[0] == value(encoder, **usual)[0]
    assert value(encoder, **usual)[0] != value(encoder, **{**usual, **settings})[0]


def test_gradients_reach_the_model(encoder: SealEncoder) -> None:
    loss, module, collator = parts(encoder, spans=2)
    inputs = collator(EXAMPLES)
    loss.over(loss.batch(module(**inputs["features"]), inputs)).backward()
    gradients = [each.grad for each in encoder.module.parameters() if each.requires_grad]
    assert any(grad is not None and bool(grad.any()) for grad in gradients)


def test_spans_longer_than_the_model_writes_are_refused(encoder: SealEncoder) -> None:
    with pytest.raises(ConfigError, match=r"spans\.length: 65, and this model writes at most"):
        parts(encoder, length=65)
