#!/usr/bin/env python
"""What a reranker adds to a fitted hybrid, by its start, and how much of that is remembered.

    SLUICE_DATA=FOLDER scripts/prove_cascade.py [COLLECTION] [--starts terms drawn] [--folds 2]
        [--steps 300] [--length 384] [--depth 20] [--seed 13] [--output FOLDER]
        [--generated FILE]

The recipe is that of configs/reference.yaml (of configs/quickstart.yaml for pydocs) with its cross-
encoder exchanged: a small SPLADE's body (``sluice model get splade-tiny``) with each head, random
weights in its shape, all-MiniLM-L6-v2, its two lower layers, the trained dense encoder, and late
interaction from all-MiniLM-L6-v2; ``mse`` learns what all-mpnet-base-v2 (``sluice model get
mpnet``), both trained encoders and BM25 say together, ``mse-lambda`` and ``softmax-lambda`` go on
from there, and from ``splade-sim``, by LambdaLoss. One more has no network: documents that were
relevant in training get one deviation more. Each stands over all tested queries, and over those of
which training had no relevant document.

With ``--generated`` the queries that ``sluice teach generate`` wrote are all there is to train and
to choose by, those of a fifth of their documents to choose: no encoder is trained, the first stage
is BM25 and the zero-shot encoder by equal weights, and each reranker stands there once more with
half of the weight and nothing chosen (``half-``).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from harness import generated_pairs, options, write_beir

from sluice.retrieval import Run, load_dataset
from sluice.retrieval.datasets.dataset import training_splits
from sluice.retrieval.evaluation.comparison import SignificanceTest
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.experiments.unseen import unseen_judgements
from sluice.retrieval.jobs import run

ROOT = Path(__file__).resolve().parent.parent
HYBRID, MEASURE = "hybrid", "nDCG@10"
TINY, MINILM = "splade-tiny", "sentence-transformers/all-MiniLM-L6-v2"
# The encoder of each start; the small ones learn in larger steps, of more documents.
STARTS: dict[str, dict[str, Any]] = {
    "splade": {"model": TINY},
    "splade-sim": {"model": TINY, "head": "similarity"},
    "terms": {"model": TINY, "head": "terms"},
    "drawn": {"model": TINY, "start": {"type": "drawn"}},
    "minilm": {"model": MINILM, "head": "similarity"},
    "minilm2": {"model": MINILM, "head": "similarity", "layers": 2},
    "dense": {"model": "dense-ft", "head": "similarity"},
    "late": {"type": "tokens", "model": MINILM},
    "mse": {"model": TINY, "head": "similarity"},
    "mse-lambda": {"model": "x-mse"},
    "softmax-lambda": {"model": "x-splade-sim"},
}
TEACHERS = ["mpnet", "dense-ft", "splade-ft", "bm25"]
TAUGHT: dict[str, dict[str, Any]] = {
    "mse": {
        "loss": {"type": "margin_mse", "pairs": "all"},
        "teacher": {
            "type": "ensemble", "teachers": TEACHERS, "normalise": "min-max", "scale": 10.0,
        },
    },
    "mse-lambda": {"loss": {"type": "lambda_loss"}},
    "softmax-lambda": {"loss": {"type": "lambda_loss"}},
}  # fmt: skip


def config_of(arguments: Any) -> dict[str, Any]:
    """Return the recipe with a cascade for each start."""
    name = "quickstart" if arguments.collection == "pydocs" else "reference"
    config: dict[str, Any] = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text("utf-8"))
    config |= {"seed": arguments.seed, "output": str(arguments.output), "rerankers": {}}
    if arguments.collection != "pydocs":
        config["dataset"] = arguments.collection
    today = config["train"].pop("cross-ft")
    del config["pipelines"]["cascade"]
    length = arguments.length or (128 if arguments.collection == "pydocs" else 256)
    for name in arguments.starts:
        encoder = {"type": "cross_encoder", "max_length": length, **STARTS[name]}
        reranker = {"type": "cross_encoder", "max_length": length}
        section = {**today, "encoder": encoder}
        if "type" in STARTS[name]:  # late interaction: both texts apart, compared token by token
            encoder["document_length"] = encoder.pop("max_length")
            reranker = {"type": "max_sim"}
            loss = {"type": "info_nce", "temperature": 1.0, "negatives": "own"}
            section = {**section, "loss": loss, "freeze": None, "head_learning_rate": None}
        if encoder["model"] == TINY or name in TAUGHT:
            mined = {**today["negatives"], "per_query": 7, "range_max": 30}
            trainer = {"per_device_train_batch_size": 8, "learning_rate": 3.0e-4}
            section = {
                "encoder": encoder, "loss": today["loss"], "negatives": mined,
                "trainer": {**today["trainer"], **trainer, "max_steps": 300},
                **TAUGHT.get(name, {}),
            }  # fmt: skip
        elif "layers" in encoder:
            section["freeze"] = {"embeddings": True}
        if arguments.steps:
            section["trainer"] = {**section["trainer"], "max_steps": arguments.steps}
        if arguments.folds:
            section["negatives"] = {**section["negatives"], "folds": arguments.folds}
        config["train"][f"x-{name}"] = section
        config["rerankers"][f"r-{name}"] = {
            **reranker, "model": f"x-{name}", "dtype": "bfloat16",
        }  # fmt: skip
        config["pipelines"][f"c-{name}"] = (
            f"{HYBRID} % 50 >> fitted(r-{name}, depth={arguments.depth})"
        )
    config["evaluate"] |= {"baseline": HYBRID, "latency_queries": 20}
    if arguments.generated:
        config["dataset"] = str(generated(arguments))
        untrained(config)
    return config


def generated(arguments: Any) -> Path:
    """Write the collection with the generated queries as its train and dev splits."""
    test = load_dataset(arguments.collection, "test")
    queries = dict(test.queries)
    splits: dict[str, Any] = {"train": {}, "dev": {}, "test": test.qrels}
    for each in generated_pairs(arguments.generated, {d.id: d.text for d in test.corpus}):
        document = each.documents[0].id
        queries[each.query.id] = each.query.text
        split = "train" if zlib.crc32(document.encode()) % 5 else "dev"
        splits[split].setdefault(each.query.id, {})[document] = 1
    folder: Path = arguments.output / "generated"
    write_beir(folder, ((each.id, each.title, each.text) for each in test.corpus), queries, splits)
    return folder


def untrained(config: dict[str, Any]) -> None:
    """Leave the trained encoders out, and add each reranker with half of the weight."""
    for name in ("dense", "splade"):
        del config["train"][f"{name}-ft"], config["retrievers"][name], config["pipelines"][name]
    config["pipelines"][HYBRID] = config["pipelines"].pop(f"{HYBRID}-zero-shot")
    for section in config["train"].values():
        if "teacher" in section:
            section["teacher"] = {
                **section["teacher"], "teachers": ["mpnet", MINILM, "bm25"],
            }  # fmt: skip
    for name in list(config["rerankers"]):
        half = f"{HYBRID} % 50 >> {name}(depth=20, interpolate=0.5)"
        config["pipelines"][f"c-half-{name.removeprefix('r-')}"] = half


def with_bonus(hits: Run, trained: set[str]) -> Run:
    """Add one deviation of a query's first scores to documents that were relevant in training."""
    lists = {}
    for query in hits:
        head = list(hits[query])[:20]
        scores = np.array([score for _, score in head])
        scores = (scores - scores.mean()) / (scores.std() + 1e-9)
        scores += [name in trained for name, _ in head]
        lists[query] = [(head[place][0], float(scores[place])) for place in np.argsort(-scores)]
    return Run(lists)


