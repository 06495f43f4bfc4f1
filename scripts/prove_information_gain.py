#!/usr/bin/env python
"""Does a word vector's length say how much the word tells? Skip-gram vectors, trained here.

    SLUICE_DATA=FOLDER scripts/prove_information_gain.py [DATASET ...] [--asked scifact]
    SLUICE_DATA=FOLDER scripts/prove_information_gain.py --vectors glove-50d

Skip-gram vectors with negative sampling are trained on the joined corpora. Over the words that
occur often, prints the rank correlation of their squared length, and of ``information_gain``'s
quadratic form, with the divergence of the words around each from all words, counted. Then BM25
searches the corpus ``--asked``, which is none of those, with its idf in the query, with the idf of
the joined corpora, with 1 and with the squared lengths. ``--vectors`` are a published
table's (``type: static``) in place of trained ones, of words that it has.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

WORD = re.compile(r"[a-z][a-z0-9'-]*")
WINDOW, NEGATIVES, RATE = 5, 5, 0.025


class Corpus(NamedTuple):
    """The words in use with their counts, and the texts as their numbers, -1 between texts."""

    words: list[str]
    counts: NDArray[np.int64]
    stream: NDArray[np.int32]


def read(texts: Iterable[str], least: int) -> Corpus:
    """Return the corpus of the words that occur ``least`` times; others are left out."""
    split = [WORD.findall(text.lower()) for text in texts]
    counted = Counter(word for words in split for word in words)
    words = sorted(word for word, count in counted.items() if count >= least)
    number = {word: place for place, word in enumerate(words)}
    parts = [[*(number[word] for word in each if word in number), -1] for each in split]
    stream = np.array([place for part in parts for place in part], np.int32)
    return Corpus(words, np.array([counted[word] for word in words], np.int64), stream)


def divergences(corpus: Corpus) -> NDArray[np.float64]:
    """Return KL(p(. | w) || p) of the words within ``WINDOW`` of each, in nats."""
    size, stream = len(corpus.words), corpus.stream
    around = sp.csr_array((size, size), dtype=np.float64)
    ends = np.cumsum(stream < 0)
    for offset in range(1, WINDOW + 1):
        left, right = stream[:-offset], stream[offset:]
        same = (left >= 0) & (right >= 0) & (ends[:-offset] == ends[offset:])
        pairs = (np.ones(int(same.sum())), (left[same], right[same]))
        part = sp.coo_array(pairs, shape=(size, size)).tocsr()
        around = around + part + part.T
    totals = around.sum(axis=1)
    shares = around.sum(axis=0) / around.sum()
    rows = around.tocoo()
    own = rows.data / totals[rows.row]
    terms = own * np.log(own / shares[rows.col])
    return np.bincount(rows.row, terms, size)


@numba.njit(nogil=True, fastmath=True)
def train(
    stream: NDArray[np.int32], drawn: NDArray[np.int32], words: NDArray[np.float32],
    contexts: NDArray[np.float32], epochs: int, draw: np.random.Generator,
) -> None:  # fmt: skip
    """Skip-gram with negative sampling (Mikolov et al. 2013), in place.

    ``drawn`` holds words as often as they are to be drawn as negatives.
    """
    dim, total, done = words.shape[1], len(stream) * epochs, 0
    step = np.empty(dim, np.float32)
    for _ in range(epochs):
        for place in range(len(stream)):
            done += 1
            word = stream[place]
            if word < 0:
                continue
            rate = np.float32(RATE * max(1e-4, 1 - done / total))
            reach = draw.integers(1, WINDOW + 1)
            for direction in (-1, 1):
                for offset in range(1, reach + 1):
                    other = place + direction * offset
                    if other < 0 or other >= len(stream) or stream[other] < 0:
                        break
                    step[:] = 0
                    for sample in range(NEGATIVES + 1):
                        target = stream[other]
                        if sample:
                            target = drawn[draw.integers(0, len(drawn))]
                        dot = np.float32(0)
                        for k in range(dim):
                            dot += words[word, k] * contexts[target, k]
                        goal = np.float32(1 if sample == 0 else 0)
                        slope = rate * (goal - np.float32(1 / (1 + np.exp(-dot))))
                        for k in range(dim):
                            step[k] += slope * contexts[target, k]
                            contexts[target, k] += slope * words[word, k]
                    for k in range(dim):
                        words[word, k] += step[k]


def skip_gram(
    corpus: Corpus, dim: int, epochs: int, seed: int = 13, power: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return word and context vectors; negatives are drawn by ``counts ** power``."""
    rng = np.random.default_rng(seed)
    size = len(corpus.words)
    words = ((rng.random((size, dim)) - 0.5) / dim).astype(np.float32)
    contexts = np.zeros((size, dim), np.float32)
    shares = corpus.counts.astype(np.float64) ** power
    times = np.maximum(1, np.round(shares / shares.sum() * 1_000_000)).astype(np.int64)
    train(corpus.stream, np.repeat(np.arange(size, dtype=np.int32), times), words, contexts,
          epochs, rng)  # fmt: skip
    return words, contexts


