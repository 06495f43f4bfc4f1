"""What a prompt of so many tokens shows: whole documents by rank, or the passages of a budget.

python scripts/prove_budget.py scifact nfcorpus [--queries 100]: BM25's 50 best documents a query;
for each budget the share of a query's relevant documents of which something is shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from sluice import BM25Encoder, Retriever, load_dataset
from sluice.retrieval.documents.text import tokens_of
from sluice.retrieval.pipelines import asking
from sluice.retrieval.pipelines.hit import Hit

BUDGETS = (250, 500, 1_000, 2_000)
PARTS = (600, 450, asking.PART, 200, 150)
Shown = Callable[[str, list[Hit], int], list[Hit]]


class Judged(NamedTuple):
    """A query, its best documents, and the ids of those relevant to it."""

    text: str
    hits: list[Hit]
    relevant: set[str]


def whole(query: str, hits: list[Hit], budget: int) -> list[Hit]:
    """Return the hits whose whole texts fit, the best first."""
    shown, left = [], budget
    for hit in hits:
        if (size := tokens_of(f"{hit.title} {hit.text}".strip())) <= left:
            shown.append(hit)
            left -= size
    return shown


def row(queries: list[Judged], shown: Shown) -> str:
    """Return the mean shares, and the milliseconds of the processor that choosing takes."""
    start, shares = time.process_time(), []
    for budget in BUDGETS:
        lists = [{hit.doc_id for hit in shown(each.text, each.hits, budget)} for each in queries]
        found = [
            len(ids & each.relevant) / len(each.relevant)
            for ids, each in zip(lists, queries, strict=True)
        ]
        shares.append(f"{statistics.fmean(found):.3f}")
    took = 1000 * (time.process_time() - start) / len(queries) / len(BUDGETS)
    return f"{'  '.join(shares)}  {took:4.0f} ms"


def main() -> None:
    """Print a line for each collection and way of filling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--queries", type=int, default=100)
    args = parser.parse_args()
    for name in args.datasets:
        dataset = load_dataset(name, split="test")
        retriever = Retriever.build(BM25Encoder(), dataset.corpus)
        queries = [
            Judged(text, retriever.search(text, asking.LOOKED_AT), relevant)
            for query, text in list(dataset.queries.items())[: args.queries]
            if (relevant := {doc for doc, grade in dataset.qrels[query].items() if grade > 0})
        ]
        print(f"{name:12}whole documents   {row(queries, whole)}", flush=True)
        for part in PARTS:
            asking.PART = part  # type: ignore[misc]
            print(f"{name:12}{part} characters    {row(queries, asking.filled)}", flush=True)


if __name__ == "__main__":
    main()
