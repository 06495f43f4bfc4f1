"""Names and places of the token vectors of texts, for those who read which tokens met."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch

from sluice.encoders.encoder import Side
from sluice.encoders.late_interaction.pooling import pooled_labels
from sluice.encoders.late_interaction.pruning import VORONOI, kept_tokens
from sluice.encoders.transformer.model import Features
from sluice.encoders.transformer.tokens import token_offsets

if TYPE_CHECKING:
    from sluice.encoders.late_interaction.encoder import TokenEncoder

Place: TypeAlias = tuple[int, int]  # the first character, and one behind the last
Fact = TypeVar("Fact")

JOINED = " + "  # the tokens that share one vector


def token_names(encoder: TokenEncoder, texts: Sequence[str], side: Side) -> list[list[str]]:
    """Return the tokens of each text that have vectors, in their order.

    Tokens that share a vector are one name, ``gold + river``; the texts are encoded to know them.
    """
    if not texts:
        return []
    features = encoder.tokenize(texts, side)
    named = [[_name(encoder, token) for token in ids.tolist()] for ids in features["input_ids"]]
    by_vector = _by_vector(encoder, features, side, named)
    return [[JOINED.join(names) for names in of_text] for of_text in by_vector]


def token_places(
    encoder: TokenEncoder, texts: Sequence[str], side: Side
) -> list[list[list[Place]]]:
    """Return where in each text the tokens of each vector stand, as many as have names.

    Special tokens, marks, prompts and masks stand nowhere; nor do any tokens of a tokenizer that
    does not tell.
    """
    if not texts:
        return []
    features = encoder.tokenize(texts, side)
    width = features["input_ids"].shape[1]
    prompt = encoder.prompts[side]
    found = token_offsets(
        encoder.tokenizer, [prompt + text for text in texts], length=encoder.lengths[side]
    )
    placed = []
    for row, text in enumerate(texts):
        own = [_trimmed(text, start - len(prompt), end - len(prompt)) for start, end in found[row]]
        placed.append([*own, *[[]] * (width - len(own))])
    by_vector = _by_vector(encoder, features, side, placed)
    return [[[*chain.from_iterable(places)] for places in of_text] for of_text in by_vector]


def _trimmed(text: str, start: int, end: int) -> list[Place]:
    """Return a token's place without the white space at its ends, none if nothing is left."""
    start = max(0, start)
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return [(start, end)] if start < end else []


def _by_vector(
    encoder: TokenEncoder, features: Features, side: Side, of_tokens: Sequence[Sequence[Fact]]
) -> list[list[list[Fact]]]:
    """Return for each vector of each text what is known of its tokens ``[n, length]``."""
    scored = encoder.scored(features, side)
    kept = [
        [fact for fact, has in zip(facts, row.tolist(), strict=False) if has]
        for facts, row in zip(of_tokens, scored, strict=True)
    ]
    if side == "query" or encoder.pool_factor == 1:
        return [[[fact] for fact in facts] for facts in kept]
    with torch.inference_mode():
        there = {name: values.to(encoder.device) for name, values in features.items()}
        vectors = encoder.embed(there, side)
    found = []
    for facts, text, row in zip(kept, vectors, scored, strict=True):
        values = np.ascontiguousarray(text[row].cpu().numpy())
        if encoder.pool_by == VORONOI:
            kept_places = kept_tokens(values, encoder.pool_factor, encoder.protected_tokens)
            found.append([[facts[place]] for place in kept_places.tolist()])
            continue
        labels = pooled_labels(values, encoder.pool_factor, encoder.protected_tokens)
        joined: dict[int, list[Fact]] = {}
        for fact, label in zip(facts, labels.tolist(), strict=True):
            joined.setdefault(label, []).append(fact)
        found.append([joined[label] for label in sorted(joined)])
    return found


def _name(encoder: TokenEncoder, token: int) -> str:
    """Return a token as it is read: without marks of word boundaries, if it has other letters."""
    plain = str(encoder.tokenizer.decode([token])).strip()
    return plain or str(encoder.tokenizer.convert_ids_to_tokens(token))
