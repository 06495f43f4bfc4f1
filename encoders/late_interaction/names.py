"""Names the token vectors of texts, for those who read which tokens met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from sluice.encoders.encoder import Side
from sluice.encoders.late_interaction.pooling import pooled_labels

if TYPE_CHECKING:
    from sluice.encoders.late_interaction.encoder import TokenEncoder

JOINED = " + "  # the tokens that share one vector


def token_names(encoder: TokenEncoder, texts: Sequence[str], side: Side) -> list[list[str]]:
    """Return the tokens of each text that have vectors, in their order.

    Tokens that share a vector are one name, ``gold + river``; the texts are encoded to know them.
    """
    if not texts:
        return []
    features = encoder.tokenize(texts, side)
    scored = encoder.scored(features, side)
    names = [
        [_name(encoder, token) for token in ids[kept].tolist()]
        for ids, kept in zip(features["input_ids"], scored, strict=True)
    ]
    if side == "query" or encoder.pool_factor == 1:
        return names
    with torch.inference_mode():
        there = {name: values.to(encoder.device) for name, values in features.items()}
        vectors = encoder.embed(there, side)
    found = []
    for of_text, text, kept in zip(names, vectors, scored, strict=True):
        values = np.ascontiguousarray(text[kept].cpu().numpy())
        labels = pooled_labels(values, encoder.pool_factor, encoder.protected_tokens)
        joined: dict[int, list[str]] = {}
        for name, label in zip(of_text, labels.tolist(), strict=True):
            joined.setdefault(label, []).append(name)
        found.append([JOINED.join(joined[label]) for label in sorted(joined)])
    return found


def _name(encoder: TokenEncoder, token: int) -> str:
    """Return a token as it is read: without marks of word boundaries, if it has other letters."""
    plain = str(encoder.tokenizer.decode([token])).strip()
    return plain or str(encoder.tokenizer.convert_ids_to_tokens(token))
