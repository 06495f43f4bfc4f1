"""Rank-biased overlap: how alike two rankings are, their heads above all."""

from __future__ import annotations

from collections.abc import Sequence

from encoders.errors import ConfigError
from retrieval.ranking import check_unique


def rank_biased_overlap(first: Sequence[str], second: Sequence[str], p: float = 0.9) -> float:
    """Return extrapolated rank-biased overlap of two rankings without ties, from 0 to 1.

    ``p`` is the chance of looking one rank deeper. Webber, Moffat and Zobel (2010), equation 32:
    agreement beyond the ends is taken to be what it is there. Two empty rankings are alike.
    """
    if isinstance(p, bool) or not 0.0 < p < 1.0:
        raise ConfigError(f"p: {p!r}; expected a number between 0 and 1, such as 0.9")
    short, long = sorted((list(first), list(second)), key=len)
    check_unique("rank_biased_overlap", short)
    check_unique("rank_biased_overlap", long)
    if not short:
        return float(not long)
    seen_short, seen_long = set[str](), set[str]()
    total, overlap, overlap_short = 0.0, 0, 0
    for depth, document in enumerate(long, 1):
        seen_long.add(document)
        if depth <= len(short):
            seen_short.add(short[depth - 1])
            overlap += (document in seen_short) + (short[depth - 1] in seen_long)
            overlap -= document == short[depth - 1]  # counted from both sides
            overlap_short = overlap
        else:
            overlap += document in seen_short
            beyond = (depth - len(short)) / (len(short) * depth)
            total += overlap_short * beyond * p**depth
        total += overlap / depth * p**depth
    tail = (overlap - overlap_short) / len(long) + overlap_short / len(short)
    return float((1.0 - p) / p * total + tail * p ** len(long))
