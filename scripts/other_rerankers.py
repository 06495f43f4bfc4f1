#!/usr/bin/env python
"""Light rerankers against their first stage, trained alike: a table in Markdown.

    SLUICE_DATA=FOLDER scripts/other_rerankers.py OUTPUT [--dataset feedbackqa] [--only NAME ...]
                       [--seeds 13] [--split dev] [--queries N] [--depth 100] [--only-write]

Every row of ``ROWS`` is trained from one start with the same groups: a positive and seven of BM25's
first hundred documents; those of ``READERS``, whose whole transformer learns, for a quarter of the
steps. Rows of ``PARTS`` join an untrained cross-encoder's scores (its similarity
head) of a document's parts, and share a file of these. Then the first ``--queries`` of the split
are searched by BM25, and the row reorders the first ``--depth``: alone, and averaged with BM25's
score. What is made already is not made again; ``--only-write`` makes nothing and prints what is
there. Milliseconds are processor time of one query's candidates, for a hundred of them, texts
included, the median of twenty.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import BM25, MODEL, options, trainer

LENGTHS = {"query_length": 32, "document_length": 128}
NDCG, RR = "nDCG@10", "RR@10"
# What a row has beside the start: its encoder's keys and, under ``train``, those of its training.
KINDS = ("knrm", "conv_knrm", "drmm", "match_pyramid", "pacrr", "duet")
ROWS: Mapping[str, Mapping[str, Any]] = {
    **{f"{kind}, table": {"type": kind, "vectors": "table"} for kind in KINDS},
    **{f"{kind}, states": {"type": kind, "vectors": "states"} for kind in KINDS},
    "knrm, table trained": {"type": "knrm", "vectors": "table", "train_vectors": True},
}
READERS: Mapping[str, Mapping[str, Any]] = {
    "cross, trained": {"type": "cross_encoder", "head": "similarity", "max_length": 160},
    **{
        f"pyramid, {lower} of 6 layers apart": {
            "type": "pyramid", "head": "similarity", "lower_layers": lower,
            "query_length": 32, "title_tokens": 16, "body_length": 112,
        } for lower in (3, 5)
    },
}  # fmt: skip
TRAINED = {**ROWS, **READERS}
# The settings of ``evidence``; None reads whole documents. Threshold and temperature are those of a
# logistic regression of the untrained head's scores on BM25's first 8 for 40 train queries.
JOINED = {"temperature": 1.5, "threshold": 20.0}
PARTS: Mapping[str, Mapping[str, Any] | None] = {
    "cross": None,
    "evidence, fields": {**JOINED, "by": "fields"},
    "evidence, sentences": {**JOINED},
    "evidence, sentences, sharpness 4": {**JOINED, "sharpness": 4.0},
    "evidence, sentences, MaxP": {**JOINED, "sharpness": 1.0e6},
}
TIMED = 20  # queries
Results = Mapping[str, Mapping[int, Mapping[str, Any]]]  # row -> seed -> what was measured


def recipe(row: str, seed: int, asked: argparse.Namespace, output: Path) -> dict[str, Any]:
    """Return the YAML of one training run."""
    encoder, steps, rate = {**LENGTHS, **TRAINED[row]}, asked.steps, 5.0e-3
    if row in READERS:
        encoder, steps, rate = dict(READERS[row]), asked.steps // 4, 1.5e-4
    elif ROWS[row].get("train_vectors"):
        rate = 1.0e-3
    return {
        "dataset": asked.dataset, "output": str(output), "seed": seed,
        "encoder": {"model": asked.model, "seed": seed, **encoder},
        "loss": {"type": "localized_softmax"},
        "negatives": {"type": "mined", "retriever": BM25, "per_query": 7, "sampling": "random"},
        "trainer": trainer(
            steps, 16, rate, bf16=False, lr_scheduler_type="linear", logging_steps=50
        ),
    }  # fmt: skip


def joined(row: str, home: Path, model: str) -> Any:
    """Return the scorer of a row of ``PARTS``."""
    from sluice.encoders import CrossEncoder
    from sluice.retrieval.stages.rerankers.evidence import Evidence
    from sluice.retrieval.stages.rerankers.score_cache import cached

    length = sum(LENGTHS.values())
    cross = CrossEncoder.from_pretrained(model, head="similarity", max_length=length)
    settings = PARTS[row]
    kept = cached(cross, file=str(home / "parts.sqlite"))
    return kept if settings is None else Evidence(kept, **settings)


def measured(scorer: Any, asked: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Return each query's values before and after, and what a hundred candidates cost."""
    from sluice import BM25Encoder, Rerank, Retriever, evaluate, load_dataset
    from sluice.retrieval.pipelines.scorer import ScorerHooks
    from sluice.retrieval.stages.rerankers.score_cache import cached

    dataset = load_dataset(asked.dataset, asked.split)
    first = Retriever.build(BM25Encoder(), dataset.corpus)
    queries = {query: dataset.queries[query] for query in list(dataset.qrels)[: asked.queries]}
    qrels = {query: dataset.qrels[query] for query in queries}
    run = first.run(queries, k=asked.depth)
    found: dict[str, Any] = {
        "ms": hundred(Rerank(scorer, asked.depth, documents=first.store), run, queries)
    }
    lists = ScorerHooks(scorer).scores_lists  # whose parts are kept
    kept = scorer if lists else cached(scorer, file=str(home / "parts.sqlite"))
    after = {
        "alone": Rerank(kept, asked.depth, documents=first.store),
        "averaged": Rerank(kept, asked.depth, documents=first.store, interpolate=0.5),
    }
    for name, ranked in {
        "first": run,
        **{n: s.run(queries, run) for n, s in after.items()},
    }.items():
        scores = evaluate(ranked, qrels, [NDCG, RR])
        found[name] = {measure: dict(scores.per_query[measure]) for measure in (NDCG, RR)}
    return found


