"""The loss of identifiers: its value in float64, what is learnt, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_generators import save_gpt2, save_t5

from sluice.encoders import DsiEncoder, SealEncoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.loop.parts import choose_parts
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example, Text

EXAMPLES = [
    Example(Text("q1", "gold river"), (Text("d1", ""), Text("n", ""))),
    Example(Text("q2", "water"), (Text("gold water", ""), Text("d3", "")), (1.0, 2.0)),
]
DOCUMENTS = [{"id": name, "title": "", "text": ""} for name in ("d1", "gold water", "d3")]


@pytest.fixture(scope="module", params=["t5", "gpt2"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    save = {"t5": save_t5, "gpt2": save_gpt2}[request.param]
    made = DsiEncoder.from_pretrained(save(tmp_path_factory.mktemp("models") / request.param))
    made.assign_ids(DOCUMENTS)
    made.module.double().eval()
    return made


def parts(encoder: DsiEncoder, **settings: Any) -> tuple[Any, Any, Any]:
    loss = build({"type": "identifiers", **settings}, LOSSES, where="loss")
    return (loss, *loss.own_pass(encoder, seed=3, sparse=False))


def value(encoder: DsiEncoder, **settings: Any) -> tuple[float, Any]:
    loss, module, collator = parts(encoder, **settings)
    inputs = collator(EXAMPLES)
    with torch.no_grad():
        made = {name: each.double() for name, each in module(**inputs["features"]).items()}
        return float(loss.over(loss.batch(made, inputs))), inputs["features"]["query"]["labels"]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_value_is_the_cross_entropy_of_every_token(
    encoder: DsiEncoder, smoothing: float
) -> None:
    found, labels = value(encoder, smoothing=smoothing)
    assert found != value(encoder, smoothing=0.1)[0]
    entropies = []
    for example, (code,) in zip(EXAMPLES, labels.tolist(), strict=True):
        features = encoder.tokenize([example.query.text], "query")
        own = [token for token in code if token >= 0]
        assert tuple(own) in {
            encoder.codes[text.id] for text in example.documents if text.id != "n"
        }
        for place, token in enumerate(own):
            before = torch.tensor([own[:place]], dtype=torch.long)
            if encoder.encoder_decoder:
                start = torch.tensor([[encoder.model.config.decoder_start_token_id]])
                inputs = {**features, "decoder_input_ids": torch.cat([start, before], dim=1)}
            else:
                inputs = {"input_ids": torch.cat([features["input_ids"], before], dim=1)}
            with torch.no_grad():
                logits = encoder.model(**inputs).logits[0, -1].double().numpy()
            logs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            entropies.append(-(1 - smoothing) * logs[token] - smoothing * logs.mean())
    assert found == pytest.approx(float(np.mean(entropies)), rel=1e-5)


def test_each_positive_has_its_epochs(encoder: DsiEncoder) -> None:
    _, _, collator = parts(encoder)
    drawn = set()
    for epoch in range(12):
        collator.set_epoch(epoch)
        drawn.add(collator.draw(EXAMPLES[1]))
        assert collator.draw(EXAMPLES[0]) == encoder.codes["d1"]
        assert collator.draw(EXAMPLES[1]) == collator.draw(EXAMPLES[1])
    assert drawn == {encoder.codes["gold water"], encoder.codes["d3"]}


def test_gradients_reach_the_model(encoder: DsiEncoder) -> None:
    loss, module, collator = parts(encoder)
    inputs = collator(EXAMPLES)
    loss.over(loss.batch(module(**inputs["features"]), inputs)).backward()
    gradients = [each.grad for each in encoder.module.parameters() if each.requires_grad]
    assert any(grad is not None and bool(grad.any()) for grad in gradients)


def test_what_does_not_fit_is_refused(encoder: DsiEncoder, tmp_path: Any) -> None:
    _, _, collator = parts(encoder)
    stranger = Example(Text("q", "gold"), (Text("elsewhere", "gold"),))
    with pytest.raises(DataError, match="'elsewhere' has no identifier"):
        collator([stranger])
    with pytest.raises(ConfigError, match=r"identifiers\.smoothing: 1\.0"):
        parts(encoder, smoothing=1.0)
    with pytest.raises(ConfigError, match="a dsi encoder takes identifiers"):
        choose_parts(encoder, InfoNCE(), live=False, sparse=False, seed=1)
    seal = SealEncoder.from_pretrained(save_t5(tmp_path / "t5"))
    loss = build({"type": "identifiers"}, LOSSES, where="loss")
    with pytest.raises(ConfigError, match="identifiers trains dsi; a seal encoder takes spans"):
        choose_parts(seal, loss, live=False, sparse=False, seed=1)
