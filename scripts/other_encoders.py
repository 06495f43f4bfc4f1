#!/usr/bin/env python
"""Other representations against the plain bi-encoder, trained alike: a table in Markdown.

    SLUICE_DATA=FOLDER scripts/other_encoders.py OUTPUT [--dataset scifact] [--only NAME ...]
                       [--seeds 13 14 15] [--only-write]

Every system of ``SYSTEMS`` is trained from one start, for each seed with the same pairs, BM25
negatives, batches and steps; then the test queries are searched by it. ``--split dev`` takes the
dev queries: what a recipe is chosen by. What is made already is not made again, so a killed run
continues; ``--only-write`` makes nothing and prints what is there. Seconds a training step and
milliseconds a query are those of this machine as it was: compare them within one run.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import BM25, MODEL, options, trainer

BASELINE = "dense"
LENGTHS = {"query_length": 32, "document_length": 64}  # in training
SEARCHED = {"document_length": 128, "dtype": "bfloat16"}
PSEUDO = {"type": "pseudo_queries"}


def bi_encoder(
    kind: str = "dense", temperature: float = 0.05, settings: Any = None, **more: Any
) -> dict[str, Any]:
    loss = {"type": "info_nce", "temperature": temperature}
    return {"encoder": {"type": kind, **(settings or {})}, "loss": loss, **more}


def tuned(rate: float, **tuning: Any) -> dict[str, Any]:
    return bi_encoder(tuning=tuning, learning_rate=rate)


# What a system has beside the start and the lengths, as in YAML; ``index`` and ``search`` are its
# retriever's, ``beside`` is a second dataset that it is trained on in half of the steps or so,
# ``learning_rate`` is the trainer's. A ``vocabulary`` of so many concepts is made of the corpus.
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "dense": bi_encoder(),
    "adapter": tuned(1.0e-3, type="adapter", reduction=64),
    "iaa": tuned(1.0e-3, type="iaa"),
    "prefix": tuned(1.0e-2, type="prefix"),
    "gated-prefix": tuned(1.0e-2, type="gated_prefix"),
    "concepts": bi_encoder("concepts", 1.0, {"vocabulary": 2_000}),
    "concepts-more": bi_encoder(
        "concepts", 1.0, {"vocabulary": 2_000, "threshold": 0.15}, head_learning_rate=1.0e-2
    ),
    "fields": bi_encoder(examples={"type": "fields", "query": "title", "positive": "text"}),
    "dense-two": bi_encoder(beside="scifact"),
    "experts": bi_encoder("experts", beside="scifact"),  # one for each dataset
    "experts-gate": bi_encoder("experts", settings={"experts": 2}, beside="scifact"),
    # 20 cosines at the start, as above
    "gaussian": bi_encoder("gaussian", 1.0, head_learning_rate=1.0e-3),
    "gaussian-pooled": bi_encoder(
        "gaussian", 1.0, {"variance_token": ""}, head_learning_rate=1.0e-3
    ),
    "hypencoder": bi_encoder("hypencoder", 1.0, head_learning_rate=1.0e-3),
    "hypencoder-product": bi_encoder("hypencoder", settings={"hidden_layers": 1, "product": True}),
    "pseudo-queries": bi_encoder("pseudo_queries", 1.0, {"centroids": 8}, index=PSEUDO),
    "pseudo-queries-soft": bi_encoder(
        "pseudo_queries", 0.25, {"centroids": 8, "sharpness": 5.0}, index=PSEUDO
    ),
    "pseudo-queries-4": bi_encoder("pseudo_queries", 1.0, {"centroids": 4}, index=PSEUDO),
}
NDCG, RECALL = "nDCG@10", "R@100"
FACTORS = (1, 2, 4)  # candidates of a first step for each hit
WALKED = 100  # queries that walks through a graph are measured by


def recipe(system: str, seed: int, asked: argparse.Namespace, output: Path) -> dict[str, Any]:
    """Return the YAML of one training run."""
    own = {
        key: value for key, value in SYSTEMS[system].items()
        if key not in ("index", "search", "beside", "learning_rate")
    }  # fmt: skip
    encoder, on = dict(own["encoder"]), {"dataset": asked.dataset}
    if "beside" in SYSTEMS[system]:
        from sluice.retrieval.experiments.training.parts import names_of

        datasets = [asked.dataset, SYSTEMS[system]["beside"]]
        on = {"datasets": datasets}
        if encoder["type"] == "experts":
            encoder.setdefault("experts", names_of(datasets))
    if "vocabulary" in encoder:
        encoder["vocabulary"] = str(concepts(asked, encoder["vocabulary"]))
    return {
        **on, "output": str(output), "seed": seed,
        "negatives": {"type": "mined", "retriever": BM25, "per_query": 1, "sampling": "random"},
        "trainer": trainer(asked.steps, rate=SYSTEMS[system].get("learning_rate", 5.0e-5)),
        **own, "encoder": {"model": asked.model, **LENGTHS, **encoder},
    }  # fmt: skip


def concepts(asked: argparse.Namespace, count: int) -> Path:
    """Write a list of concepts: words that many documents have, and at most one in ten."""
    from sluice.retrieval import load_dataset

    texts = [document.full_text for document in load_dataset(asked.dataset, asked.split).corpus]
    counts = Counter(word for text in texts for word in set(re.findall("[a-z]{4,}", text.lower())))
    usual = [word for word, held in counts.most_common() if held <= len(texts) / 10]
    file = home_of(asked) / f"concepts-{count}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{word}\n" for word in usual[:count]), encoding="utf-8")
    return file


def measured(system: str, dataset: Any, folder: Path) -> dict[str, Any]:
    """Return each query's values, what a document and a query cost, and how unsure queries are."""
    from sluice.encoders.encoder import hooks_of
    from sluice.encoders.foundation.build import build
    from sluice.encoders.model_files.registry import open_encoder
    from sluice.indexing.table import INDEXES
    from sluice.retrieval import Retriever, evaluate
    from sluice.retrieval.retrievers.measurements import measure_latency

    encoder = open_encoder(folder / "model", **SEARCHED)
    if hooks_of(encoder).kind == "experts" and encoder.mixture.names:
        encoder = encoder.alone(encoder.mixture.names[0])
    spec = SYSTEMS[system].get("index")
    index = None if spec is None else build(spec, INDEXES, where="index")
    start = time.monotonic()
    retriever = Retriever.build(encoder, dataset.corpus, index=index, queries=dataset.queries)
    encoding = time.monotonic() - start
    asked = {query: dataset.queries[query] for query in dataset.qrels}
    run = retriever.run(asked, k=100)
    scores = evaluate(run, dataset.qrels, [NDCG, RECALL])
    latency = measure_latency(retriever, asked, sample=50)
    found = {
        NDCG: dict(scores.per_query[NDCG]), RECALL: dict(scores.per_query[RECALL]),
        "bytes": retriever.index.size_bytes / len(retriever), "encoding": encoding,
        "ms": latency.p50 if latency else None,
    }  # fmt: skip
    unsure = hooks_of(encoder).uncertainty
    if unsure is not None:
        values = unsure(encoder.encode_queries(list(asked.values())))
        found["uncertainty"] = dict(zip(asked, values.tolist(), strict=True))
    if hooks_of(encoder).similarity == "q_net":
        found["walks"] = walks(encoder, retriever, list(asked.values())[:WALKED])
    if hooks_of(encoder).similarity == "attention":
        found["first steps"] = first_steps(retriever.index, encoder, list(asked.values()))
    # what any system has to predict a query by: how far its first score is above the second
    found["margin"] = {query: _margin(run[query].scores) for query in asked}
    return found


