"""Measures the FM-index: building it, what follows an n-gram, where one is, and its size.

`scripts/bench_fm.py --documents 1000000` is the size that its target is for: a build of under 10
minutes, and `continuations` in under 50 us. The texts are drawn from Zipf's law with a memory, so
that n-grams repeat: each token is drawn anew, or is the one that followed the last time.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import options
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenSequences
from sluice.indexing import FmIndex, open_index

VOCABULARY, LENGTH, CHUNK = 30_000, 60, 16_384


def texts(count: int, rng: np.random.Generator) -> TokenSequences:
    """Return texts of 60 tokens in which about half of all tokens follow from the one before."""
    drawn = np.minimum(rng.zipf(1.25, (count, LENGTH)), VOCABULARY) - 1
    follows = rng.random((count, LENGTH)) < 0.5
    for place in range(1, LENGTH):
        usual = (drawn[:, place - 1] * 7919 + rng.integers(0, 4, count)) % VOCABULARY
        drawn[:, place] = np.where(follows[:, place], usual, drawn[:, place])
    bounds = np.arange(0, (count + 1) * LENGTH, LENGTH)
    return TokenSequences(drawn.astype(np.int32).reshape(-1), bounds)


def line(name: str, seconds: list[float]) -> None:
    micro = np.array(seconds) * 1e6
    quarters = np.percentile(micro, [50, 95, 100])
    print(f"  {name:34} mean {micro.mean():8.1f} us, median {quarters[0]:7.1f}, "
          f"95% {quarters[1]:7.1f}, most {quarters[2]:9.1f}")  # fmt: skip


def timed(index: FmIndex, prefixes: list[NDArray[np.int32]]) -> list[float]:
    seconds = []
    for prefix in prefixes:
        place = index.prefix(prefix)
        start = time.perf_counter()
        index.continuations(place)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    arguments = options(__doc__, {"--documents": 100_000, "--prefixes": 2_000})
    rng = np.random.default_rng(13)
    sample, seconds = list[NDArray[np.int32]](), 0.0
    index = FmIndex()
    with tempfile.TemporaryDirectory() as folder:
        index.spool(Path(folder) / "work")
        left = arguments.documents
        warm = FmIndex()
        warm.add(texts(2, rng))
        warm.continuations()  # compiles
        while left:
            part = texts(min(CHUNK, left), rng)
            sample += list(part[rng.integers(0, len(part), 64)])
            left -= len(part)
            start = time.perf_counter()
            index.add(part)
            seconds += time.perf_counter() - start
        start = time.perf_counter()
        index.save(Path(folder) / "index")
        seconds += time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        tokens = index.tokens
        print(f"{arguments.documents:,} documents, {tokens:,} tokens, "
              f"{len(index._segments)} segments")  # fmt: skip
        print(f"  built and saved in {seconds:.1f} s ({seconds / tokens * 1e6:.2f} us a token), "
              f"{index.size_bytes / tokens:.1f} bytes a token, peak {peak:,.0f} MB")  # fmt: skip
        opened = open_index(Path(folder) / "index")
        assert isinstance(opened, FmIndex)
        for low, high in ((1, 1), (2, 2), (3, 5), (6, 10)):
            prefixes = []
            for _ in range(arguments.prefixes):
                text, size = sample[rng.integers(len(sample))], int(rng.integers(low, high + 1))
                start_at = rng.integers(0, LENGTH - size)
                prefixes.append(text[start_at : start_at + size])
            name = f"{low} tokens" if low == high else f"{low} to {high} tokens"
            line(f"continuations of {name}, first", timed(opened, prefixes))
            line(f"continuations of {name}, again", timed(opened, prefixes))
        steps = []
        for prefix in prefixes:
            start = time.perf_counter()
            opened.prefix(prefix)
            steps.append((time.perf_counter() - start) / len(prefix))
        line("a prefix, each token", steps)
        found = []
        for prefix in prefixes:
            start = time.perf_counter()
            opened.locate(prefix)
            found.append(time.perf_counter() - start)
        line("locate of 6 to 10 tokens", found)


if __name__ == "__main__":
    main()
