"""Counts in how many documents of the examples a term is, for penalties that spare rare terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.splade.start import inverse_document_frequency
from sluice.training.example import Example
from sluice.training.protocol import BiEncoder

CHUNK = 512  # texts tokenised at a time
COUNTED = 20_000  # documents that are counted at most


def document_idf(encoder: BiEncoder, examples: Sequence[Example], size: int) -> Tensor:
    """Return the inverse document frequency of tokens in the examples' documents, ``[size]``.

    Each document counts once, by the tokens that the encoder reads of it; of many documents, as
    many as are spread evenly over the examples. Columns of the encoder's vectors are token ids.
    """
    texts = list(dict.fromkeys(doc.text for example in examples for doc in example.documents))
    step = max(1, -(-len(texts) // COUNTED))
    return inverse_document_frequency(_tokens(encoder, texts[::step]), size).float()


def _tokens(encoder: BiEncoder, texts: Sequence[str]) -> Iterator[NDArray[np.int32]]:
    for start in range(0, len(texts), CHUNK):
        features = encoder.tokenize(texts[start : start + CHUNK], "document")
        masks = features["attention_mask"].bool()
        yield from (
            ids[mask].numpy().astype(np.int32)
            for ids, mask in zip(features["input_ids"], masks, strict=True)
        )
