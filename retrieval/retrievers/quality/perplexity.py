"""How well a transformers language model predicts a document's text, as its quality."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.documents.document import Document

if TYPE_CHECKING:
    from torch import Tensor

UNREAD = -1e4  # of a text without a token to predict: below every other


class Perplexity:
    """Minus the log perplexity of a document: the mean log probability of its tokens.

    A causal model predicts each token from those before it, in one pass. A masked model predicts
    tokens one by one from all others (pseudo-log-likelihood; Salazar et al. 2020), a pass for each
    of ``positions`` tokens spread evenly over the text. Texts are cut to ``length`` tokens, or what
    the model has room for.
    """

    name = "perplexity"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        masked: bool,
        length: int = 256,
        positions: int = 16,
        batch: int = 32,
        device: str = "cpu",
    ) -> None:
        if masked and tokenizer.mask_token_id is None:
            raise ModelError("perplexity: the tokenizer of this masked model has no mask token")
        self._model = model.eval().to(device)
        self._tokenizer = tokenizer
        self._masked = masked
        places = getattr(model.config, "max_position_embeddings", None) or length
        self._length = min(whole_number(length, "length", 1), places, tokenizer.model_max_length)
        self._positions = whole_number(positions, "positions", 1)
        self._batch = whole_number(batch, "batch", 1)
        self._device = device
        self.facts: dict[str, Any] = {"masked": masked, "length": self._length}

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> Perplexity:
        """Load a causal or masked language model by folder or hub id; only safetensors are read."""
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

        from sluice.encoders.model_files.layout import read_object, transformer_folder
        from sluice.encoders.model_files.loading import load
        from sluice.encoders.model_files.locate import model_folder

        home = transformer_folder(model_folder(str(model)))
        if not (home / "config.json").exists():
            raise ModelError(f"{home}: no config.json; expected a transformers model folder")
        names = read_object(home / "config.json").get("architectures") or []
        masked = any(str(name).endswith("ForMaskedLM") for name in names)
        if not masked and not any(
            str(name).endswith(("ForCausalLM", "HeadModel")) for name in names
        ):
            raise ModelError(
                f"{home}: {', '.join(map(str, names)) or 'no architecture'} predicts no tokens; "
                "expected a causal or masked language model"
            )
        auto_class = AutoModelForMaskedLM if masked else AutoModelForCausalLM
        network, tokenizer, _, _ = load(auto_class, str(model), fresh=lambda key, model: False)
        made = cls(network, tokenizer, masked=masked, **options)
        made.facts["model"] = str(model)
        return made

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return each document's mean log probability per token; -10,000 for one without any."""
        import torch

        texts = [document.full_text for document in documents]
        encoded = self._tokenizer(
            texts, truncation=True, max_length=self._length, return_special_tokens_mask=True
        )
        rows: list[tuple[int, list[int], int]] = []  # document, tokens, the place predicted
        pairs = zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
        for number, (tokens, special) in enumerate(pairs):
            own = [place for place, mark in enumerate(special) if not mark]
            if self._masked:
                spread = self._spread(len(own))
                rows += [(number, tokens, own[place]) for place in spread]
            elif len(tokens) > 1 and own:
                rows.append((number, tokens, -1))
        sums, counts = np.zeros(len(texts)), np.zeros(len(texts))
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place][1]))
        with torch.inference_mode():
            for first in range(0, len(order), self._batch):
                batch = [rows[place] for place in order[first : first + self._batch]]
                logs, weights = self._logs(batch)
                owners = [number for number, _, _ in batch]
                np.add.at(sums, owners, logs)
                np.add.at(counts, owners, weights)
        found = np.where(counts > 0, sums / np.maximum(counts, 1), UNREAD)
        return found.astype(np.float32)

    def _spread(self, tokens: int) -> list[int]:
        """Return places spread evenly over so many tokens, every one of few."""
        count = min(tokens, self._positions)
        return [(2 * place + 1) * tokens // (2 * count) for place in range(count)]

    def _logs(self, batch: list[tuple[int, list[int], int]]) -> tuple[Any, Any]:
        """Return each row's sum of log probabilities, and of how many tokens."""
        import torch

        width = max(len(tokens) for _, tokens, _ in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (_, tokens, _) in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        shown = ids.clone()
        places = torch.tensor([place for _, _, place in batch])
        if self._masked:
            shown[torch.arange(len(batch)), places] = self._tokenizer.mask_token_id
        logits = (
            self._model(input_ids=shown.to(self._device), attention_mask=mask.to(self._device))
            .logits.float()
            .cpu()
        )
        if self._masked:
            rows = torch.arange(len(batch))
            logs = torch.log_softmax(logits[rows, places], -1)[rows, ids[rows, places]]
            return logs.double().numpy(), np.ones(len(batch))
        kept = mask[:, 1:].double()
        return _token_logs(logits, ids, kept), kept.sum(1).numpy()


def _token_logs(logits: Tensor, ids: Tensor, kept: Tensor) -> Any:
    """Return per row the sum of the log probabilities of tokens 2, 3, ... that are kept."""
    logs = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]  # [B, T - 1]
    return (logs.double() * kept).sum(1).numpy()
