"""Returns a vector for each token of a text, from any dense or SPLADE encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sluice.encoders.encoder import Side
from sluice.encoders.transformer.packed.model import PackedTransformer
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.transformer.tokens import TokenBatch


class TokenStates(NamedTuple):
    """Unit vectors of texts' tokens, end to end.

    ``values`` is ``[tokens, hidden]`` on the encoder's device, float32 or bfloat16 as the encoder
    computes; ``bounds`` ``[texts + 1]`` is where each text begins, and the end.
    """

    values: Tensor
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def of(self, text: int) -> Tensor:
        """Return the vectors of one text."""
        return self.values[int(self.bounds[text]) : int(self.bounds[text + 1])]


def token_states(encoder: TextEncoder, texts: Sequence[str], side: Side) -> TokenStates:
    """Return the last layer's states of texts' own tokens, scaled to unit length.

    Special tokens, the prompt's and padding are left out, so a text may have none. Texts are cut at
    the encoder's length for the side. (Khattab and Zaharia, 2020, ColBERT.)
    """
    special = torch.tensor(special_ids(encoder.tokenizer))
    parts: list[Tensor] = [torch.empty(0)] * len(texts)
    prompt = encoder.prompt_tokens[side]

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        states = functional.normalize(encoder.output(batch, network).float(), dim=-1)
        ids = torch.from_numpy(np.concatenate(batch.ids).astype(np.int64))
        own = ~torch.isin(ids, special)
        if prompt:
            own &= torch.cat([torch.arange(length) >= prompt for length in batch.lengths])
        texts_vectors = torch.split(states.to(encoder.dtype), batch.lengths)
        masks = torch.split(own.to(states.device), batch.lengths)
        for row, vectors, mask in zip(batch.rows.tolist(), texts_vectors, masks, strict=True):
            parts[row] = vectors[mask]

    encoder.map_texts(texts, side, store)
    lengths = [len(part) for part in parts]
    filled = [part for part in parts if len(part)]
    hidden = encoder.state_width
    values = torch.cat(filled) if filled else torch.zeros((0, hidden), device=encoder.device)
    return TokenStates(values, np.cumsum([0, *lengths]))


def special_ids(tokenizer: Any) -> list[int]:
    """Return the ids of tokens that are not part of a text; an unknown word is."""
    names = ("bos", "eos", "cls", "sep", "pad", "mask")
    marks = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    unknown = {tokenizer.unk_token_id} - marks
    return sorted(set(tokenizer.all_special_ids) - unknown)