def published(model: str, corpus: Corpus) -> NDArray[np.float32]:
    """Return the vectors of the words in a folder of static embeddings, zeros where it has none."""
    from sluice.encoders import StaticEncoder

    encoder = StaticEncoder.from_pretrained(model)
    rows = encoder.tokenizer.get_vocab()
    table = encoder.module.get_submodule("embedding").get_parameter("weight").detach().numpy()
    vectors = np.zeros((len(corpus.words), table.shape[1]), np.float32)
    for place, word in enumerate(corpus.words):
        if word in rows:
            vectors[place] = table[rows[word]]
    return vectors


def correlations(corpus: Corpus, vectors: Any, contexts: Any, least: int) -> dict[str, float]:
    """Return Spearman's correlation of weights with the divergence, over words of that count."""
    from scipy.stats import spearmanr

    from sluice.encoders.lexical.information_gain import information_gain

    often = corpus.counts >= least
    truth = divergences(corpus)[often]
    shares = corpus.counts / corpus.counts.sum()
    weights = {
        "squared length": information_gain(vectors),
        **(
            {}
            if contexts is None
            else {"quadratic form": information_gain(vectors, shares, contexts)}
        ),
        "log 1/p": -np.log(shares),
    }
    return {name: float(spearmanr(each[often], truth)[0]) for name, each in weights.items()}


def weighed(asked: str, corpus: Corpus, lengths: NDArray[np.float64], documents: int,
            frequencies: dict[str, int]) -> dict[str, float]:  # fmt: skip
    """Return BM25's nDCG@10 on the test queries of a dataset by the weights of its query terms."""
    from sluice import BM25Encoder, Retriever, evaluate, load_dataset
    from sluice.encoders.lexical.analyzer import analyzer
    from sluice.retrieval.retrievers.candidate_lists import asked as queries_of

    data, analyse = load_dataset(asked, "test"), analyzer("en")
    retriever = Retriever.build(BM25Encoder(), data.corpus)
    queries = queries_of(data, retriever)
    names = [name for name, text in queries.items() if text.strip()]
    plain = retriever.encoder.encode_queries([queries[name] for name in names]).tocsr()
    columns = retriever.encoder.vocabulary
    of_length: dict[int, list[float]] = {}
    for word, length in zip(corpus.words, lengths, strict=True):
        for stem in analyse(word):
            if stem in columns:
                of_length.setdefault(columns[stem], []).append(float(length))
    usual = float(np.quantile(lengths, 0.75))  # of a word that the others never had
    tables = {
        "length": np.array([np.mean(of_length.get(c, [usual])) for c in range(len(columns))]),
        "idf of the others": np.array(
            [np.log1p((documents - f + 0.5) / (f + 0.5))
             for f in (frequencies.get(stem, 0) for stem in columns)]
        ),
    }  # fmt: skip
    found = {}
    for name, table in {"idf": None, "none": np.ones(len(columns)), **tables}.items():
        vectors = plain.copy()
        if table is not None:
            vectors.data = table[vectors.indices].astype(np.float32)
        run = retriever.state.nearest(queries, names, vectors, 100)
        found[name] = evaluate(run, data.qrels, ["nDCG@10"]).mean["nDCG@10"]
    return found


def main() -> None:
    from sluice.encoders.lexical.analyzer import analyzer
    from sluice.encoders.lexical.information_gain import information_gain
    from sluice.retrieval import load_dataset

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    usual = ["nfcorpus", "feedbackqa", "cranfield", "vaswani", "msmarco-dl-pool"]
    parser.add_argument("datasets", nargs="*", default=usual, metavar="DATASET")
    parser.add_argument("--asked", default="scifact")
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--vectors", metavar="MODEL", help="Published ones, none are trained.")
    parser.add_argument("--least", type=int, default=1_000, help="Count of the words compared.")
    asked = parser.parse_args()
    if asked.asked in asked.datasets:
        parser.error(f"--asked {asked.asked}: is among the corpora that vectors are trained on")
    texts = [each.full_text for name in asked.datasets for each in load_dataset(name, None).corpus]
    corpus = read(texts, 5)
    often = int((corpus.counts >= asked.least).sum())
    print(f"{len(texts):,} texts, {int(corpus.counts.sum()):,} words, {len(corpus.words):,} "
          f"distinct, {often:,} of {asked.least:,} and more", flush=True)  # fmt: skip
    if asked.vectors:
        vectors, contexts = published(asked.vectors, corpus), None  # no context vectors are there
        print(f"{(vectors.any(axis=1)).sum():,} of the words have vectors", flush=True)
    else:
        start = time.process_time()
        vectors, contexts = skip_gram(corpus, asked.dim, asked.epochs)
        print(f"trained in {time.process_time() - start:.0f} s of processor time", flush=True)
    for name, value in correlations(corpus, vectors, contexts, asked.least).items():
        print(f"Spearman with the divergence: {name:<16} {value:.3f}", flush=True)
    analyse = analyzer("en")
    frequencies = Counter(stem for text in texts for stem in set(analyse(text)))
    lengths = information_gain(vectors)
    for name, value in weighed(asked.asked, corpus, lengths, len(texts), dict(frequencies)).items():
        print(f"{asked.asked} nDCG@10 of BM25, query terms by {name:<18} {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
