"""Encodes queries: by the encoder alone, or with the index that they search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FmIndex


def query_vectors(encoder: Any, texts: Sequence[str], index: Any) -> Any:
    """Return what ``index`` searches with for queries; those of SEAL are written under it."""
    decode = hooks_of(encoder).decode_queries
    return encoder.encode_queries(texts) if decode is None else decode(texts, index)


def check_written(encoder: Any, index: Any) -> None:
    """Raise ``ConfigError`` where one of encoder and index is of n-grams, and the other is not."""
    writes, holds = hooks_of(encoder).similarity == "ngrams", isinstance(index, FmIndex)
    if writes and not holds:
        raise ConfigError(
            f"index: {type(index).__name__} holds vectors, and a seal encoder has n-grams of "
            "tokens; expected an FmIndex ({type: fm}), or leave index out"
        )
    if holds and not writes:
        raise ConfigError(
            f"index: FmIndex holds sequences of tokens, and {type(encoder).__name__} makes "
            "vectors; it is for an encoder of type seal"
        )
