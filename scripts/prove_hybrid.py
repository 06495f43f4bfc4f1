#!/usr/bin/env python
"""The recipe configs/production-hybrid.yaml on a real collection whose users are simulated.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_hybrid.py feedbackqa --seed 13

A catalogue with fields, queries and judgements of dev and test are written as a shop has them, and
a log instead of the train judgements: users see BM25's first ten documents for train queries, look
at position k with 1 / k, and click a relevant document with .6, another with .1. `sluice run` then
does the whole recipe. With --variants the encoder is trained in other ways beside it: by clicks as
they are (small-counts), with fewer kinds of negatives, and without the projection (whole). After
that a tenth of the catalogue is deleted and added again by `sluice delete` and `sluice add`, and
the last pipeline is scored once more. Everything goes through the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from harness import options

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "production-hybrid.yaml"
PAGE, RELEVANT, OTHER = 10, 0.6, 0.1
VARIANTS: dict[str, dict[str, Any]] = {  # what differs from the recipe's encoder
    "small-counts": {"model": "counts"},
    "small-in-batch": {"per_query": 0, "mined": False},
    "small-offline": {"mined": False},
    "small-mined": {"per_query": 0},
    "whole": {"projection": False},
}


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def make_files(folder: Path, asked: argparse.Namespace) -> None:
    """Write catalogue.jsonl, queries.jsonl, dev.tsv, test.tsv and clicks.jsonl."""
    from sluice import BM25Encoder, Retriever, load_dataset
    from sluice.retrieval.training_data.clicks.log import simulated_log

    data = {split: load_dataset(asked.dataset, split) for split in ("train", "dev", "test")}
    documents = list(data["train"].corpus)
    draw = random.Random(asked.seed)
    draw.shuffle(documents)
    documents = documents[: asked.documents]
    known = {document.id for document in documents}
    write_lines(folder / "catalogue.jsonl", map(row_of, documents))
    texts: dict[str, str] = {}
    judged: dict[str, dict[str, dict[str, int]]] = {}
    for split, most in (("train", asked.train), ("dev", asked.dev), ("test", asked.test)):
        judged[split] = {}
        for query in draw.sample(list(data[split].queries), len(data[split].queries)):
            grades = {doc: g for doc, g in data[split].qrels[query].items() if doc in known}
            if len(judged[split]) < most and any(grade > 0 for grade in grades.values()):
                judged[split][query] = grades
        texts |= {query: data[split].queries[query] for query in judged[split]}
    write_lines(folder / "queries.jsonl", ({"id": q, "query": t} for q, t in texts.items()))
    for split in ("dev", "test"):
        rows = (f"{q}\t{d}\t{g}\n" for q, row in judged[split].items() for d, g in row.items())
        (folder / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    asking = {query: texts[query] for query in judged["train"]}
    run = Retriever.build(BM25Encoder(), documents).run(asking, k=PAGE).to_dict()
    lists = {query: list(hits) for query, hits in run.items()}
    relevant = {(q, d) for q in lists for d, grade in judged["train"][q].items() if grade > 0}
    rows = simulated_log(
        lists, lambda q, d: RELEVANT if (q, d) in relevant else OTHER, pages=asked.pages,
        examination=[1 / place for place in range(1, PAGE + 1)], shuffle=2.0, seed=asked.seed,
    )  # fmt: skip
    write_lines(folder / "clicks.jsonl", rows)


def row_of(document: Any) -> dict[str, str]:
    """Return a row of the catalogue; the category is what its id begins with."""
    category = document.id.rpartition("-")[0]
    row = {"id": document.id, "title": document.title, "text": document.text}
    return {**row, "category": category}


def varied(
    small: Mapping[str, Any], *, model: str = "pbm", per_query: int = 1, mined: bool = True,
    projection: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Return the training of the recipe's encoder with other clicks, negatives or vectors."""
    training = {**small, "examples": {**small["examples"], "model": model, "per_query": per_query}}
    if not mined:
        del training["negatives"]
    if not projection:
        training["encoder"] = {k: v for k, v in small["encoder"].items() if k != "projection"}
    return training


def recipe(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe with the variants of its encoder beside it."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["seed"] = asked.seed
    config["evaluate"] |= {"report": False}
    small = config["train"]["small"]
    small["trainer"] |= {"max_steps": asked.steps, "per_device_train_batch_size": asked.batch}
    cross = config["train"]["cross"]["trainer"]
    cross |= {"max_steps": asked.cross_steps, "per_device_train_batch_size": asked.batch // 2}
    config["pipelines"]["reranked"] = f"merged >> fitted(cross, depth={asked.depth})"
    for name, changes in VARIANTS.items() if asked.variants else ():
        config["train"][name] = varied(small, **changes)
        encoder = {**config["retrievers"]["small"]["encoder"], "model": name}
        config["retrievers"][name] = {**config["retrievers"]["small"], "encoder": encoder}
    exact = {**config["retrievers"]["small"], "index": {"type": "flat"}}
    config["retrievers"]["small-exact"] = exact
    names = [*(name for name in VARIANTS if asked.variants), "small-exact"]
    ours = config["pipelines"]
    first = {name: ours[name] for name in ("bm25", "plain")}
    config["pipelines"] = {**first, **{name: name for name in names}, **ours}
    return config


def sluice(folder: Path, *words: str) -> str:
    """Run a command in the folder and return what it prints."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "sluice", *words], cwd=folder, check=False, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    print(f"<!-- sluice {' '.join(words)}: {time.perf_counter() - start:.0f} s -->", flush=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def changed(folder: Path, output: str, seed: int) -> str:
    """Delete and add a tenth of the catalogue; return the measures of the last pipeline."""
    rows = [json.loads(line) for line in (folder / "catalogue.jsonl").open(encoding="utf-8")]
    moved = random.Random(seed).sample(rows, len(rows) // 10)
    write_lines(folder / "new.jsonl", moved)
    (folder / "old.txt").write_text("".join(f"{row['id']}\n" for row in moved))
    sluice(folder, "delete", output, "--file", "old.txt")
    sluice(folder, "add", output, "new.jsonl")
    names = {line.split("\t")[0] for line in (folder / "test.tsv").open()}
    queries = [json.loads(line) for line in (folder / "queries.jsonl").open(encoding="utf-8")]
    asked = [{"_id": q["id"], "text": q["query"]} for q in queries if q["id"] in names]
    write_lines(folder / "asked.jsonl", asked)
    pipeline = ["--pipeline", "reranked", "-k", "100"]
    sluice(folder, "search", output, *pipeline, "--queries", "asked.jsonl", "--output", "new.trec")
    return sluice(folder, "score", "new.trec", "test.tsv", "-m", "nDCG@10", "-m", "R@100")


def main() -> None:
    asked = options(__doc__, {
        "dataset": "A dataset with train, dev and test queries.", "--seed": 13,
        "--documents": {"type": int, "default": 10**9}, "--train": (2_000, "Queries in the log."),
        "--dev": 200, "--test": {"type": int, "default": 10**9},
        "--pages": (10, "Pages of each query in the log."), "--steps": 120, "--cross-steps": 80,
        "--batch": 32, "--depth": 20, "--variants": (False, "Train the variants too."),
        "--folder": (Path, "Where the files go, and stay."),
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("SLUICE_CACHE", str(folder / "cache"))
        make_files(folder, asked)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(asked), sort_keys=False))
        print(sluice(folder, "run", "recipe.yaml"))
        print("after a tenth of the catalogue was deleted and added again:")
        print(changed(folder, "runs/production-hybrid", asked.seed))


if __name__ == "__main__":
    main()