def walks(encoder: Any, retriever: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what walks through a graph find of the exhaustive ten best, and what they score."""
    from sluice.indexing import GraphIndex
    from sluice.indexing.recall import mean_share

    queries = encoder.encode_queries(texts)
    vectors = retriever.index.documents(np.arange(retriever.index.rows))
    made = []
    for neighbours in (16, 32, 100):
        index = GraphIndex(neighbours=neighbours)
        index.add(vectors)
        index.link()
        exact = index.search(queries, 10, params={"mode": "exhaustive"})
        for entries, candidates in ((None, 50), (None, None), (64, None), (64, 4)):
            given = {"entries": entries, "candidates": candidates}
            own = {name: count for name, count in given.items() if count is not None}
            start = time.perf_counter()
            walked = index.search_counted(queries, 10, **own)
            seconds = (time.perf_counter() - start) / len(texts)
            settings = index.settings.changed(own)
            made.append({
                "neighbours": neighbours, "entries": settings.entry_count(index.rows),
                "candidates": settings.candidate_count(index.rows), "documents": index.rows,
                "recall": mean_share(walked.hits, exact, 10), "ms": 1_000 * seconds,
                "visited": float(walked.visited.mean()) / index.rows,
            })  # fmt: skip
    return made


def first_steps(index: Any, encoder: Any, texts: Sequence[str]) -> dict[str, float]:
    """Return the share of the best 100 by attention that a first step leaves, by its factor."""
    from sluice.indexing.recall import mean_share

    queries = encoder.encode_queries(texts)
    exact = index.search(queries, 100, params={"mode": "exhaustive"})
    return {
        str(factor): mean_share(index.search(queries, 100, params={"factor": factor}), exact, 100)
        for factor in FACTORS
    }


def _margin(scores: Any) -> float:
    from sluice.retrieval.runs.run import Ranking
    from sluice.retrieval.stages.confidence_exit import ConfidenceExit

    return ConfidenceExit(2.0).confidence(Ranking([str(n) for n in range(len(scores))], scores))


def home_of(asked: argparse.Namespace) -> Path:
    """Return the folder of a dataset's models and results."""
    home: Path = asked.output / Path(asked.dataset).name
    return home


def make(system: str, seed: int, asked: argparse.Namespace) -> None:
    """Train and measure one system with one seed, unless it is there."""
    from sluice.retrieval import load_dataset, train

    home = home_of(asked)
    done = home / f"{system}.{seed}.{asked.split}.json"
    if done.exists():
        return
    work = home / f"{system}-{seed}"
    train(recipe(system, seed, asked, work))
    found = measured(system, load_dataset(asked.dataset, asked.split), work)
    lines = (work / "training" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found["step"] = step_seconds([json.loads(line) for line in lines])
    done.write_text(json.dumps(found), encoding="utf-8")


def step_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean seconds of a step, from the last of the lines that training logged."""
    return float(lines[-1]["train_runtime"] / lines[-1]["step"])


Results = Mapping[str, Mapping[int, Mapping[str, Any]]]  # system -> seed -> what was measured


def results(folder: Path, split: str) -> dict[str, dict[int, Any]]:
    """Read what was measured, systems in the order of ``SYSTEMS``."""
    found: dict[str, dict[int, Any]] = {}
    for system in SYSTEMS:
        for path in sorted(folder.glob(f"{system}.*.{split}.json")):
            seed = int(path.name.removeprefix(f"{system}.").partition(".")[0])
            found.setdefault(system, {})[seed] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(found: Results) -> Iterator[str]:
    """Yield the table: quality, the difference from the plain bi-encoder, costs."""
    from sluice.retrieval.evaluation.significance import paired_t_test

    yield f"| | {NDCG} | {RECALL} | over {BASELINE} | bytes a document | ms a query | s a step |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    base = found.get(BASELINE, {})
    for system, by_seed in found.items():
        cells = [_spread([np.mean(list(each[m].values())) for each in by_seed.values()])
                 for m in (NDCG, RECALL)]  # fmt: skip
        seeds = sorted(set(base) & set(by_seed))
        over = "-"
        if system != BASELINE and seeds:
            ours, theirs = (_by_query(side, seeds) for side in (by_seed, base))
            over = f"{(ours - theirs).mean():+.4f} (p {paired_t_test(ours, theirs):.2g})"
        costs = {key: [each[key] for each in by_seed.values()] for key in ("bytes", "ms", "step")}
        yield (
            f"| {system} | {cells[0]} | {cells[1]} | {over} | {np.mean(costs['bytes']):,.0f} | "
            f"{min(costs['ms']):.1f} | {min(costs['step']):.2f} |"
        )


def predictors(found: Results) -> Iterator[str]:
    """Yield how well what is known before judgements predicts a query's nDCG@10 (Spearman)."""
    from scipy.stats import spearmanr

    for system, by_seed in found.items():
        for name, sign in (("uncertainty", -1), ("margin", 1)):
            rows = [each for each in by_seed.values() if name in each]
            if not rows:
                continue
            values = [
                spearmanr([sign * each[name][q] for q in each[NDCG]], list(each[NDCG].values()))
                for each in rows
            ]
            shown = ", ".join(f"{v.statistic:+.3f} (p {v.pvalue:.2g})" for v in values)
            yield f"- {system}, {'-' * (sign < 0)}{name} with {NDCG}: {shown}"


def walked(found: Results) -> Iterator[str]:
    """Yield what walks through a graph find of the exhaustive best, means over seeds."""
    for system, by_seed in found.items():
        for rows in zip(*(r["walks"] for r in by_seed.values() if "walks" in r), strict=True):
            recall, visited, ms = (np.mean([r[key] for r in rows]) for key in
                                   ("recall", "visited", "ms"))  # fmt: skip
            first = rows[0]
            yield (
                f"- {system}, {first['neighbours']} neighbours, {first['entries']} entries, "
                f"{first['candidates']} candidates: recall@10 {recall:.3f}, {visited:.1%} of "
                f"{first['documents']:,} documents scored, {ms:.1f} ms a query"
            )


def stepped(found: Results) -> Iterator[str]:
    """Yield what first steps find of the best by attention, means over seeds."""
    for system, by_seed in found.items():
        rows = [row["first steps"] for row in by_seed.values() if "first steps" in row]
        if rows:
            means = {factor: np.mean([row[factor] for row in rows]) for factor in rows[0]}
            shares = ", ".join(f"{mean:.3f} at {factor} x" for factor, mean in means.items())
            yield f"- {system}, recall@100 of the first step: {shares}"


def _spread(values: Sequence[Any]) -> str:
    return f"{np.mean(values):.4f} ± {(max(values) - min(values)) / 2:.4f}"


def _by_query(by_seed: Mapping[int, Mapping[str, Any]], seeds: Sequence[int]) -> Any:
    """Return each query's mean over the seeds."""
    return np.mean([list(by_seed[seed][NDCG].values()) for seed in seeds], axis=0)


def main() -> None:
    asked = options(__doc__, {
        "output": (Path, "A folder for models and results."), "--dataset": "scifact",
        "--split": {"choices": ("test", "dev"), "default": "test"},
        "--only": {"nargs": "+", "choices": list(SYSTEMS), "default": list(SYSTEMS)},
        "--seeds": [13, 14, 15], "--model": (MODEL, "The start of all systems."), "--steps": 40,
        "--only-write": False,
    })  # fmt: skip
    if not asked.only_write:
        for seed in asked.seeds:
            for system in asked.only:
                make(system, seed, asked)
    found = results(home_of(asked), asked.split)
    print("\n".join([*table(found), "", *predictors(found), *walked(found), *stepped(found)]))


if __name__ == "__main__":
    main()