def hundred(stage: Any, run: Any, queries: Mapping[str, str]) -> float:
    """Return the median milliseconds of processor time of reranking a hundred candidates."""
    from sluice.retrieval import Run

    seconds = []
    for query in [query for query in queries if len(run[query])][:TIMED]:
        own = Run({query: run[query]})
        start = time.process_time()
        stage.run({query: queries[query]}, own)
        seconds.append((time.process_time() - start) * 100 / len(run[query]))
    return 1_000 * statistics.median(seconds)


def make(row: str, seed: int, asked: argparse.Namespace) -> None:
    """Train and measure one row with one seed, unless it is there."""
    from sluice.encoders.model_files.registry import open_encoder
    from sluice.retrieval import train

    home = asked.output / Path(asked.dataset).name
    name = row.replace(", ", "-").replace(" ", "-")
    done = home / f"{name}.{seed}.{asked.split}.json"
    if done.exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    if row in PARTS:
        scorer = joined(row, home, asked.model)
    else:
        scorer = open_encoder(train(recipe(row, seed, asked, home / f"{name}-{seed}")))
    seconds = time.monotonic() - start
    facts = {"row": row, "seed": seed, "seconds": seconds, **measured(scorer, asked, home)}
    done.write_text(json.dumps(facts), encoding="utf-8")


def results(folder: Path, split: str) -> dict[str, dict[int, Any]]:
    """Read what was measured, rows in the order above."""
    found: dict[str, dict[int, Any]] = {row: {} for row in (*TRAINED, *PARTS)}
    for path in sorted(folder.glob(f"*.{split}.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        found[facts["row"]][facts["seed"]] = facts
    return {row: by_seed for row, by_seed in found.items() if by_seed}


def table(found: Results) -> Iterator[str]:
    """Yield the table: quality, the difference from the first stage, costs."""
    from sluice.retrieval.evaluation.significance import paired_t_test

    yield f"| | {NDCG} | {RR} | averaged with BM25 | over BM25 | ms a hundred | s of training |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for number, (row, by_seed) in enumerate(found.items()):
        means = {
            key: {measure: _by_query(by_seed, key, measure) for measure in (NDCG, RR)}
            for key in ("first", "alone", "averaged")
        }
        if number == 0:
            cells = " | ".join(f"{means['first'][measure].mean():.4f}" for measure in (NDCG, RR))
            yield f"| BM25 | {cells} | | | | |"
        best = means["averaged"][NDCG] - means["first"][NDCG]
        p = paired_t_test(means["averaged"][NDCG], means["first"][NDCG])
        costs = [min(each[key] for each in by_seed.values()) for key in ("ms", "seconds")]
        yield (
            f"| {row} | {means['alone'][NDCG].mean():.4f} | {means['alone'][RR].mean():.4f} | "
            f"{means['averaged'][NDCG].mean():.4f} | {best.mean():+.4f} (p {p:.2g}) | "
            f"{costs[0]:.0f} | {costs[1]:.0f} |"
        )


def _by_query(by_seed: Mapping[int, Mapping[str, Any]], key: str, measure: str) -> Any:
    """Return each query's mean over the seeds."""
    return np.mean([list(each[key][measure].values()) for each in by_seed.values()], axis=0)


def main(words: Sequence[str] | None = None) -> None:
    asked = options(__doc__, {
        "output": (Path, "A folder for models and results."), "--dataset": "feedbackqa",
        "--split": {"choices": ("dev", "test"), "default": "dev"},
        "--only": {"nargs": "+", "choices": [*TRAINED, *PARTS], "default": [*ROWS]},
        "--seeds": [13], "--model": (MODEL, "The start of all rows."), "--steps": 200,
        "--queries": (int, "the first of the split's; all without it"), "--depth": 100,
        "--only-write": False,
    }, words)  # fmt: skip
    if not asked.only_write:
        for seed in asked.seeds:
            for row in asked.only:
                make(row, seed, asked)
    found = results(asked.output / Path(asked.dataset).name, asked.split)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
