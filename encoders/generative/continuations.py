"""Runs a language model token by token over several continuations of each text."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from sluice.encoders.transformer.decoder_attention import cache_name

if TYPE_CHECKING:
    from torch import Tensor


class Continuations:
    """The rows of one batch that a transformers model continues, ``copies`` for each text.

    ``ids`` and ``mask`` ``[texts, length]`` are the texts' tokens: what an encoder reads, or what a
    decoder continues (padded on the left). Keys and values of earlier tokens are kept. ``before``
    ``[tokens, width]`` are vectors that stand before the embeddings of each text (a soft prompt).
    """

    def __init__(
        self, model: Any, ids: Tensor, mask: Tensor, copies: int, before: Tensor | None = None
    ) -> None:
        self._model = model
        self._copies = copies
        self._cache: Any = None
        self._cache_name = cache_name(model)
        self._encoder_decoder = bool(model.config.is_encoder_decoder)
        self._texts, mask = read_features(model, ids, mask, before)
        self._mask = mask.repeat_interleave(copies, dim=0)
        self._first_mask = mask
        self._states: Tensor | None = None
        self._positions = "position_ids" in inspect.signature(model.forward).parameters

    def first(self) -> Tensor:
        """Return the log-probabilities ``[texts * copies, vocabulary]`` of each first token."""
        if self._encoder_decoder:
            encoder = self._model.get_encoder()
            states = encoder(**self._texts, attention_mask=self._first_mask)
            hidden = states.last_hidden_state.repeat_interleave(self._copies, dim=0)
            self._states = hidden
            start = self._model.config.decoder_start_token_id
            start = self._model.config.pad_token_id if start is None else start
            return self._decoded(torch.full((len(hidden),), int(start), device=hidden.device))
        output = self._forward(self._texts, self._first_mask)
        self._cache.batch_repeat_interleave(self._copies)
        following = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
        return following.repeat_interleave(self._copies, dim=0)

    def next(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Return log-probabilities after ``tokens`` ``[n]``, appended to the old rows ``rows``."""
        self._cache.reorder_cache(rows)
        if self._encoder_decoder:
            return self._decoded(tokens)
        mask = self._mask[rows]
        self._mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        output = self._forward({"input_ids": tokens[:, None]}, self._mask)
        return torch.log_softmax(output.logits[:, -1].float(), dim=-1)

    def _decoded(self, tokens: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=self._mask,
            decoder_input_ids=tokens[:, None],
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        self._cache = output.get(self._cache_name)
        return torch.log_softmax(output.logits[:, -1].float(), dim=-1)

    def _forward(self, texts: dict[str, Tensor], mask: Tensor) -> Any:
        width = next(iter(texts.values())).shape[1]
        places = {}
        if self._positions:  # padding on the left takes no place
            positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
            places["position_ids"] = positions[:, -width:]
        output = self._model(
            attention_mask=mask,
            use_cache=True,
            **{self._cache_name: self._cache},
            **texts,
            **places,
        )
        self._cache = output.get(self._cache_name)
        return output


def read_features(
    model: Any, ids: Tensor, mask: Tensor, before: Tensor | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return what a model reads, tokens or vectors, and its mask ``[texts, length]``.

    With ``before`` these are the vectors of each text's tokens behind those ``[tokens, width]``.
    """
    if before is None:
        return {"input_ids": ids}, mask
    vectors = model.get_input_embeddings()(ids)
    own = before.to(vectors.dtype).expand(len(ids), -1, -1)
    seen = mask.new_ones((len(mask), len(before)))
    return {"inputs_embeds": torch.cat([own, vectors], dim=1)}, torch.cat([seen, mask], dim=1)


def writes_in_order(model: Any) -> bool:
    """Return whether a decoder's logits of a token depend on nothing that comes after it."""
    size = model.get_input_embeddings().num_embeddings
    pairs = torch.tensor([[1, 2], [1, 3]], device=model.device) % size
    with torch.inference_mode():
        first = model(input_ids=pairs).logits[:, 0].float()
    return torch.allclose(first[0], first[1], rtol=1e-3, atol=1e-4)
