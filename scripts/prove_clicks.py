#!/usr/bin/env python
"""How well click models tell relevant documents apart, for users of each kind, on a real corpus.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_clicks.py scifact

Users are simulated on the lists that BM25 finds for train queries: they click a document that is
relevant with .5, another with .2 when they look at it. Printed are, for users of each kind and
each click model, how often a relevant document of a list is labelled above one that is not (ties
count half), and the largest error of the examination of a position.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
from harness import options

from sluice.retrieval import Retriever, load_dataset
from sluice.retrieval.training_data.clicks.log import simulated_log
from sluice.retrieval.training_data.clicks.models import MODELS, Estimate, estimate

PAGE, RELEVANT, OTHER, SATISFIED = 10, 0.5, 0.2, 0.6
EXAMINATION = [1 / place for place in range(1, PAGE + 1)]


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


def main() -> None:
    arguments = options(__doc__, {
        "dataset": str, "--queries": 200, "--pages": 40, "--smoothing": 1.0,
    })  # fmt: skip
    from sluice.encoders import BM25Encoder

    dataset = load_dataset(arguments.dataset, "train")
    queries = dict(list(dataset.queries.items())[: arguments.queries])
    run = Retriever.build(BM25Encoder(), dataset.corpus).run(queries, k=PAGE)
    lists = {query: list(hits) for query, hits in run.to_dict().items() if len(hits) == PAGE}
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
                estimated = estimate([path], model)  # type: ignore[arg-type]
                cells.append(f"{ordered(estimated, relevant, arguments.smoothing):.3f}")
                if users == model == "pbm":
                    error = np.abs(estimated.examination - EXAMINATION).max()
            seconds = time.perf_counter() - start
        print(f"| {users} | " + " | ".join(cells) + f" | {seconds:.1f} |", flush=True)
    print(f"largest error of a propensity, pbm: {error:.3f}; {estimated.counts.rows:,} rows")


if __name__ == "__main__":
    main()
