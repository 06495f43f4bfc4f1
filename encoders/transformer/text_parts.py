"""Vectors of parts of texts, of states that saw the whole text: late chunking.

(Günther et al. 2024, Late Chunking, arXiv 2409.04701.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sluice.encoders.encoder import Dense
from sluice.encoders.transformer.tokens import token_offsets

if TYPE_CHECKING:
    from torch import Tensor

    from sluice.encoders.transformer.packed.model import PackedTransformer
    from sluice.encoders.transformer.text_encoder import TextEncoder
    from sluice.encoders.transformer.tokens import TokenBatch

Part: TypeAlias = Sequence[tuple[int, int]]  # characters [start, end) of a text, in several places
Parts: TypeAlias = Sequence[Part | None]  # of one text


def encode_parts(
    encoder: TextEncoder,
    texts: Sequence[str],
    parts: Sequence[Parts],
    *,
    dim: int,
    vectors_of: Callable[[Tensor], Tensor],
    unpooled: int,
) -> Dense:
    """Return the vectors of each document's parts, one after the other, float32 ``[parts, dim]``.

    A text passes the model once. A part's vector is the mean of the states of its own tokens, and
    of those that every text has: special tokens, and the prompt where it is pooled. A part of None
    is the whole text, whose vector is that of ``encode_documents``. ``vectors_of`` makes vectors
    ``[n, dim]`` of means; the first ``unpooled`` tokens of a text are in none.
    """
    counts = np.array([len(of) for of in parts], np.int64)
    starts = np.cumsum(counts) - counts
    vectors = np.zeros((int(counts.sum()), dim), np.float32)
    prompt = encoder.prompts["document"]

    def store(batch: TokenBatch, network: PackedTransformer | None) -> None:
        states = encoder.output(batch, network).float()
        chosen = [prompt + texts[row] for row in batch.rows.tolist()]
        offsets = token_offsets(encoder.tokenizer, chosen, length=encoder.lengths["document"])
        ends = np.cumsum(batch.lengths)
        for row, end, places in zip(batch.rows.tolist(), ends.tolist(), offsets, strict=True):
            own = states[end - len(places) : end]
            masks = _masks(np.array(places), parts[row], len(prompt), unpooled)
            weights = torch.from_numpy(masks).to(own)
            with torch.autocast(own.device.type, enabled=False):  # sums are in float32
                means = (weights @ own) / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
            made = vectors_of(means).float().cpu().numpy()
            vectors[starts[row] : starts[row] + counts[row]] = made

    encoder.map_texts(texts, "document", store)
    return vectors


def _masks(
    places: NDArray[np.int64], parts: Parts, before: int, unpooled: int
) -> NDArray[np.float32]:
    """Return which tokens are pooled ``[parts, tokens]``; ``before`` is the prompt's length."""
    starts, ends = places[:, 0] - before, places[:, 1] - before
    every = (places[:, 1] == 0) | (ends <= 0)  # special tokens stand nowhere
    masks = np.zeros((len(parts), len(places)), np.float32)
    for mask, part in zip(masks, parts, strict=True):
        mask[every if part is not None else slice(None)] = 1.0
        for start, end in part or ():
            mask[(starts < end) & (ends > start)] = 1.0
        own = mask.copy()
        own[:unpooled] = 0.0
        if own.any():  # else only the prompt is left, as where the text is empty
            mask[:] = own
    return masks
