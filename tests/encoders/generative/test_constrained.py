from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from random_decoder import RandomDecoder, emitted

from sluice.encoders.foundation.tokens import TokenSequences
from sluice.encoders.generative.constrained_decoding import ConstrainedBeams
from sluice.indexing import FmIndex


def ngrams_of(texts: Sequence[Sequence[int]], longest: int) -> set[tuple[int, ...]]:
    return {
        tuple(text[at : at + size])
        for text in texts
        for size in range(1, longest + 1)
        for at in range(len(text) - size + 1)
    }


def test_only_what_exists_is_written() -> None:
    rng = np.random.default_rng(5)
    texts = [rng.integers(0, 30, rng.integers(0, 60)).tolist() for _ in range(60)]
    index = FmIndex(segment_tokens=200)
    index.add(TokenSequences.of(texts))
    dead = list(range(0, 60, 3))
    index.delete(dead)
    live = [text for row, text in enumerate(texts) if row not in dead]
    existing = ngrams_of(live, 6)
    keys = emitted(index, texts=8, rounds=12, beams=6, length=6, vocabulary=40)
    assert len(keys) > 2_000
    assert keys <= existing
    assert {len(key) for key in keys} == {1, 2, 3, 4, 5, 6}


def test_beams_that_end_with_their_document_leave_the_others_room() -> None:
    texts = [[1], [2, 3, 4, 5]]
    index = FmIndex()
    index.add(TokenSequences.of(texts))
    for never in ((), (2,)):
        by = ConstrainedBeams(beams=5, length=6, unigrams=1, never=never)
        rows: Any = RandomDecoder(1, 5, 8, torch.Generator().manual_seed(1))
        expected = {key for key in ngrams_of(texts, 6) if not set(never) & set(key)}
        assert by.search(rows, index, 1)[0].keys() == expected
