#!/usr/bin/env python
"""Measure reranking: pairs/s against sentence-transformers, the pipeline's own cost, the cache.

    python scripts/bench_rerank.py --model MODEL --data ../shared/data/nfcorpus
    python scripts/bench_rerank.py --model MODEL --pairs 512 --rounds 7 --json FILE
    python scripts/bench_rerank.py --light ENCODER --data ../shared/data/nfcorpus

Both sides score the same pairs (queries of the collection with BM25's best documents) with the same
weights, one thread, in one process and in turn; a ratio is the median over the rounds of their time
over ours. sentence-transformers runs ``predict`` with its defaults (batches of 32). ``--model`` is
a cross-encoder's folder; without ``--data`` the collection is ``pydocs``.

What a pair costs beside the model and its tokenizer is measured with a model that returns zeros, in
processor time. The pipeline's own cost is that of ``Rerank.run`` with a scorer that returns ones:
1,000 queries of 100 candidates, in microseconds a query, processor time of the best of several
runs. Its ids are drawn from 100,000, so most texts lie outside the processor's cache; ``lists`` has
no texts to find.

With ``--light`` only the rankers over token vectors are measured: milliseconds of processor time of
a query's hundred candidates, their texts cut to 128 tokens, over the states and over the table of
the encoder's embeddings, in turn, the median of the rounds; ``max_sim`` stands beside them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import interleaved, options, ratios, write_record

for _name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np  # noqa: E402  # threads are counted when it loads

from sluice.retrieval import Ranking, Rerank, Retriever, Run, load_dataset  # noqa: E402

SPEED_TARGETS = {"must": 2.0, "stretch": 3.0}
OVERHEAD_TARGET = 50.0  # microseconds a query
PAIR_TARGET = 50.0  # microseconds
LOOKUP_TARGET = 0.5  # seconds for 100,000 pairs


def collection_pairs(data: str, count: int) -> list[tuple[str, str]]:
    """Return ``count`` pairs: queries of the test split, each with BM25's ten best documents."""
    from sluice.encoders import BM25Encoder

    dataset = load_dataset(data, split="test")
    retriever = Retriever.build(BM25Encoder(), dataset.corpus)
    queries = dict(list(dataset.queries.items())[: count // 5 + 10])
    run = retriever.run(queries, k=10)
    pairs = [
        (queries[query], text)
        for query, ranking in run.items()
        for text in retriever.store.texts(ranking.doc_ids)
    ]
    return pairs[:count]


def throughput(model: str, pairs: list[tuple[str, str]], rounds: int) -> dict[str, Any]:
    """Return pairs/s of both sides and the ratio, in float32 and bfloat16."""
    import torch
    from sentence_transformers import CrossEncoder as Theirs

    from sluice.encoders import CrossEncoder

    torch.set_num_threads(1)
    theirs = Theirs(model, device="cpu")
    calls: dict[str, Callable[[], Any]] = {
        "theirs": lambda: theirs.predict(pairs, show_progress_bar=False)
    }
    for kind in ("float32", "bfloat16"):
        ours = CrossEncoder.from_pretrained(
            model, dtype=kind, device="cpu", max_length=theirs.max_seq_length
        )
        calls[kind] = partial(ours.score, pairs)
    expected = calls["theirs"]()
    apart = {kind: float(np.abs(calls[kind]() - expected).max()) for kind in calls}
    found = ratios(interleaved(calls, rounds), "theirs", len(pairs))
    return {"pairs": len(pairs), **{
        kind: {"pairs/s": each.pop("rate"), **each, "largest difference": apart[kind]}
        for kind, each in found.items()
    }}  # fmt: skip


class Ones:
    """A scorer of pairs that costs nothing."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Return ones."""
        return np.ones(len(pairs), np.float32)


class ListsOfOnes:
    """A scorer of lists that costs nothing."""

    def score_lists(self, queries: Any, heads: Mapping[str, Ranking], documents: Any) -> Any:
        """Return ones."""
        return {query: np.ones(len(head), np.float32) for query, head in heads.items()}


class Memory:
    """Texts in a dictionary, the cheapest store there is."""

    def __init__(self, count: int) -> None:
        self._texts = {f"doc{number}": f"text {number}" for number in range(count)}

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the texts."""
        return [self._texts[document] for document in document_ids]


def overhead(rounds: int, queries: int = 1_000, depth: int = 100) -> dict[str, float]:
    """Return microseconds a query of ``Rerank.run`` by what it does, with free scorers."""
    chance = np.random.default_rng(13)
    store, asked = Memory(100_000), {f"q{n}": f"query {n}" for n in range(queries)}
    given = {}
    for query in asked:
        drawn = chance.choice(100_000, depth, replace=False).tolist()
        scores = np.sort(chance.random(depth, np.float32))[::-1]
        given[query] = Ranking([f"doc{number}" for number in drawn], scores)
    run = Run(given)
    wanted = list(dict.fromkeys(doc for ranking in given.values() for doc in ranking.doc_ids))
    stages = {
        "lists": Rerank(ListsOfOnes(), depth), "pairs": Rerank(Ones(), depth, documents=store)
    }  # fmt: skip
    calls: dict[str, Callable[[], Any]] = {
        kind: partial(stage.run, asked, run) for kind, stage in stages.items()
    }
    calls["of which the store"] = lambda: store.texts(wanted)
    seconds = interleaved(calls, rounds, time.process_time)
    return {kind: 1e6 * min(each) / queries for kind, each in seconds.items()}


def pair_overhead(model: str, pairs: list[tuple[str, str]], rounds: int) -> float:
    """Return microseconds a pair of reranking with a cross-encoder, less model and tokenizer."""
    import torch

    from sluice.encoders import CrossEncoder
    from sluice.encoders.transformer import tokens

    encoder = CrossEncoder.from_pretrained(model, device="cpu")
    encoder.output = lambda batch, network: torch.zeros(len(batch.rows))  # type: ignore
    texts = dict.fromkeys(document for _, document in pairs)
    store = Memory(len(texts))
    store._texts = {f"doc{number}": text for number, text in enumerate(texts)}
    names = {text: name for name, text in store._texts.items()}
    asked = {f"q{n}": query for n, query in enumerate(dict.fromkeys(q for q, _ in pairs))}
    given = {
        key: Ranking(heads, np.arange(len(heads), 0, -1, dtype=np.float32))
        for key, query in asked.items()
        for heads in [list(dict.fromkeys(names[text] for q, text in pairs if q == query))]
    }
    stage, run, in_tokenizer = Rerank(encoder, documents=store), Run(given), []
    encode = tokens._encoded

    def timed(*arguments: Any) -> Any:
        start = time.process_time()
        encoded = encode(*arguments)
        in_tokenizer.append(time.process_time() - start)
        return encoded

    tokens._encoded = timed  # type: ignore
    calls = {"run": partial(stage.run, asked, run)}
    seconds = interleaved(calls, rounds, time.process_time)["run"]
    tokens._encoded = encode
    apart = np.subtract(seconds, in_tokenizer[-rounds:])
    return 1e6 * float(np.median(apart)) / sum(map(len, given.values()))


def lookups(rounds: int) -> dict[str, float]:
    """Return seconds for 100,000 cached pairs of 1,000 queries: to put them, and to get them."""
    from sluice.retrieval.stages.rerankers.score_cache import ScoreCache

    chance = np.random.default_rng(13)
    documents = [f"document {number} " + "word " * 200 for number in range(20_000)]
    pairs = [
        (f"query {query}", documents[number])
        for query in range(1_000)
        for number in chance.choice(20_000, 100, replace=False).tolist()
    ]
    scores = chance.standard_normal(len(pairs)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        cache = ScoreCache(Path(folder))
        start = time.perf_counter()
        cache.put("bench", pairs, scores)
        put, get = time.perf_counter() - start, float("inf")
        for _ in range(rounds):
            start = time.perf_counter()
            found = cache.get("bench", pairs)
            get = min(get, time.perf_counter() - start)
        cache.close()
    if not np.array_equal(found, scores):
        raise SystemExit("the cache returned other scores than it was given")
    return {"put": put, "get": get}


def light(model: str, pairs: list[tuple[str, str]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of one query's candidates by ranker and its vectors."""
    import logging

    from sluice.encoders.foundation.build import build
    from sluice.encoders.table import MATCHING
    from sluice.retrieval.stages.rerankers.similarity import MaxSim

    logging.getLogger("sluice").setLevel(logging.ERROR)  # the heads are untrained
    calls: dict[str, Callable[[], Any]] = {
        "max_sim": partial(MaxSim.from_pretrained(model, document_length=128).score, pairs)
    }
    for kind in MATCHING:
        for vectors in ("states", "table"):
            spec = {"type": kind, "model": model, "vectors": vectors, "document_length": 128}
            calls[f"{kind}, {vectors}"] = partial(build(spec, MATCHING, where=kind).score, pairs)
    seconds = interleaved(calls, rounds, time.process_time)
    return {name: 1_000 * statistics.median(each) for name, each in seconds.items()}


def main() -> None:
    chosen = options(__doc__, {
        "--model": (str, "a cross-encoder; without it pairs/s are left out"),
        "--light": ({"metavar": "ENCODER"}, "measure rankers over its tokens alone"),
        "--data": "pydocs", "--pairs": 256, "--rounds": 5, "--json": Path,
    })  # fmt: skip
    if chosen.light:
        query, _ = collection_pairs(chosen.data, 1)[0]
        texts = [text for _, text in collection_pairs(chosen.data, 100)]
        for name, cost in light(chosen.light, [(query, t) for t in texts], chosen.rounds).items():
            print(f"{name:<24} {cost:8.1f} ms a hundred candidates")
        return
    found: dict[str, Any] = {}
    if chosen.model:
        pairs = collection_pairs(chosen.data, chosen.pairs)
        speed = found["throughput"] = throughput(chosen.model, pairs, chosen.rounds)
        for kind in ("theirs", "float32", "bfloat16"):
            each = speed[kind]
            print(
                f"{kind:<10} {each['pairs/s']:8.1f} pairs/s   {each['ratio']:.2f}x "
                f"({each['least']:.2f} to {each['most']:.2f})   largest difference "
                f"{each['largest difference']:.2g}"
            )
        found["pair"] = pair_overhead(chosen.model, pairs, chosen.rounds)
        print(f"beside model and tokenizer {found['pair']:.0f} us/pair   target {PAIR_TARGET:.0f}")
        print(f"targets: {SPEED_TARGETS['must']}x must, {SPEED_TARGETS['stretch']}x stretch")
    found["overhead"] = overhead(3 * chosen.rounds)
    for kind, cost in found["overhead"].items():
        print(f"Rerank.run, {kind:<20} {cost:6.1f} us/query   target below {OVERHEAD_TARGET:.0f}")
    found["lookups"] = lookups(chosen.rounds)
    put, get = found["lookups"]["put"], found["lookups"]["get"]
    print(
        f"cache, 100,000 pairs: put {put:.2f} s, get {get:.2f} s   target get {LOOKUP_TARGET:.1f}"
    )
    write_record(chosen.json, found)


if __name__ == "__main__":
    main()
