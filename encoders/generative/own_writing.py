"""What a dense encoder's own network would write: the probability of a document after a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.loading import lengths_of
from sluice.encoders.model_files.weights.quantised import QuantisedEmbedding, QuantisedLinear
from sluice.encoders.transformer.decoder_attention import causal_attention, reads_as_decoder
from sluice.encoders.transformer.model import Features


class OwnWriting:
    """The network of a dense encoder under the head of its family's language model.

    Head and token embeddings are one matrix, so that nothing is added to the encoder.
    ``ConfigError`` for a network that is not a decoder, or whose head has weights of its own.
    """

    def __init__(self, encoder: Any) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        if not isinstance(encoder, DenseEncoder):
            raise ConfigError(
                f"grl: trains one dense encoder, whose network writes, not {type(encoder).__name__}"
            )
        network = encoder.model
        name = type(network).__name__
        known = type(network.config) in MODEL_FOR_CAUSAL_LM_MAPPING
        if not (known and reads_as_decoder(network)):
            raise ConfigError(
                f"grl: {name} is not a decoder and cannot write; take one (GPT-2, Llama, Qwen, "
                "...) with attention: bidirectional"
            )
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(network.config)
        setattr(whole, whole.base_model_prefix, network)
        table, head = network.get_input_embeddings(), whole.get_output_embeddings()
        if not isinstance(table, QuantisedEmbedding):
            whole.tie_weights()
        elif whole.config.tie_word_embeddings:
            whole.set_output_embeddings(QuantisedLinear(table.matrix, head.bias))
        apart = [name for name, value in whole.named_parameters() if value.is_meta]
        if apart:
            raise ConfigError(
                f"grl: the head of {type(whole).__name__} has weights of its own "
                f"({', '.join(apart[:2])}), which an encoder's folder has no room for; take a "
                "model with tie_word_embeddings"
            )
        self._network = network
        self._whole = whole
        self._longest = lengths_of(encoder.tokenizer, network.config)[1]

    @property
    def architecture(self) -> str:
        """The name of the language model's class in transformers."""
        return type(self._whole).__name__

    def log_probabilities(
        self, features: Mapping[str, Features], queries: Tensor, documents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each document after its query, and its tokens, ``[n]``.

        ``queries`` and ``documents`` are rows of the features of both sides. Attention is causal:
        the same network, another mask. Queries are cut to half of what the model reads at once,
        documents to the rest.
        """
        sides = (features["query"], queries), (features["document"], documents)
        parts = [
            [own["input_ids"][row][own["attention_mask"][row].bool()] for row in rows.tolist()]
            for own, rows in sides
        ]
        parts[0] = [query[: self._longest // 2] for query in parts[0]]
        texts = [torch.cat(pair)[: self._longest] for pair in zip(*parts, strict=True)]
        width = max(map(len, texts))
        ids = texts[0].new_zeros((len(texts), width))
        mask = torch.zeros_like(ids)
        wanted = torch.zeros_like(ids, dtype=torch.bool)
        for row, (text, query) in enumerate(zip(texts, parts[0], strict=True)):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
            wanted[row, len(query) : len(text)] = True
        device = self._network.device
        ids, mask, wanted = ids.to(device), mask.to(device), wanted.to(device)
        with causal_attention(self._network):
            logits = self._whole(input_ids=ids, attention_mask=mask, use_cache=False).logits
        chances = logits[:, :-1].float().log_softmax(dim=2)
        tokens = chances.gather(2, ids[:, 1:, None])[:, :, 0] * wanted[:, 1:]
        return tokens.sum(dim=1), wanted.sum(dim=1).clamp(min=1)