def main() -> None:
    """Train and evaluate what is missing, and print the table."""
    arguments = options(__doc__, {
        "collection": ({"nargs": "?", "default": "scifact"}, "the collection"),
        "--starts": (
            {"nargs": "+", "choices": list(STARTS), "default": ["splade", "splade-sim", "drawn"]},
            "what the cross-encoders begin from",
        ),
        "--folds": (0, "negatives from first stages that never saw their query, by folds"),
        "--steps": (0, "steps of each training; 0: the recipe's"),
        "--length": (0, "tokens of a pair; 0: 128 for pydocs, 256 for others"),
        "--depth": (20, "documents that are reranked at most"),
        "--seed": (13, "seed of the trainings"),
        "--generated": ({"type": Path}, "queries to learn from, of `sluice teach generate`"),
        "--output": (ROOT / "runs/cascade", "where the experiment is, and stays"),
    })  # fmt: skip
    config = config_of(arguments)
    _, experiment = run(config)
    test = load_dataset(config["dataset"], "test")
    rest = unseen_judgements(experiment.config, set(experiment.nodes()), test)
    train = training_splits(test, arguments.seed)[0]
    trained = {d for grades in train.qrels.values() for d, g in grades.items() if g >= train.level}
    names = [HYBRID, *(name for name in config["pipelines"] if name.startswith("c-"))]
    runs = {name: Run.load(experiment.output / f"runs/{name}.trec.gz") for name in names}
    runs["bonus"] = with_bonus(runs[HYBRID], trained)
    if rest:
        print(f"{len(rest):,} of {len(test.qrels):,} queries have no relevant document of training")
    else:
        print("all queries, or none, have a relevant document of training")
    values = {
        name: evaluate(each, test, [MEASURE]).per_query[MEASURE] for name, each in runs.items()
    }
    for name in runs:
        cells = []
        for queries in (list(values[HYBRID]), list(rest))[: 1 + bool(rest)]:
            own, base = (
                np.array([values[system][query] for query in queries]) for system in (name, HYBRID)
            )
            found = SignificanceTest().compared(name, HYBRID, MEASURE, own, base)
            cells.append(f"{own.mean():.4f} {found.difference:+.4f} (p {found.p:.2g})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
