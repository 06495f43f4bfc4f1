#!/usr/bin/env python
"""How well click models tell relevant documents apart, for users of each kind, on a real corpus.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_clicks.py scifact
    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_clicks.py feedbackqa --train 40

Users are simulated on the lists that BM25 finds for train queries: they click a document that is
relevant with .5, another with .2 when they look at it. Printed are, for users of each kind and
each click model, how often a relevant document of a list is labelled above one that is not (ties
count half), and the largest error of the examination of a position.

With ``--train STEPS`` half of the queries are judged, a ``pyramid`` is trained on these judgements
alone, on grades of all pairs by trees over their clicks (Zou et al. 2021) and on ``pbm``'s
relevance cut into as many of each grade, and reranks BM25's first 20 for the dev queries.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness import BM25, MODEL, options, trainer, write_beir

from sluice.retrieval import Retriever, load_dataset
from sluice.retrieval.training_data.clicks.log import simulated_log
from sluice.retrieval.training_data.clicks.models import MODELS, Estimate, estimate

PAGE, RELEVANT, OTHER, SATISFIED = 10, 0.5, 0.2, 0.6
EXAMINATION = [1 / place for place in range(1, PAGE + 1)]
CHANCES = (OTHER, RELEVANT, 0.8)  # to be clicked when looked at, by grade
DEPTH = 20  # of reranking
Grades = dict[str, dict[str, int]]


def ordered(estimated: Estimate, relevant: set[tuple[str, str]], smoothing: float) -> float:
    """Return the share of pairs of a relevant document and another, in one list, in order."""
    labels = estimated.relevance(smoothing)
    lists: dict[str, tuple[list[float], list[float]]] = {}
    for (query, document), number in estimated.counts.pairs.items():
        sides = lists.setdefault(query, ([], []))
        sides[(query, document) not in relevant].append(labels[number])
    shares = [
        np.mean([(one > other) + (one == other) / 2 for one, other in product(*sides)])
        for sides in lists.values()
        if all(sides)
    ]
    return float(np.mean(shares))


def grades_of(lists: dict[str, list[str]], truth: Any, pages: int, seed: int) -> dict[str, Grades]:
    """Simulate users of the lists, and return the grades that each way makes of their clicks."""
    from sluice.retrieval.training_data.clicks.tree_grades import cut_as_judged, grades_by_trees

    own = {q: {d: truth[q].get(d, 0) for d in names} for q, names in lists.items()}
    judged = {q: own[q] for q in list(own)[::2]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        rows = simulated_log(
            lists, lambda q, d: CHANCES[own[q][d]], pages=pages, model="pbm",
            examination=EXAMINATION, shuffle=1.0, seed=seed,
        )  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        estimated = estimate([path], "pbm")
    pairs, relevance = list(estimated.counts.pairs), estimated.relevance(1.0)
    known = [n for n, (q, _) in enumerate(pairs) if q in judged]
    grades = np.array([own[pairs[n][0]][pairs[n][1]] for n in known])
    made: dict[str, Grades] = {"judged half": judged, "trees": {}, "pbm": {}}
    for name, values in (
        ("trees", grades_by_trees(estimated, judged)),
        ("pbm", cut_as_judged(relevance, relevance[known], grades)),
    ):
        for (q, d), value in zip(pairs, values, strict=True):
            made[name].setdefault(q, {})[d] = int(value)
    return made


def trained(made: Grades, dataset: Any, steps: int, seed: int, folder: Path) -> Any:
    """Train a pyramid on grades, half of whose layers read a document apart."""
    from sluice.encoders.model_files.registry import open_encoder
    from sluice.retrieval import train

    corpus = ((each.id, each.title, each.text) for each in dataset.corpus)
    kept = {q: grades for q, grades in made.items() if any(grades.values())}
    most = max(max(grades.values()) for grades in kept.values())
    write_beir(folder / "data", corpus, {q: dataset.queries[q] for q in kept}, {"train": kept})
    return open_encoder(train({
        "dataset": str(folder / "data"), "output": str(folder / "training"), "seed": seed,
        "encoder": {
            "type": "pyramid", "model": MODEL, "head": "similarity", "lower_layers": 3,
            "query_length": 16, "title_tokens": 16, "body_length": 96,
        },
        "loss": {"type": "anchored_hinge", "grades": most + 1},
        "labels": "grades", "positives": 3,
        "negatives": {"type": "mined", "retriever": BM25, "mode": "naive", "per_query": 4},
        "trainer": trainer(steps, 16, 1.5e-4),
    }), dtype="bfloat16")  # fmt: skip


def learnt(arguments: Any, lists: dict[str, list[str]], dataset: Any) -> None:
    """Print what rerankers that are trained on each kind of grades add to BM25."""
    from sluice.encoders import BM25Encoder
    from sluice.retrieval import Rerank, evaluate
    from sluice.retrieval.datasets.dataset import training_splits
    from sluice.retrieval.evaluation.significance import paired_t_test
    from sluice.retrieval.stages.rerankers.score_cache import cached

    dev = training_splits(load_dataset(arguments.dataset, "test"), 13)[1]
    asked = {query: dev.queries[query] for query in list(dev.qrels)[: arguments.queries]}
    qrels = {query: dev.qrels[query] for query in asked}
    first = Retriever.build(BM25Encoder(), dev.corpus)
    run = first.run(asked, k=DEPTH)
    values: dict[str, list[Any]] = {}

    def note(name: str, found: Any) -> None:
        scores = evaluate(found, qrels, ["nDCG@10"]).per_query["nDCG@10"]
        values.setdefault(name, []).append(list(scores.values()))

    for seed in arguments.seeds:
        note("BM25", run)
        for name, made in grades_of(lists, dataset.qrels, arguments.pages, seed).items():
            right = [made[q][d] == dataset.qrels[q].get(d, 0) for q in made for d in made[q]]
            with tempfile.TemporaryDirectory() as folder:
                scorer = cached(
                    trained(made, dataset, arguments.train, seed, Path(folder)),
                    file=str(Path(folder) / "scores.sqlite"),
                )
                for weight in (0.0, 0.5):
                    stage = Rerank(scorer, DEPTH, documents=first.store, interpolate=weight)
                    note(f"{name}, share of BM25 {weight}", stage.run(asked, run))
            print(f"{name}, seed {seed}: {np.mean(right):.3f} of the grades right", flush=True)
    base = np.mean(values["BM25"], axis=0)
    for name, by_seed in values.items():
        own = np.mean(by_seed, axis=0)
        seeds = ", ".join(f"{np.mean(each):.4f}" for each in by_seed)
        print(f"| {name} | {own.mean():.4f} ({seeds}) | {(own - base).mean():+.4f} "
              f"(p {paired_t_test(own, base):.2g}) |")  # fmt: skip


def main() -> None:
    arguments = options(__doc__, {
        "dataset": str, "--queries": 200, "--pages": 40, "--smoothing": 1.0,
        "--train": (0, "steps of training on the grades"), "--seeds": [13],
    })  # fmt: skip
    from sluice.encoders import BM25Encoder

    dataset = load_dataset(arguments.dataset, "train")
    queries = dict(list(dataset.queries.items())[: arguments.queries])
    run = Retriever.build(BM25Encoder(), dataset.corpus).run(queries, k=PAGE)
    lists = {query: list(hits) for query, hits in run.to_dict().items() if len(hits) == PAGE}
    if arguments.train:
        learnt(arguments, lists, dataset)
        return
    relevant = {(q, d) for q in lists for d, g in dataset.qrels[q].items() if g > 0}
    print("| users | " + " | ".join(MODELS) + " | seconds |")
    for users in ("pbm", "cascade", "dbn"):
        rows = simulated_log(
            lists, lambda q, d: RELEVANT if (q, d) in relevant else OTHER,
            pages=arguments.pages, model=users, examination=EXAMINATION,
            satisfaction=lambda q, d: SATISFIED, shuffle=1.0,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.jsonl"
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)
            cells, start = [], time.perf_counter()
            for model in MODELS:
                estimated = estimate([path], model)
                cells.append(f"{ordered(estimated, relevant, arguments.smoothing):.3f}")
                if users == model == "pbm":
                    error = np.abs(estimated.examination - EXAMINATION).max()
            seconds = time.perf_counter() - start
        print(f"| {users} | " + " | ".join(cells) + f" | {seconds:.1f} |", flush=True)
    print(f"largest error of a propensity, pbm: {error:.3f}; {estimated.counts.rows:,} rows")


if __name__ == "__main__":
    main()
