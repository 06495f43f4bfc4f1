"""Kept keys and values have the name of the installed transformers: nothing is said to be old."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_generators import save_gpt2, save_t5
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.utils import logging as their_logging

from sluice.encoders.generative.constrained_decoding import Continuations
from sluice.encoders.transformer.decoder_attention import cache_name


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize(
    ("save", "kind"), [(save_t5, AutoModelForSeq2SeqLM), (save_gpt2, AutoModelForCausalLM)]
)
def test_going_on_equals_reading_anew_and_warns_of_nothing(
    save: Any, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind.from_pretrained(save(tmp_path)).eval()
    collected = _Collected()
    logger = their_logging.get_logger("transformers")
    logger.addHandler(collected)
    monkeypatch.setattr(logger, "level", logging.WARNING)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    with torch.inference_mode():
        rows = Continuations(model, ids, torch.ones_like(ids), copies=2)
        rows.first()
        tokens = torch.tensor([11, 12, 13, 14])
        after = rows.next(tokens, torch.arange(4))
        if model.config.is_encoder_decoder:
            texts = ids.repeat_interleave(2, dim=0)
            start = torch.full((4,), model.config.decoder_start_token_id)
            written = torch.stack([start, tokens], dim=1)
            logits = model(input_ids=texts, decoder_input_ids=written, use_cache=False).logits
        else:
            whole = torch.cat([ids.repeat_interleave(2, dim=0), tokens[:, None]], dim=1)
            logits = model(input_ids=whole, use_cache=False).logits
    logger.removeHandler(collected)
    torch.testing.assert_close(
        after, torch.log_softmax(logits[:, -1], dim=-1), rtol=1e-4, atol=1e-4
    )
    assert collected.said == []


def test_a_model_of_an_older_transformers_keeps_its_name() -> None:
    class Old:
        def forward(self, input_ids: Any, past_key_values: Any = None) -> None: ...

    class New:
        def forward(self, input_ids: Any, cache: Any = None) -> None: ...

    assert (cache_name(Old()), cache_name(New())) == ("past_key_values", "cache")
